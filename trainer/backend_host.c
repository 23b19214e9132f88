/* backend_host.c: the part of backend.h that is the same for every backend whose memory is the
 * host's. */
#include "trainer/backend.h"
#include <string.h>

void backend_host_read(struct backend *b, float *host, const float *from, size_t count) {
    (void)b;
    memcpy(host, from, count * sizeof *host);
}

void backend_host_write(struct backend *b, float *to, const float *host, size_t count) {
    (void)b;
    memcpy(to, host, count * sizeof *to);
}

void backend_host_copy(struct backend *b, float *to, const float *from, size_t count) {
    (void)b;
    memcpy(to, from, count * sizeof *to);
}

struct backend_loss backend_host_totals(struct backend *b) {
    struct backend_loss sums = b->totals;
    b->totals = (struct backend_loss){0};
    return sums;
}
