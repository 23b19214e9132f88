/* digest.c: libcrypto's EVP digests as hexadecimal text. */
#include "lib/digest.h"
#include "lib/log.h"
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct digest {
    EVP_MD_CTX *context;
};

int digest_open(struct digest **out, enum digest_kind kind) {
    struct digest *d = calloc(1, sizeof *d);
    if (d)
        d->context = EVP_MD_CTX_new();
    if (!d || !d->context ||
        !EVP_DigestInit_ex(d->context, kind == DIGEST_MD5 ? EVP_md5() : EVP_sha256(), NULL)) {
        if (d)
            EVP_MD_CTX_free(d->context);
        free(d);
        return fail(SYSTEM_FAILED, "libcrypto has no %s here",
                    kind == DIGEST_MD5 ? "md5" : "sha256");
    }
    *out = d;
    return 0;
}

int digest_add(struct digest *d, const void *bytes, size_t size) {
    return EVP_DigestUpdate(d->context, bytes, size)
               ? 0
               : fail(SYSTEM_FAILED, "libcrypto: update failed");
}

int digest_close(struct digest **d, char hex[DIGEST_HEX_SIZE]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    int ok = EVP_DigestFinal_ex((*d)->context, raw, &size);
    EVP_MD_CTX_free((*d)->context);
    free(*d);
    *d = NULL;
    if (!ok || 2 * size >= DIGEST_HEX_SIZE)
        return fail(SYSTEM_FAILED, "libcrypto: final failed");
    for (unsigned i = 0; i < size; i++)
        snprintf(hex + 2 * i, 3, "%02x", raw[i]);
    return 0;
}

int digest_of_bytes(enum digest_kind kind, const void *bytes, size_t size,
                    char hex[DIGEST_HEX_SIZE]) {
    struct digest *d;
    int rc = digest_open(&d, kind);
    if (rc)
        return rc;
    rc = digest_add(d, bytes, size);
    int closed = digest_close(&d, hex);
    return rc ? rc : closed;
}

int digest_of_file(enum digest_kind kind, const char *path, char hex[DIGEST_HEX_SIZE]) {
    FILE *f = fopen(path, "rbe");
    if (!f)
        return fail(errno == ENOENT ? BAD_INPUT : SYSTEM_FAILED, "cannot open \"%s\": %s", path,
                    strerror(errno));
    struct digest *d = NULL;
    int rc = digest_open(&d, kind);
    static _Thread_local char buffer[1 << 16];
    for (size_t n; !rc && (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
        rc = digest_add(d, buffer, n);
    if (!rc && ferror(f))
        rc = fail(SYSTEM_FAILED, "cannot read \"%s\": %s", path, strerror(errno));
    fclose(f);
    int closed = d ? digest_close(&d, hex) : 0;
    return rc ? rc : closed;
}
