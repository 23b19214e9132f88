/* bounds.c: see bounds.h. Sums and products by the reference on absolute values; BatchNorm and the
 * rest by what their formulas make of an error. */
#include "tests/gpu/bounds.h"
#include "lib/log.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a float's operation: that rounds; that cuts off. */
static const double rounding = 0x1p-24, cutting = 0x1p-23;

void *bounds_take(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p)
        exit(fail(SYSTEM_FAILED, "out of memory for %zu values", count));
    return p;
}

float *bounds_copy(const float *x, size_t count) {
    return memcpy(bounds_take(count, sizeof *x), x, count * sizeof *x);
}

static float *magnitude(const float *x, size_t count) {
    float *y = bounds_take(count, sizeof *y);
    for (size_t i = 0; i < count; i++)
        y[i] = fabsf(x[i]);
    return y;
}

void bounds_open(struct bounds *s, const struct op *op) {
    size_t channels = (size_t)op->layer->channels,
           weights = op->shape ? op->shape->count : channels;
    *s = (struct bounds){
        bounds_take(op->out->count, sizeof(double)), bounds_take(op->in->count, sizeof(double)),
        bounds_take(weights, sizeof(double)), bounds_take(channels, sizeof(double))};
}

static double chain(double terms) {
    return fmin(terms, 8 * sqrt(terms)) * cutting;
}

static void scaled(double *slack, const float *magnitudes, size_t count, double by) {
    for (size_t i = 0; i < count; i++)
        slack[i] += by * (double)magnitudes[i];
}

static bool is_product(const struct op *op) {
    return op->layer->kind == LAYER_CONV || op->layer->kind == LAYER_LINEAR;
}

void bounds_close(struct bounds *s) {
    free(s->out);
    free(s->dx);
    free(s->dw);
    free(s->db);
}

/* The same operation on absolute values gives every Σ|terms|. A bias is one more term. */
static void product(struct backend *ref, const struct bounds_type *type, const struct op *op,
                    bool backward, struct bounds *s) {
    struct layer layer = *op->layer;
    struct tensor in = *op->in, out = *op->out;
    struct op m = *op;
    size_t weights = op->shape->count, channels = (size_t)layer.channels;
    double taps = (double)(op->shape->k * op->shape->k),
           pixels = (double)out.count / (double)channels;
    layer.relu = false; /* the gradient is masked already */
    m.layer = &layer;
    m.in = &in;
    m.out = &out;
    m.accumulate = false;
    in.data = magnitude(in.data, in.count);
    m.weight = magnitude(op->weight, weights);
    if (!backward) {
        m.bias = op->bias ? magnitude(op->bias, channels) : NULL;
        out.data = bounds_take(out.count, sizeof(float));
        ref->call->forward(ref, &m);
        scaled(s->out, out.data, out.count, chain(taps * in.shape.c + 1) + 2 * type->cut);
        free(out.data);
        free(m.bias);
    } else {
        out.grad = magnitude(out.grad, out.count);
        in.grad = bounds_take(in.count, sizeof(float));
        m.weight_grad = bounds_take(weights, sizeof(float));
        m.bias_grad = bounds_take(channels, sizeof(float));
        ref->call->backward(ref, &m);
        scaled(s->dx, in.grad, in.count, chain(taps * (double)channels + 1) + 2 * type->cut);
        scaled(s->dw, m.weight_grad, weights, chain(pixels) + 2 * type->cut);
        scaled(s->db, m.bias_grad, channels, chain(pixels));
        free(out.grad);
        free(in.grad);
        free(m.weight_grad);
        free(m.bias_grad);
    }
    free(in.data);
    free(m.weight);
}

/* A channel of a BatchNorm over m values: sums, and what its statistics may be off by. */
struct channel {
    double m, mean, variance, rstd, magnitude; /* Σ|x|/m */
    double of_mean, of_variance, of_rstd;      /* the last relative */
};

static size_t place(struct shape s, int c, size_t k) { /* the k-th value of channel c */
    size_t map = (size_t)(s.h * s.w);
    return (k / map * (size_t)s.c + (size_t)c) * map + k % map;
}

/* The variance may be computed as Σx²/m - mean², both sums with their errors. */
static struct channel channel_of(const struct op *op, int c) {
    struct shape s = op->in->shape;
    size_t m = (size_t)s.n * (size_t)(s.h * s.w);
    struct channel h = {.m = (double)m};
    double squares = 0;
    for (size_t k = 0; k < m; k++) {
        double x = (double)op->in->data[place(s, c, k)];
        h.mean += x / h.m;
        h.magnitude += fabs(x) / h.m;
        squares += x * x / h.m;
    }
    for (size_t k = 0; k < m; k++)
        h.variance += pow((double)op->in->data[place(s, c, k)] - h.mean, 2) / h.m;
    h.of_mean = chain(h.m) * h.magnitude;
    h.of_variance = (chain(h.m) + 4 * rounding) * squares + 2 * fabs(h.mean) * h.of_mean;
    if (!op->training) {
        h.mean = (double)op->running_mean[c];
        h.variance = (double)op->running_variance[c];
        h.of_mean = h.of_variance = 0;
    }
    h.rstd = 1 / sqrt(h.variance + (double)op->layer->eps);
    h.of_rstd = h.of_variance * h.rstd * h.rstd / 2 + 4 * rounding;
    return h;
}

/* Of x̂, which may be x·rstd - mean·rstd. */
static double of_hat(const struct channel *h, double x) {
    return h->rstd * (h->of_mean + (fabs(x - h->mean)) * h->of_rstd +
                      4 * rounding * (fabs(x) + fabs(h->mean)));
}

static void norm_forward(const struct op *op, struct bounds *s) {
    for (int c = 0; c < op->layer->channels; c++) {
        struct channel h = channel_of(op, c);
        double scale = fabs((double)op->weight[c]), shift = fabs((double)op->bias[c]);
        size_t m = op->in->count / (size_t)op->layer->channels;
        for (size_t k = 0; k < m; k++) {
            size_t at = place(op->in->shape, c, k);
            double x = (double)op->in->data[at];
            s->out[at] = scale * of_hat(&h, x) +
                         4 * rounding * (scale * h.rstd * (fabs(x) + fabs(h.mean)) + shift);
        }
    }
}

/* dx = scale·rstd·(dy - Σdy/m - x̂·Σdy·x̂/m). Backward computes y again: where it is so near to 0
 * that the ReLU may fall either way, the whole dy is slack. s->out: of y, from norm_forward. */
static void norm_backward(const struct bounds_type *type, const struct op *op, struct bounds *s) {
    norm_forward(op, s);
    for (int c = 0; c < op->layer->channels; c++) {
        struct channel h = channel_of(op, c);
        double scale = (double)op->weight[c], sum = 0, dot = 0, sums = 0, dots = 0, open = 0,
               open_dot = 0, of_dots = 0;
        size_t m = (size_t)h.m;
        double *unsure = bounds_take(m, sizeof *unsure);
        for (size_t k = 0; k < m; k++) {
            size_t at = place(op->in->shape, c, k);
            double x = (double)op->in->data[at], hat = (x - h.mean) * h.rstd;
            double y = hat * scale + (double)op->bias[c], dy = (double)op->out->grad[at];
            if (op->layer->relu && fabs(y) <= s->out[at] + type->half_smallest)
                unsure[k] = fabs(dy);
            if (op->layer->relu && y <= 0)
                dy = 0;
            sum += dy;
            dot += dy * hat;
            sums += fabs(dy);
            dots += fabs(dy) * h.rstd * (fabs(x) + fabs(h.mean));
            of_dots += fabs(dy) * of_hat(&h, x);
            open += unsure[k];
            open_dot += unsure[k] * fabs(hat);
        }
        s->db[c] = chain(h.m) * sums + open;
        s->dw[c] = chain(h.m) * dots + of_dots + open_dot;
        for (size_t k = 0; k < m; k++) {
            size_t at = place(op->in->shape, c, k);
            double x = (double)op->in->data[at], hat = fabs(x - h.mean) * h.rstd;
            double parts =
                fabs((double)op->out->grad[at]) + fabs(sum) / h.m + hat * fabs(dot) / h.m;
            s->dx[at] = fabs(scale) * h.rstd *
                        (s->db[c] / h.m + hat * s->dw[c] / h.m + of_hat(&h, x) * fabs(dot) / h.m +
                         (h.of_rstd + 8 * rounding) * parts + unsure[k]);
        }
        free(unsure);
    }
}

/* erff, expf: 2 of the last place (CUDA C++ Programming Guide, 16.1), of results up to 2 and 1, and
 * what the roundings of their arguments do. A mean of K: K additions and a division. */
void bounds_forward(struct backend *ref, const struct bounds_type *type, const struct op *op,
                    struct bounds *s) {
    const struct layer *l = op->layer;
    if (is_product(op))
        product(ref, type, op, false, s);
    if (l->kind == LAYER_BATCHNORM)
        norm_forward(op, s);
    for (size_t i = 0; i < op->out->count && l->kind == LAYER_GELU; i++)
        s->out[i] = 8 * rounding * fabs((double)op->in->data[i]);
    if (l->kind == LAYER_AVGPOOL) {
        struct tensor in = *op->in, out = *op->out;
        struct op m = *op;
        m.in = &in;
        m.out = &out;
        in.data = magnitude(in.data, in.count);
        out.data = bounds_take(out.count, sizeof(float));
        ref->call->forward(ref, &m);
        scaled(s->out, out.data, out.count,
               chain((double)(in.shape.h * in.shape.w) / (out.shape.h * out.shape.w)) + rounding);
        free(in.data);
        free(out.data);
    }
}

/* before: what in->grad held, where it is added to. */
void bounds_backward(struct backend *ref, const struct bounds_type *type, const struct op *op,
                     const float *before, struct bounds *s) {
    const struct layer *l = op->layer;
    if (is_product(op))
        product(ref, type, op, true, s);
    if (l->kind == LAYER_BATCHNORM)
        norm_backward(type, op, s);
    for (size_t i = 0; i < op->in->count && op->in_grad; i++) {
        if (l->kind == LAYER_GELU)
            s->dx[i] = 16 * rounding * (1 + fabs((double)op->in->data[i])) *
                       fabs((double)op->out->grad[i]);
        if (l->kind == LAYER_AVGPOOL || l->kind == LAYER_SCALE)
            s->dx[i] += 2 * rounding * fabs((double)op->in->grad[i]);
        if (before)
            s->dx[i] += 2 * cutting * (fabs((double)before[i]) + fabs((double)op->in->grad[i]));
    }
}

void bounds_running(const struct op *op, double *of_mean, double *of_variance) {
    double f = (double)op->layer->momentum;
    for (int c = 0; c < op->layer->channels; c++) {
        struct channel h = channel_of(op, c);
        double unbias = h.m > 1 ? h.m / (h.m - 1) : 1, to = h.variance + (double)op->layer->eps;
        double mean = fabs((double)op->running_mean[c]), variance = (double)op->running_variance[c];
        of_mean[c] = f * (h.of_mean + 4 * rounding * h.magnitude) + 4 * rounding * mean;
        of_variance[c] =
            f * unbias * (h.of_variance + 16 * rounding * to) + 4 * rounding * variance;
    }
}
