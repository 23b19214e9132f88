/* gunzip.c: libarchive's raw format with its gzip filter. */
#include "fetch/gunzip.h"
#include "lib/log.h"
#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <stdlib.h>

enum { BLOCK = 1 << 16 };

static int refuse(struct archive *a, const char *from) {
    return fail(BAD_INPUT, "%s cannot be unpacked: %s", from, archive_error_string(a));
}

static int read_content(struct archive *a, const char *from, uint64_t max_bytes, struct digest *d,
                        uint64_t *size) {
    struct archive_entry *entry;
    static char block[BLOCK];
    la_ssize_t n;
    if (archive_read_next_header(a, &entry) != ARCHIVE_OK)
        return refuse(a, from);
    if (archive_filter_code(a, 0) != ARCHIVE_FILTER_GZIP)
        return fail(BAD_INPUT, "%s is no gzip file", from);
    while ((n = archive_read_data(a, block, sizeof block)) > 0) {
        *size += (uint64_t)n;
        if (*size > max_bytes)
            return fail(BAD_INPUT, "%s unpacks to more than %" PRIu64 " bytes", from, max_bytes);
        int rc = digest_add(d, block, (size_t)n);
        if (rc)
            return rc;
    }
    return n < 0 ? refuse(a, from) : 0;
}

int gunzip_digest(const char *path, const char *from, uint64_t max_bytes, enum digest_kind kind,
                  char hex[DIGEST_HEX_SIZE], uint64_t *size) {
    struct digest *d;
    int rc = digest_open(&d, kind);
    if (rc)
        return rc;
    *size = 0;
    struct archive *a = archive_read_new();
    if (!a)
        rc = fail(SYSTEM_FAILED, "out of memory for unpacking %s", from);
    else if (archive_read_support_filter_gzip(a) != ARCHIVE_OK ||
             archive_read_support_format_raw(a) != ARCHIVE_OK ||
             archive_read_open_filename(a, path, BLOCK) != ARCHIVE_OK)
        rc = refuse(a, from);
    if (!rc)
        rc = read_content(a, from, max_bytes, d, size);
    archive_read_free(a);
    int closed = digest_close(&d, hex);
    return rc ? rc : closed;
}
