/* gunzip: what a .gz file unpacks to, without keeping it. */
#ifndef DDPIPE_FETCH_GUNZIP_H
#define DDPIPE_FETCH_GUNZIP_H

#include "lib/digest.h"
#include <stdint.h>

/* Size and digest of the content of the gzip file at path. BAD_INPUT, naming `from`, for what is no
 * whole gzip file, or has more than max_bytes in it. */
int gunzip_digest(const char *path, const char *from, uint64_t max_bytes, enum digest_kind kind,
                  char hex[DIGEST_HEX_SIZE], uint64_t *size);

#endif
