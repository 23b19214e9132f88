/* check: what was decoded is turned back into the records that the published md5 is of, so that
 * every form of CIFAR-10 is held against the same digest, and decoding is checked along with the
 * file. A few records at a time: they never exist as a whole. */
#include "prep/check.h"

#include <string.h>

#include "lib/digest.h"
#include "lib/log.h"

enum { PLANE = 32 * 32, RECORD = 1 + 3 * PLANE, BATCH = 16 };

int check_cifar10(const char *what, uint32_t count, const uint8_t *pixels, const uint16_t *labels,
                  const char *md5) {
    uint8_t records[BATCH * RECORD];
    struct digest *digest;
    int r = digest_open(&digest, DIGEST_MD5);
    if (r)
        return r;
    for (uint32_t first = 0; first < count && !r; first += BATCH) {
        uint32_t size = count - first < BATCH ? count - first : BATCH;
        for (uint32_t n = 0; n < size; n++) {
            uint8_t *record = records + (size_t)n * RECORD;
            const uint8_t *image = pixels + (size_t)(first + n) * 3 * PLANE;
            *record++ = (uint8_t)labels[first + n];
            for (size_t i = 0; i < PLANE; i++) {
                record[i] = image[3 * i];
                record[PLANE + i] = image[3 * i + 1];
                record[2 * PLANE + i] = image[3 * i + 2];
            }
        }
        r = digest_add(digest, records, (size_t)size * RECORD);
    }
    char hex[DIGEST_HEX_SIZE];
    int closed = digest_close(&digest, hex);
    if (r || closed)
        return r ? r : closed;
    if (strcmp(hex, md5) != 0)
        return fail(BAD_INPUT,
                    "%s is not the published CIFAR-10: md5 %s, expected %s (--any-content "
                    "takes other data)",
                    what, hex, md5);
    return 0;
}
