/* backend_ref.c: every operation as plain loops, in plain order, sums in double: the truth that the
 * other backends are compared with. One thread, no cleverness. */
#include "lib/log.h"
#include "lib/rng.h"
#include "trainer/backend.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Everything allocated, to free at close; activations are kept too: plans do not share memory. */
struct ref {
    void **blocks;
    size_t count;
};

struct ref_op {
    float *mean, *rstd; /* BATCHNORM: of the last forward */
    int32_t *index;     /* MAXPOOL: offset of the maximum in its map */
    float *mask;        /* DROPOUT: 0 or 1/(1-p) */
};

static void *take(struct backend *b, size_t count, size_t size) {
    struct ref *r = b->state;
    void **more = realloc(r->blocks, (r->count + 1) * sizeof *more);
    void *p = NULL;
    if (more) {
        r->blocks = more;
        p = calloc(count ? count : 1, size);
    }
    if (!p)
        fail(SYSTEM_FAILED, "out of memory for %zu bytes", count * size);
    else
        r->blocks[r->count++] = p;
    return p;
}

static float *ref_alloc(struct backend *b, size_t count) {
    return take(b, count, sizeof(float));
}

static int ref_weight_open(struct backend *b, const struct layer *l, struct shape in,
                           struct weight *w) {
    (void)b;
    int k = l->kind == LAYER_CONV ? l->kernel : 1;
    *w = (struct weight){
        .o = l->channels, .i = in.c, .k = k, .count = (size_t)l->channels * (size_t)(in.c * k * k)};
    return 0;
}

static void ref_weight_put(struct backend *b, const struct weight *w, const float *plain,
                           float *native) {
    (void)b;
    memcpy(native, plain, w->count * sizeof *native);
}

static void ref_weight_get(struct backend *b, const struct weight *w, const float *native,
                           float *plain) {
    (void)b;
    memcpy(plain, native, w->count * sizeof *native);
}

static size_t volume(struct shape s) {
    return (size_t)s.n * (size_t)(s.c * s.h * s.w);
}

static int ref_tensor_open(struct backend *b, struct tensor *t) {
    t->count = volume(t->shape);
    t->data = ref_alloc(b, t->count);
    return t->data ? 0 : SYSTEM_FAILED;
}

static int ref_grad_open(struct backend *b, struct tensor *t) {
    t->grad = ref_alloc(b, t->count);
    return t->grad ? 0 : SYSTEM_FAILED;
}

static int ref_plan_begin(struct backend *b) {
    (void)b;
    return 0;
}

static int ref_op_open(struct backend *b, struct op *op) {
    struct ref_op *state = take(b, 1, sizeof *state);
    int rc = state ? ref_tensor_open(b, op->out) : SYSTEM_FAILED;
    op->state = state;
    if (rc)
        return rc;
    size_t channels = (size_t)op->out->shape.c;
    if (op->layer->kind == LAYER_BATCHNORM) {
        state->mean = ref_alloc(b, channels);
        state->rstd = ref_alloc(b, channels);
        return state->mean && state->rstd ? 0 : SYSTEM_FAILED;
    }
    if (op->layer->kind == LAYER_MAXPOOL)
        return (state->index = take(b, op->out->count, sizeof *state->index)) ? 0 : SYSTEM_FAILED;
    if (op->layer->kind == LAYER_DROPOUT)
        return (state->mask = ref_alloc(b, op->out->count)) ? 0 : SYSTEM_FAILED;
    return 0;
}

static int ref_backward_open(struct backend *b, struct op *op) {
    (void)b;
    (void)op;
    return 0;
}

static void ref_op_close(struct backend *b, struct op *op) {
    (void)b;
    op->state = NULL;
}

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

static void ref_forward(struct backend *b, struct op *op) {
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

static void ref_backward(struct backend *b, struct op *op) {
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

static void ref_input(struct backend *b, struct tensor *t, const uint8_t *pixels,
                      const float *scale, const float *shift) {
    (void)b;
    struct shape s = t->shape;
    for (int n = 0; n < s.n; n++)
        for (int c = 0; c < s.c; c++)
            for (int p = 0; p < s.h * s.w; p++)
                t->data[(n * s.c + c) * s.h * s.w + p] =
                    (float)pixels[(n * s.h * s.w + p) * s.c + c] * scale[c] + shift[c];
}

static struct backend_loss ref_loss(struct backend *b, struct tensor *logits, const int32_t *labels,
                                    float smoothing) {
    (void)b;
    struct backend_loss loss = {0};
    int n = logits->shape.n, k = logits->shape.c;
    for (int i = 0; i < n; i++) {
        const float *z = logits->data + (size_t)i * (size_t)k;
        int best = 0;
        double sum = 0;
        for (int j = 1; j < k; j++)
            best = z[j] > z[best] ? j : best;
        for (int j = 0; j < k; j++)
            sum += exp((double)z[j] - (double)z[best]);
        for (int j = 0; j < k; j++) {
            double target = (double)smoothing / k + (j == labels[i] ? 1 - (double)smoothing : 0);
            double log_p = (double)z[j] - (double)z[best] - log(sum);
            loss.loss_sum -= target * log_p;
            if (logits->grad)
                logits->grad[i * k + j] = (float)((exp(log_p) - target) / n);
        }
        loss.correct += best == labels[i];
    }
    return loss;
}

static void ref_tensor_get(struct backend *b, const struct tensor *t, const float *native,
                           float *plain) {
    (void)b;
    memcpy(plain, native, t->count * sizeof *plain);
}

static void ref_sgd(struct backend *b, float *w, const float *grad, float *v,
                    const struct backend_group *groups, int count, float scale, float momentum,
                    bool nesterov) {
    (void)b;
    for (int k = 0; k < count; k++)
        for (size_t i = groups[k].begin; i < groups[k].end; i++) {
            float g = scale * grad[i] + groups[k].decay * w[i];
            v[i] = momentum * v[i] + g;
            w[i] -= groups[k].rate * (nesterov ? g + momentum * v[i] : v[i]);
        }
}

static void ref_adam(struct backend *b, float *w, const float *grad, float *m, float *v,
                     const struct backend_group *groups, int count, float scale, float beta1,
                     float beta2, float eps, int64_t t) {
    (void)b;
    double c1 = 1 - pow((double)beta1, (double)t), c2 = 1 - pow((double)beta2, (double)t);
    for (int k = 0; k < count; k++)
        for (size_t i = groups[k].begin; i < groups[k].end; i++) {
            float g = scale * grad[i] + groups[k].decay * w[i];
            m[i] += (1 - beta1) * (g - m[i]);
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            w[i] -= (float)((double)groups[k].rate / c1 * (double)m[i] /
                            (sqrt((double)v[i] / c2) + (double)eps));
        }
}

static void ref_lerp(struct backend *b, float *a, const float *to, float fraction, size_t count) {
    (void)b;
    for (size_t i = 0; i < count; i++)
        a[i] += (to[i] - a[i]) * fraction;
}

static void ref_swap(struct backend *b, float *a, float *c, size_t count) {
    (void)b;
    for (size_t i = 0; i < count; i++) {
        float keep = a[i];
        a[i] = c[i];
        c[i] = keep;
    }
}

static void ref_close(struct backend **b) {
    struct ref *r = (*b)->state;
    while (r->count)
        free(r->blocks[--r->count]);
    free(r->blocks);
    free(r);
    free(*b);
    *b = NULL;
}

static const struct backend_table table = {
    .name = "ref",
    .alloc = ref_alloc,
    .weight_open = ref_weight_open,
    .weight_put = ref_weight_put,
    .weight_get = ref_weight_get,
    .plan_begin = ref_plan_begin,
    .input_open = ref_tensor_open,
    .op_open = ref_op_open,
    .grad_open = ref_grad_open,
    .backward_open = ref_backward_open,
    .op_close = ref_op_close,
    .forward = ref_forward,
    .backward = ref_backward,
    .input = ref_input,
    .loss = ref_loss,
    .tensor_get = ref_tensor_get,
    .sgd = ref_sgd,
    .adam = ref_adam,
    .lerp = ref_lerp,
    .swap = ref_swap,
    .close = ref_close,
};

int backend_ref_open(struct backend **b) {
    *b = calloc(1, sizeof **b);
    if (*b)
        (*b)->state = calloc(1, sizeof(struct ref));
    if (!*b || !(*b)->state)
        return fail(SYSTEM_FAILED, "out of memory");
    (*b)->call = &table;
    return 0;
}
