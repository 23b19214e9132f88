/* batch_save: takes the first STEPS train batches of a loader and writes them as safetensors "x" U8
 * (STEPS·N,H,W,C), "y" I32: what a trainer at that endpoint would see.
 *
 * usage: batch_save ipc://ENDPOINT STEPS OUT.safetensors */
#include "lib/log.h"
#include "trainer/safetensors.h"
#include "trainer/source.h"
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    struct source *s;
    struct batch_message m;
    int64_t waited = 0;
    log_open("batch_save", -1);
    if (argc != 4)
        return fail(BAD_USAGE, "usage: batch_save ENDPOINT STEPS OUT");
    size_t steps = (size_t)atol(argv[2]), count = 0;
    int rc = source_open_loader(&s, argv[1], 4, 20);
    if (rc)
        return rc;
    const struct batch_hello *h = source_hello(s);
    size_t image = h->c * h->h * h->w;
    uint8_t *x = malloc(steps * h->batch_size * image);
    int32_t *y = malloc(steps * h->batch_size * sizeof *y);
    if (!x || !y)
        return fail(SYSTEM_FAILED, "out of memory");
    for (size_t i = 0; i < steps && !rc; i++) {
        do
            rc = source_next(s, &m, &waited);
        while (!rc && (m.kind == BATCH_END || m.batch.phase == BATCH_VAL));
        if (rc)
            break;
        memcpy(x + count * image, m.batch.pixels, m.batch.count * image);
        for (uint32_t k = 0; k < m.batch.count; k++)
            y[count + k] = batch_label(m.batch.labels, k);
        count += m.batch.count;
    }
    struct safetensor out[2] = {{.name = "x",
                                 .dtype = "U8",
                                 .rank = 4,
                                 .bytes = count * image,
                                 .data = x,
                                 .dims = {(int64_t)count, h->h, h->w, h->c}},
                                {.name = "y",
                                 .dtype = "I32",
                                 .rank = 1,
                                 .bytes = count * sizeof *y,
                                 .data = y,
                                 .dims = {(int64_t)count}}};
    rc = rc ? rc : safetensors_write(argv[3], out, 2);
    source_close(&s);
    free(x);
    free(y);
    return rc;
}
