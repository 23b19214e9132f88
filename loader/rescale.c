/* rescale: an output line is a weighted sum of input lines, and the weights depend on the sizes
 * only, so they are worked out once. First all lines of an image become fewer (or more), then the
 * pixels in each.
 *
 * Weights: ATen/native/cpu/UpSampleKernel.cpp, antialiased bilinear: with scale = in / out and
 * support = max(scale, 1), output i is centred at scale·(i + ½) and pixel j weighs
 * max(0, 1 − |j + ½ − centre| / support), made to sum to 1. */
#include "loader/rescale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"

/* Output i is the sum of weight[i][k] · input first[i] + k over k < taps. */
struct axis {
    uint32_t taps, out;
    uint32_t *first;
    float *weight; /* (out, taps); zeros where an output needs fewer */
};

struct rescale {
    struct geometry from;
    struct axis y, x;
};

static void weigh(struct axis *a, uint32_t i, uint32_t in, double scale, double support) {
    double centre = scale * (i + 0.5), sum = 0;
    double low = centre - support + 0.5, high = centre + support + 0.5;
    uint32_t from = low < 0 ? 0 : (uint32_t)low;
    uint32_t to = high > in ? in : (uint32_t)high;
    /* Every output reads the same number of taps: the window moves in from the end. */
    a->first[i] = from + a->taps > in ? in - a->taps : from;
    float *weight = a->weight + (size_t)i * a->taps;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t j = from; j < to; j++) {
            double w = fmax(0, 1 - fabs(j + 0.5 - centre) / support);
            if (pass == 0)
                sum += w;
            else
                weight[j - a->first[i]] = (float)(w / sum);
        }
}

static int axis_open(struct axis *a, uint32_t in, uint32_t out) {
    double scale = (double)in / out;
    double support = scale < 1 ? 1 : scale;
    uint32_t taps = (uint32_t)ceil(support) * 2 + 1;
    a->out = out;
    a->taps = taps < in ? taps : in;
    a->first = calloc(out, sizeof *a->first);
    a->weight = calloc((size_t)out * a->taps, sizeof *a->weight);
    if (!a->first || !a->weight)
        return fail(SYSTEM_FAILED, "out of memory for a resize to %u lines", out);
    for (uint32_t i = 0; i < out; i++)
        weigh(a, i, in, scale, support);
    return 0;
}

int rescale_open(struct rescale **out, const struct geometry *from, uint32_t h, uint32_t w) {
    struct rescale *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return fail(SYSTEM_FAILED, "out of memory");
    r->from = *from;
    int code = axis_open(&r->y, from->h, h);
    if (!code)
        code = axis_open(&r->x, from->w, w);
    if (code)
        rescale_close(out);
    return code;
}

size_t rescale_scratch(const struct rescale *r) {
    return (size_t)r->from.w * r->from.c;
}

/* line[n] = the weighted sum of rows, which lie n apart. */
static void sum_rows(float *restrict line, const uint8_t *restrict in, size_t n,
                     const float *weight, uint32_t taps) {
    for (size_t i = 0; i < n; i++)
        line[i] = weight[0] * (float)in[i];
    for (uint32_t k = 1; k < taps; k++)
        for (size_t i = 0; i < n; i++)
            line[i] += weight[k] * (float)in[k * n + i];
}

static void sum_pixels(uint8_t *out, const float *line, const struct axis *x, uint32_t c) {
    for (uint32_t j = 0; j < x->out; j++) {
        const float *weight = x->weight + (size_t)j * x->taps;
        const float *at = line + (size_t)x->first[j] * c;
        for (uint32_t k = 0; k < c; k++) {
            float sum = 0.5f;
            for (uint32_t t = 0; t < x->taps; t++)
                sum += weight[t] * at[t * c + k];
            *out++ = (uint8_t)(sum > 255 ? 255 : sum);
        }
    }
}

void rescale_image(const struct rescale *r, const uint8_t *in, uint8_t *out, float *scratch) {
    size_t n = (size_t)r->from.w * r->from.c;
    for (uint32_t i = 0; i < r->y.out; i++) {
        sum_rows(scratch, in + r->y.first[i] * n, n, r->y.weight + (size_t)i * r->y.taps,
                 r->y.taps);
        sum_pixels(out + (size_t)i * r->x.out * r->from.c, scratch, &r->x, r->from.c);
    }
}

void rescale_close(struct rescale **rescale) {
    struct rescale *r = *rescale;
    if (!r)
        return;
    free(r->y.first);
    free(r->y.weight);
    free(r->x.first);
    free(r->x.weight);
    free(r);
    *rescale = NULL;
}
