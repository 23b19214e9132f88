/* backend_ref.c: the reference backend: plain order, sums in double, one thread, no cleverness: the
 * truth that the other backends are compared with. The layers are in ref_layers.c. */
#include "lib/log.h"
#include "trainer/ref.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Everything allocated, to free at close; activations are kept too: plans do not share memory. */
struct ref {
    void **blocks;
    size_t count;
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
        /* a double takes the room of two floats */
        state->mean = (double *)ref_alloc(b, 2 * channels);
        state->rstd = (double *)ref_alloc(b, 2 * channels);
        state->sums = (double *)ref_alloc(b, 2 * (2 * channels + 1));
        return state->mean && state->rstd && state->sums ? 0 : SYSTEM_FAILED;
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

static void ref_loss(struct backend *b, struct tensor *logits, const int32_t *labels,
                     float smoothing) {
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
    b->totals.loss_sum += loss.loss_sum;
    b->totals.correct += loss.correct;
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

static void ref_add(struct backend *b, float *a, const float *x, size_t count) {
    (void)b;
    for (size_t i = 0; i < count; i++)
        a[i] += x[i];
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
    .totals = backend_host_totals,
    .tensor_get = ref_tensor_get,
    .sgd = ref_sgd,
    .adam = ref_adam,
    .lerp = ref_lerp,
    .add = ref_add,
    .read = backend_host_read,
    .write = backend_host_write,
    .copy = backend_host_copy,
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
