/* resize: a separable triangle filter, first along x into float32, then along y. */
#include "prep/resize.h"

#include <math.h>
#include <stdlib.h>

#include "lib/log.h"

/* The inputs [first, first + count) that one output is made of. */
struct taps {
    uint32_t first, count;
    double scale, centre, half_width, sum;
};

static double weight_at(const struct taps *taps, uint32_t i) {
    double distance = fabs((double)(taps->first + i) + 0.5 - taps->centre) / taps->half_width;
    return distance < 1 ? 1 - distance : 0;
}

static struct taps taps_of(uint32_t out, uint32_t out_size, uint32_t in_size) {
    struct taps taps = {.scale = (double)in_size / out_size};
    taps.centre = (out + 0.5) * taps.scale;
    taps.half_width = fmax(taps.scale, 1.0);
    taps.first = (uint32_t)fmax(floor(taps.centre - taps.half_width), 0);
    uint32_t end = (uint32_t)fmin(ceil(taps.centre + taps.half_width), in_size);
    taps.count = end - taps.first;
    for (uint32_t i = 0; i < taps.count; i++)
        taps.sum += weight_at(&taps, i);
    return taps;
}

int resize_rgb(const uint8_t *from, uint32_t from_h, uint32_t from_w, uint8_t *to, uint32_t h,
               uint32_t w) {
    float *narrow = calloc((size_t)from_h * w * 3, sizeof *narrow); /* (from_h,w,3) */
    if (!narrow)
        return fail(SYSTEM_FAILED, "out of memory to resize an image of %u x %u", from_h, from_w);
    for (uint32_t x = 0; x < w; x++) {
        struct taps taps = taps_of(x, w, from_w);
        for (uint32_t i = 0; i < taps.count; i++) {
            float weight = (float)(weight_at(&taps, i) / taps.sum);
            for (uint32_t y = 0; y < from_h; y++) {
                const uint8_t *pixel = from + ((size_t)y * from_w + taps.first + i) * 3;
                float *sum = narrow + ((size_t)y * w + x) * 3;
                for (int c = 0; c < 3; c++)
                    sum[c] += weight * pixel[c];
            }
        }
    }
    for (uint32_t y = 0; y < h; y++) {
        struct taps taps = taps_of(y, h, from_h);
        for (size_t xc = 0; xc < (size_t)w * 3; xc++) {
            float sum = 0;
            for (uint32_t i = 0; i < taps.count; i++)
                sum += (float)(weight_at(&taps, i) / taps.sum) *
                       narrow[(size_t)(taps.first + i) * w * 3 + xc];
            to[(size_t)y * w * 3 + xc] = (uint8_t)lrintf(fminf(fmaxf(sum, 0), 255));
        }
    }
    free(narrow);
    return 0;
}
