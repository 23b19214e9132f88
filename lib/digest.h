/* digest: md5 (the published digests of CIFAR-10) and sha256 (our own), by libcrypto. */
#ifndef DDPIPE_DIGEST_H
#define DDPIPE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum digest_kind { DIGEST_MD5, DIGEST_SHA256 };
enum { DIGEST_HEX_SIZE = 65 }; /* of a lower-case hexadecimal text with its NUL; md5 fills 33 */

struct digest;

int digest_open(struct digest **d, enum digest_kind kind);
int digest_add(struct digest *d, const void *bytes, size_t size);
/* Writes the text, frees the digest and clears the pointer. */
int digest_close(struct digest **d, char hex[DIGEST_HEX_SIZE]);

int digest_of_bytes(enum digest_kind kind, const void *bytes, size_t size,
                    char hex[DIGEST_HEX_SIZE]);
int digest_of_file(enum digest_kind kind, const char *path, char hex[DIGEST_HEX_SIZE]);

#endif
