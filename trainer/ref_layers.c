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
/* Per channel: x[c] = Σ over the batch of term(op, c, at), for `terms` terms side by side; over all
 * ranks where the op says so. The last entry is the number of values. */
static void norm_sums(struct op *op, double *x, int terms,
                      void (*add)(const struct op *op, int c, int at, double *x)) {
    struct shape s = op->in->shape;
    size_t count = (size_t)(terms * s.c);
    memset(x, 0, count * sizeof *x);
    for (int n = 0; n < s.n; n++)
        for (int c = 0; c < s.c; c++)
            for (int p = 0; p < s.h * s.w; p++)
                add(op, c, (n * s.c + c) * s.h * s.w + p, x + terms * c);
    x[count] = (double)s.n * s.h * s.w;
}

static void over_ranks(struct op *op, double *x, int terms) {
    if (op->sum)
        op->sum(op->sum_arg, x, (size_t)(terms * op->in->shape.c) + 1);
}

static void add_value(const struct op *op, int c, int at, double *x) {
    (void)c;
    x[0] += (double)op->in->data[at];
}

static void add_square(const struct op *op, int c, int at, double *x) {
    const struct ref_op *state = op->state;
    x[0] += pow((double)op->in->data[at] - state->mean[c], 2);
}

/* dy behind the ReLU, and x̂ */
static double norm_dy(const struct op *op, int at) {
    return op->layer->relu && op->out->data[at] <= 0 ? 0 : (double)op->out->grad[at];
}
static double norm_hat(const struct op *op, int c, int at) {
    const struct ref_op *state = op->state;
    return ((double)op->in->data[at] - state->mean[c]) * state->rstd[c];
}

static void add_gradient(const struct op *op, int c, int at, double *x) {
    x[0] += norm_dy(op, at);
    x[1] += norm_dy(op, at) * norm_hat(op, c, at);
}

static void batch_statistics(struct op *op) {
    struct ref_op *state = op->state;
    int channels = op->in->shape.c;
    double *x = state->sums, f = (double)op->layer->momentum;
    norm_sums(op, x, 1, add_value);
    over_ranks(op, x, 1);
    for (int c = 0; c < channels; c++)
        state->mean[c] = x[c] / x[channels];
    norm_sums(op, x, 1, add_square);
    over_ranks(op, x, 1);
    double m = x[channels];
    for (int c = 0; c < channels; c++) {
        double unbiased = m > 1 ? x[c] / (m - 1) : x[c];
        state->rstd[c] = 1 / sqrt(x[c] / m + (double)op->layer->eps);
        op->running_mean[c] = (float)((1 - f) * (double)op->running_mean[c] + f * state->mean[c]);
        op->running_variance[c] = (float)((1 - f) * (double)op->running_variance[c] + f * unbiased);
    }
}

static void norm_forward(struct op *op) {
    struct shape s = op->in->shape;
    struct ref_op *state = op->state;
    if (op->training)
        batch_statistics(op);
    for (int c = 0; c < s.c && !op->training; c++) {
        state->mean[c] = (double)op->running_mean[c];
        state->rstd[c] = 1 / sqrt((double)op->running_variance[c] + (double)op->layer->eps);
    }
    for (size_t at = 0; at < op->out->count; at++) {
        int c = (int)at / (s.h * s.w) % s.c;
        double y = norm_hat(op, c, (int)at) * (double)op->weight[c] + (double)op->bias[c];
        op->out->data[at] = (float)(op->layer->relu && y < 0 ? 0 : y);
    }
}

/* dx = scale·rstd·(dy - mean(dy) - x̂·mean(dy·x̂)) */
static void norm_backward(struct op *op) {
    struct shape s = op->in->shape;
    struct ref_op *state = op->state;
    double *x = state->sums;
    norm_sums(op, x, 2, add_gradient);
    for (int c = 0; c < s.c; c++) {
        if (op->bias_wanted)
            op->bias_grad[c] = (float)x[2 * c];
        if (op->weight_wanted)
            op->weight_grad[c] = (float)x[2 * c + 1];
    }
    over_ranks(op, x, 2);
    double m = x[2 * s.c];
    for (size_t at = 0; at < op->in->count; at++) {
        int c = (int)at / (s.h * s.w) % s.c;
        store_grad(op, at,
                   (double)op->weight[c] * state->rstd[c] *
                       (norm_dy(op, (int)at) - x[2 * c] / m -
                        norm_hat(op, c, (int)at) * x[2 * c + 1] / m));
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
