/* backend_cuda.c: the table of the CUDA backend, and the operations over whole arenas. */
#include "trainer/backend_cuda.h"
#include "lib/log.h"
#include "trainer/cuda.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const bool backend_cuda_built = true;

enum { LANDING_BYTES = 256 };

static int plan_begin(struct backend *b) {
    struct cuda *c = b->state;
    cuda_rewind(c);
    c->seed_count = 0;
    return 0;
}

static void input(struct backend *b, struct tensor *t, const uint8_t *pixels, const float *scale,
                  const float *shift) {
    struct cuda *c = b->state;
    const struct shape s = t->shape;
    size_t count = (size_t)(s.n * s.h) * (size_t)s.w, channels = (size_t)s.c;
    cuda_step_next(c);
    const float *at = cuda_put(c, offsetof(struct cuda_inbox, scale), scale, channels * sizeof *at);
    const float *by = cuda_put(c, offsetof(struct cuda_inbox, shift), shift, channels * sizeof *by);
    const uint8_t *images = cuda_put(c, c->steps.pixels_at, pixels, count * channels);
    if (!cuda_skips(c, t, 2))
        cuda_must(kernels_input(t->data, c->io, images, at, by, count, s.c, c->compute));
}

/* With FP16 the gradients are scaled, so that the small ones are not lost. */
static void loss(struct backend *b, struct tensor *logits, const int32_t *labels, float smoothing) {
    struct cuda *c = b->state;
    int n = logits->shape.n, classes = logits->shape.c;
    const int32_t *at = cuda_put(c, c->steps.labels_at, labels, (size_t)n * sizeof *labels);
    if (!cuda_skips(c, logits, (double)smoothing))
        cuda_must(kernels_loss(c->totals, logits->grad, logits->data, c->io, at, n, classes,
                               classes, smoothing, c->scaler ? &c->scaler->scale : NULL,
                               c->compute));
}

static struct backend_loss totals(struct backend *b) {
    struct cuda *c = b->state;
    struct kernels_totals sums;
    CUDA_CHECK(
        cudaMemcpyAsync(c->landing, c->totals, sizeof sums, cudaMemcpyDeviceToHost, c->compute));
    CUDA_CHECK(cudaMemsetAsync(c->totals, 0, sizeof sums, c->compute));
    cuda_wait(c, c->compute);
    memcpy(&sums, c->landing, sizeof sums);
    return (struct backend_loss){.loss_sum = sums.loss_sum, .correct = sums.correct};
}

static void tensor_get(struct backend *b, const struct tensor *t, const float *native,
                       float *plain) {
    struct cuda *c = b->state;
    const struct shape s = t->shape;
    size_t map = (size_t)(s.h * s.w), channels = t->count / ((size_t)s.n * map);
    float *values = malloc(t->count * sizeof *values);
    if (!values)
        exit(fail(SYSTEM_FAILED, "out of memory for %zu values", t->count));
    cuda_grow(c, &c->scratch, t->count * sizeof *values);
    cuda_must(
        kernels_to_float((float *)(void *)c->scratch.begin, native, c->io, t->count, c->compute));
    cuda_read(b, values, (const float *)(const void *)c->scratch.begin, t->count);
    for (size_t i = 0; i < (size_t)s.n; i++)
        for (size_t k = 0; k < (size_t)s.c; k++)
            for (size_t p = 0; p < map; p++)
                *plain++ = values[(i * map + p) * channels + k];
    free(values);
}

/* What an update of w reads from device memory, put there; and with FP16 the search for gradients
 * that overflowed, after which nothing is updated and the loss scaled less. */
static bool arena(struct backend *b, struct kernels_arena *a, float *w, const float *grad,
                  const struct backend_group *groups, int count, const struct kernels_step *step) {
    struct cuda *c = b->state;
    struct cuda_arena *owner = cuda_arena_of(c, w);
    struct kernels_step *at = cuda_put(c, offsetof(struct cuda_inbox, step), step, sizeof *step);
    *a = (struct kernels_arena){
        .w = w,
        .grad = grad,
        .count = groups[count - 1].end,
        .copy = owner->copy ? owner->copy + (size_t)(w - owner->begin) * c->io_size : NULL,
        .copy_type = c->io,
        .groups = cuda_put(c, offsetof(struct cuda_inbox, groups), groups,
                           (size_t)count * sizeof *groups),
        .group_count = count,
        .step = at,
        .skip = c->scaler ? &c->scaler->skip : NULL};
    if (cuda_skips(c, w, count))
        return false;
    if (c->scaler) {
        cuda_must(kernels_not_finite(&c->scaler->found, grad, a->count, c->compute));
        cuda_must(kernels_scaler_update(c->scaler, at, c->compute));
    }
    return true;
}

static void sgd(struct backend *b, float *w, const float *grad, float *v,
                const struct backend_group *groups, int count, float scale, float momentum,
                bool nesterov) {
    struct cuda *c = b->state;
    struct kernels_arena a;
    if (arena(b, &a, w, grad, groups, count, &(struct kernels_step){.scale = scale}))
        cuda_must(kernels_sgd(&a, v, momentum, nesterov, c->compute));
}

static void adam(struct backend *b, float *w, const float *grad, float *m, float *v,
                 const struct backend_group *groups, int count, float scale, float beta1,
                 float beta2, float eps, int64_t t) {
    struct cuda *c = b->state;
    struct kernels_arena a;
    struct kernels_step step = {.scale = scale,
                                .correction1 = (float)(1 - pow((double)beta1, (double)t)),
                                .root_correction2 = (float)sqrt(1 - pow((double)beta2, (double)t))};
    if (arena(b, &a, w, grad, groups, count, &step))
        cuda_must(kernels_adam(&a, m, v, beta1, beta2, eps, c->compute));
}

static void lerp(struct backend *b, float *a, const float *to, float fraction, size_t count) {
    struct cuda *c = b->state;
    if (count == 0 || cuda_skips(c, a, (double)fraction))
        return;
    cuda_must(kernels_lerp(a, to, count, fraction, c->compute));
    cuda_touched(c, a);
}

static void add(struct backend *b, float *a, const float *x, size_t count) {
    struct cuda *c = b->state;
    if (!cuda_skips(c, a, (double)count))
        cuda_must(kernels_add(a, a, x, KERNELS_FP32, count, c->compute));
    cuda_touched(c, a);
}

static void copy(struct backend *b, float *to, const float *from, size_t count) {
    struct cuda *c = b->state;
    if (count > 0 && !cuda_skips(c, to, (double)count))
        cuda_must(kernels_from_float(to, KERNELS_FP32, from, count, c->compute));
    cuda_touched(c, to);
}

static void swap(struct backend *b, float *a, float *x, size_t count) {
    struct cuda *c = b->state;
    if (count == 0 || cuda_skips(c, a, (double)count))
        return;
    cuda_must(kernels_swap(a, x, count, c->compute));
    cuda_touched(c, a);
    cuda_touched(c, x);
}

static int join(struct backend *b, const struct backend_ranks *ranks) {
    struct cuda *c = b->state;
    return comm_nccl_open(&c->nccl, ranks);
}

static void sum(struct backend *b, float *x, size_t count) {
    struct cuda *c = b->state;
    if (cuda_skips(c, x, (double)count))
        return;
    CUDA_CHECK(cudaEventRecord(c->ready, c->compute));
    CUDA_CHECK(cudaStreamWaitEvent(c->reduce, c->ready, 0));
    cuda_must(comm_nccl_sum_f32(c->nccl, x, count, c->reduce));
    c->summing = true;
}

static void sums_wait(struct backend *b) {
    struct cuda *c = b->state;
    if (!c->summing)
        return;
    CUDA_CHECK(cudaEventRecord(c->reduced, c->reduce));
    CUDA_CHECK(cudaStreamWaitEvent(c->compute, c->reduced, 0));
    c->summing = false;
}

static void broadcast(struct backend *b, float *x, size_t count, int root) {
    struct cuda *c = b->state;
    cuda_must(comm_nccl_broadcast(c->nccl, x, count, root, c->compute));
    cuda_touched(c, x);
}

static void gather(struct backend *b, const float *x, float *all, size_t count, int root) {
    struct cuda *c = b->state;
    if (!cuda_skips(c, x, root))
        cuda_must(comm_nccl_gather(c->nccl, x, all, count, root, c->compute));
}

static void scatter(struct backend *b, const float *all, float *x, size_t count, int root) {
    struct cuda *c = b->state;
    if (!cuda_skips(c, x, root))
        cuda_must(comm_nccl_scatter(c->nccl, all, x, count, root, c->compute));
}

static void sum_host(struct backend *b, double *x, size_t count, int to) {
    struct cuda *c = b->state;
    size_t bytes = count * sizeof *x;
    memcpy(c->landing, x, bytes);
    CUDA_CHECK(cudaMemcpyAsync(c->sums, c->landing, bytes, cudaMemcpyHostToDevice, c->compute));
    cuda_must(to < 0 ? comm_nccl_sum_f64(c->nccl, c->sums, count, c->compute)
                     : comm_nccl_reduce_f64(c->nccl, c->sums, count, to, c->compute));
    CUDA_CHECK(cudaMemcpyAsync(c->landing, c->sums, bytes, cudaMemcpyDeviceToHost, c->compute));
    cuda_wait(c, c->compute);
    memcpy(x, c->landing, bytes);
}

static void backend_close(struct backend **b) {
    struct cuda *c = (*b)->state;
    cuda_drain(c);
    cuda_step_close(c); /* NCCL's work is in the graphs */
    comm_nccl_close(&c->nccl);
    cuda_graphs_close(c);
    cuda_memory_close(c);
    if (c->totals)
        cudaFree(c->totals);
    if (c->sums)
        cudaFree(c->sums);
    if (c->scaler)
        cudaFree(c->scaler);
    if (c->landing)
        cudaFreeHost(c->landing);
    cuda_device_close(c);
    free(c);
    free(*b);
    *b = NULL;
}

static const struct backend_collectives collectives = {.join = join,
                                                       .sum = sum,
                                                       .sums_wait = sums_wait,
                                                       .broadcast = broadcast,
                                                       .gather = gather,
                                                       .scatter = scatter,
                                                       .sum_host = sum_host};

static const struct backend_table table = {
    .name = "cuda",
    .alloc = cuda_alloc,
    .read = cuda_read,
    .write = cuda_write,
    .weight_open = cuda_weight_open,
    .weight_put = cuda_weight_put,
    .weight_get = cuda_weight_get,
    .plan_begin = plan_begin,
    .input_open = cuda_input_open,
    .op_open = cuda_op_open,
    .grad_open = cuda_grad_open,
    .backward_open = cuda_backward_open,
    .op_close = cuda_op_close,
    .forward = cuda_forward,
    .backward = cuda_backward,
    .input = input,
    .loss = loss,
    .totals = totals,
    .tensor_get = tensor_get,
    .sgd = sgd,
    .adam = adam,
    .lerp = lerp,
    .add = add,
    .copy = copy,
    .swap = swap,
    .step_begin = cuda_step_begin,
    .step_end = cuda_step_end,
    .collectives = &collectives,
    .close = backend_close,
};

/* Small things that live as long as the backend. */
static void open_rest(struct cuda *c) {
    static const struct kernels_scaler first = {.scale = 65536};
    CUDA_CHECK(cudaHostAlloc((void **)&c->landing, LANDING_BYTES, cudaHostAllocDefault));
    CUDA_CHECK(cudaMalloc((void **)&c->sums, LANDING_BYTES));
    CUDA_CHECK(cudaMalloc((void **)&c->totals, sizeof *c->totals));
    CUDA_CHECK(cudaMemsetAsync(c->totals, 0, sizeof *c->totals, c->compute));
    cuda_step_open(c);
    if (c->precision != CUDNN_GRAPH_FP16)
        return;
    CUDA_CHECK(cudaMalloc((void **)&c->scaler, sizeof first));
    CUDA_CHECK(
        cudaMemcpyAsync(c->scaler, &first, sizeof first, cudaMemcpyHostToDevice, c->compute));
}

int backend_cuda_open(struct backend **b, const struct backend_cuda_options *options) {
    *b = calloc(1, sizeof **b);
    struct cuda *c = calloc(1, sizeof *c);
    if (!*b || !c)
        return fail(SYSTEM_FAILED, "out of memory");
    (*b)->call = &table;
    (*b)->state = c;
    int rc = cuda_device_open(c, options);
    if (!rc)
        open_rest(c);
    return rc;
}
