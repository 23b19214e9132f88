/* ref_layers.c: every layer forward and backward as plain loops over NCHW, sums in double. */
#include "lib/rng.h"
#include "trainer/ref.h"
#include <math.h>
#include <string.h>

/* out[n,o,y,x] = bias[o] + Σ in[n,i,y+ky-pad,x+kx-pad] · w[o,i,ky,kx] */
static void conv_forward(struct op *op) {
    struct shape i = op->in->shape, o = op->out->shape;
    int k = op->shape->k, pad = op->layer->kind == LAYER_CONV ? op->layer->pad : 0;
    for (int n = 0; n < o.n; n++)
        for (int oc = 0; oc < o.c; oc++)
            for (int y = 0; y < o.h; y++)
                for (int x = 0; x < o.w; x++) {
                    double sum = op->bias ? (double)op->bias[oc] : 0;
                    for (int ic = 0; ic < i.c; ic++)
                        for (int ky = 0; ky < k; ky++)
                            for (int kx = 0; kx < k; kx++) {
                                int sy = y + ky - pad, sx = x + kx - pad;
                                if (sy < 0 || sx < 0 || sy >= i.h || sx >= i.w)
                                    continue;
                                sum +=
                                    (double)op->in->data[((n * i.c + ic) * i.h + sy) * i.w + sx] *
                                    (double)op->weight[((oc * i.c + ic) * k + ky) * k + kx];
                            }
                    if (op->layer->relu && sum < 0)
                        sum = 0;
                    op->out->data[((n * o.c + oc) * o.h + y) * o.w + x] = (float)sum;
                }
}

static void conv_backward_bias(struct op *op) {
    struct shape o = op->out->shape;
    for (int oc = 0; oc < o.c; oc++) {
        double sum = 0;
        for (int n = 0; n < o.n; n++)
            for (int s = 0; s < o.h * o.w; s++)
                sum += (double)op->out->grad[(n * o.c + oc) * o.h * o.w + s];
        op->bias_grad[oc] = (float)sum;
    }
}

static void conv_backward_weight(struct op *op) {
    struct shape i = op->in->shape, o = op->out->shape;
    int k = op->shape->k, pad = op->layer->kind == LAYER_CONV ? op->layer->pad : 0;
    for (int oc = 0; oc < o.c; oc++)
        for (int ic = 0; ic < i.c; ic++)
            for (int ky = 0; ky < k; ky++)
                for (int kx = 0; kx < k; kx++) {
                    double sum = 0;
                    for (int n = 0; n < o.n; n++)
                        for (int y = 0; y < o.h; y++)
                            for (int x = 0; x < o.w; x++) {
                                int sy = y + ky - pad, sx = x + kx - pad;
                                if (sy < 0 || sx < 0 || sy >= i.h || sx >= i.w)
                                    continue;
                                sum += (double)op->out->grad[((n * o.c + oc) * o.h + y) * o.w + x] *
                                       (double)op->in->data[((n * i.c + ic) * i.h + sy) * i.w + sx];
                            }
                    op->weight_grad[((oc * i.c + ic) * k + ky) * k + kx] = (float)sum;
                }
}

static void store_grad(struct op *op, size_t at, double value) {
    op->in->grad[at] = (float)(value + (op->accumulate ? (double)op->in->grad[at] : 0));
}

static void conv_backward_data(struct op *op) {
    struct shape i = op->in->shape, o = op->out->shape;
    int k = op->shape->k, pad = op->layer->kind == LAYER_CONV ? op->layer->pad : 0;
    for (int n = 0; n < i.n; n++)
        for (int ic = 0; ic < i.c; ic++)
            for (int y = 0; y < i.h; y++)
                for (int x = 0; x < i.w; x++) {
                    double sum = 0;
                    for (int oc = 0; oc < o.c; oc++)
                        for (int ky = 0; ky < k; ky++)
                            for (int kx = 0; kx < k; kx++) {
                                int oy = y - ky + pad, ox = x - kx + pad;
                                if (oy < 0 || ox < 0 || oy >= o.h || ox >= o.w)
                                    continue;
                                sum +=
                                    (double)op->out->grad[((n * o.c + oc) * o.h + oy) * o.w + ox] *
                                    (double)op->weight[((oc * i.c + ic) * k + ky) * k + kx];
                            }
                    store_grad(op, (size_t)(((n * i.c + ic) * i.h + y) * i.w + x), sum);
                }
}

static void conv_backward(struct op *op) {
    if (op->layer->relu)
        for (size_t s = 0; s < op->out->count; s++)
            if (op->out->data[s] <= 0)
                op->out->grad[s] = 0;
    if (op->bias && op->bias_wanted)
        conv_backward_bias(op);
    if (op->weight_wanted)
        conv_backward_weight(op);
    if (op->in_grad)
        conv_backward_data(op);
}

/* Ioffe, Szegedy, arXiv 1502.03167; running statistics as torch.nn.BatchNorm2d's. */
static void norm_forward(struct op *op) {
    struct shape s = op->in->shape;
    struct ref_op *state = op->state;
    int map = s.h * s.w;
    double m = (double)s.n * map;
    for (int c = 0; c < s.c; c++) {
        double mean = (double)op->running_mean[c], variance = (double)op->running_variance[c];
        if (op->training) {
            double sum = 0, squares = 0;
            for (int n = 0; n < s.n; n++)
                for (int p = 0; p < map; p++)
                    sum += (double)op->in->data[(n * s.c + c) * map + p];
            mean = sum / m;
            for (int n = 0; n < s.n; n++)
                for (int p = 0; p < map; p++)
                    squares += pow((double)op->in->data[(n * s.c + c) * map + p] - mean, 2);
            variance = squares / m;
            double f = (double)op->layer->momentum, unbiased = m > 1 ? squares / (m - 1) : variance;
            op->running_mean[c] = (float)((1 - f) * (double)op->running_mean[c] + f * mean);
            op->running_variance[c] =
                (float)((1 - f) * (double)op->running_variance[c] + f * unbiased);
        }
        double rstd = 1 / sqrt(variance + (double)op->layer->eps);
        state->mean[c] = (float)mean;
        state->rstd[c] = (float)rstd;
        for (int n = 0; n < s.n; n++)
            for (int p = 0; p < map; p++) {
                int at = (n * s.c + c) * map + p;
                double y = ((double)op->in->data[at] - mean) * rstd * (double)op->weight[c] +
                           (double)op->bias[c];
                op->out->data[at] = (float)(op->layer->relu && y < 0 ? 0 : y);
            }
    }
}

/* dx = scale·rstd·(dy - mean(dy) - x̂·mean(dy·x̂)) */
static void norm_backward(struct op *op) {
    struct shape s = op->in->shape;
    struct ref_op *state = op->state;
    int map = s.h * s.w;
    double m = (double)s.n * map;
    for (int c = 0; c < s.c; c++) {
        double mean = (double)state->mean[c], rstd = (double)state->rstd[c], sum = 0, dot = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int n = 0; n < s.n; n++)
                for (int p = 0; p < map; p++) {
                    int at = (n * s.c + c) * map + p;
                    double dy = (double)op->out->grad[at];
                    double hat = ((double)op->in->data[at] - mean) * rstd;
                    if (op->layer->relu && op->out->data[at] <= 0)
                        dy = 0;
                    if (pass == 0) {
                        sum += dy;
                        dot += dy * hat;
                    } else {
                        store_grad(op, (size_t)at,
                                   (double)op->weight[c] * rstd * (dy - sum / m - hat * dot / m));
                    }
                }
        if (op->weight_wanted)
            op->weight_grad[c] = (float)dot;
        if (op->bias_wanted)
            op->bias_grad[c] = (float)sum;
    }
}

static void pool_forward(struct op *op) {
    struct shape i = op->in->shape, o = op->out->shape;
    struct ref_op *state = op->state;
    bool max = op->layer->kind == LAYER_MAXPOOL;
    int kh = op->layer->kernel ? op->layer->kernel : i.h, kw = op->layer->kernel ? kh : i.w;
    for (int nc = 0; nc < o.n * o.c; nc++)
        for (int y = 0; y < o.h; y++)
            for (int x = 0; x < o.w; x++) {
                const float *map = op->in->data + (size_t)nc * (size_t)(i.h * i.w);
                int out = (nc * o.h + y) * o.w + x, best = y * kh * i.w + x * kw;
                double sum = 0;
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++) {
                        int at = (y * kh + ky) * i.w + x * kw + kx;
                        sum += (double)map[at];
                        if (map[at] > map[best])
                            best = at;
                    }
                if (max)
                    state->index[out] = best;
                op->out->data[out] = max ? map[best] : (float)(sum / (kh * kw));
            }
}

static void pool_backward(struct op *op) {
    struct shape i = op->in->shape, o = op->out->shape;
    struct ref_op *state = op->state;
    int kh = op->layer->kernel ? op->layer->kernel : i.h, kw = op->layer->kernel ? kh : i.w;
    if (!op->accumulate)
        memset(op->in->grad, 0, op->in->count * sizeof(float));
    for (int nc = 0; nc < o.n * o.c; nc++)
        for (int y = 0; y < o.h; y++)
            for (int x = 0; x < o.w; x++) {
                float *map = op->in->grad + (size_t)nc * (size_t)(i.h * i.w);
                int out = (nc * o.h + y) * o.w + x;
                float dy = op->out->grad[out];
                if (op->layer->kind == LAYER_MAXPOOL) {
                    map[state->index[out]] += dy;
                    continue;
                }
                for (int ky = 0; ky < kh; ky++)
                    for (int kx = 0; kx < kw; kx++)
                        map[(y * kh + ky) * i.w + x * kw + kx] += dy / (float)(kh * kw);
            }
}

void ref_forward(struct backend *b, struct op *op) {
    (void)b;
    const float *x = op->in->data;
    float *y = op->out->data;
    struct ref_op *state = op->state;
    switch (op->layer->kind) {
    case LAYER_CONV:
    case LAYER_LINEAR: conv_forward(op); return;
    case LAYER_BATCHNORM: norm_forward(op); return;
    case LAYER_MAXPOOL:
    case LAYER_AVGPOOL: pool_forward(op); return;
    default: break;
    }
    struct rng rng = rng_at(op->seed, RNG_DROPOUT, 0, 0);
    for (size_t i = 0; i < op->out->count; i++)
        switch (op->layer->kind) {
        case LAYER_GELU:
            y[i] = (float)(0.5 * (double)x[i] * (1 + erf((double)x[i] / sqrt(2))));
            break;
        case LAYER_SCALE: y[i] = x[i] * op->layer->p; break;
        case LAYER_ADD: y[i] = x[i] + op->in2->data[i]; break;
        default: /* LAYER_DROPOUT */
            state->mask[i] = !op->training                      ? 1
                             : rng_uniform(&rng) < op->layer->p ? 0
                                                                : 1 / (1 - op->layer->p);
            y[i] = x[i] * state->mask[i];
        }
}

void ref_backward(struct backend *b, struct op *op) {
    (void)b;
    struct ref_op *state = op->state;
    switch (op->layer->kind) {
    case LAYER_CONV:
    case LAYER_LINEAR: conv_backward(op); return;
    case LAYER_BATCHNORM: norm_backward(op); return;
    case LAYER_MAXPOOL:
    case LAYER_AVGPOOL: pool_backward(op); return;
    default: break;
    }
    for (size_t i = 0; i < op->out->count; i++) {
        double dy = (double)op->out->grad[i], x = (double)op->in->data[i];
        if (op->layer->kind == LAYER_GELU)
            dy *= 0.5 * (1 + erf(x / sqrt(2))) + x * exp(-x * x / 2) / sqrt(2 * acos(-1.0));
        else if (op->layer->kind == LAYER_SCALE)
            dy *= (double)op->layer->p;
        else
            dy *= (double)state->mask[i];
        store_grad(op, i, dy);
    }
}
