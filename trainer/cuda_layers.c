/* cuda_layers.c: layers as graphs of cuDNN and launches of our kernels. Activations lie as NHWC, in
 * io type; images with their channels padded to a multiple of 8 by zeros, and the weights that meet
 * them, too; weights as (O,K,K,I), in float in the arena. */
#include "lib/log.h"
#include "trainer/cuda.h"
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

struct cuda_op {
    struct cudnn_graph *forward, *backward[CUDNN_GRAPH_LIST_MAX];
    int backward_count;
    float *mean, *inv_std; /* BATCHNORM: of the batch; in validation folded scale and shift */
    uint16_t *index;       /* MAXPOOL: of the maxima */
    void *weight, *bias;   /* CONV, LINEAR: as cuDNN reads them, */
    void *weight_grad;     /* and as it writes them */
    float *partial;        /* CONV, LINEAR: sums on the way to the bias' gradient */
    const uint64_t *seed;  /* DROPOUT: in the inbox, which has */
    int seed_slot;         /* so many before it */
};

static size_t padded(int channels) {
    return (size_t)(channels + 7) / 8 * 8;
}

static size_t rows(const struct tensor *t) {
    return (size_t)t->shape.n * (size_t)t->shape.h * (size_t)t->shape.w;
}

int cuda_weight_open(struct backend *b, const struct layer *layer, struct shape in,
                     struct weight *w) {
    (void)b;
    size_t channels = layer->in == LAYER_INPUT ? padded(in.c) : (size_t)in.c;
    w->o = layer->channels;
    w->i = in.c;
    w->k = layer->kind == LAYER_CONV ? layer->kernel : 1;
    w->count = (size_t)(w->o * w->k * w->k) * channels;
    return 0;
}

/* Where plain[o][i][ky·K + kx] lies. */
static size_t native_at(const struct weight *w, size_t o, size_t i, size_t k) {
    size_t kernel = (size_t)(w->k * w->k), channels = w->count / ((size_t)w->o * kernel);
    return (o * kernel + k) * channels + i;
}

static void permute(const struct weight *w, const float *from, float *to, bool to_native) {
    size_t kernel = (size_t)(w->k * w->k), at = 0;
    for (size_t o = 0; o < (size_t)w->o; o++)
        for (size_t i = 0; i < (size_t)w->i; i++)
            for (size_t k = 0; k < kernel; k++, at++)
                if (to_native)
                    to[native_at(w, o, i, k)] = from[at];
                else
                    to[at] = from[native_at(w, o, i, k)];
}

void cuda_weight_put(struct backend *b, const struct weight *w, const float *plain, float *native) {
    (void)b;
    memset(native, 0, w->count * sizeof *native);
    permute(w, plain, native, true);
}

void cuda_weight_get(struct backend *b, const struct weight *w, const float *native, float *plain) {
    (void)b;
    permute(w, native, plain, false);
}

static void open_data(struct cuda *c, struct tensor *t, size_t channels) {
    t->count = rows(t) * channels;
    t->data = cuda_take(c, t->count * c->io_size);
}

int cuda_input_open(struct backend *b, struct tensor *t) {
    cuda_step_fit(b->state, t->shape);
    open_data(b->state, t, padded(t->shape.c));
    return 0;
}

int cuda_grad_open(struct backend *b, struct tensor *t) {
    struct cuda *c = b->state;
    t->grad = cuda_take(c, t->count * c->io_size);
    return 0;
}

/* Memory by role: what is NULL does not belong to the layer's graphs. */
static void bind(const struct op *op, void *pointers[CUDNN_GRAPH_ROLES]) {
    const struct cuda_op *s = op->state;
    bool norm = op->layer->kind == LAYER_BATCHNORM, folded = norm && !op->training;
    void *all[CUDNN_GRAPH_ROLES] = {
        [CUDNN_GRAPH_X] = op->in->data,
        [CUDNN_GRAPH_Y] = op->out->data,
        [CUDNN_GRAPH_DX] = op->in->grad,
        [CUDNN_GRAPH_DY] = op->out->grad,
        [CUDNN_GRAPH_W] = s->weight,
        [CUDNN_GRAPH_DW] = s->weight_grad,
        [CUDNN_GRAPH_B] = s->bias,
        [CUDNN_GRAPH_SCALE] = folded ? s->mean : op->weight,
        [CUDNN_GRAPH_SHIFT] = folded ? s->inv_std : op->bias,
        [CUDNN_GRAPH_DSCALE] = norm ? op->weight_grad : NULL,
        [CUDNN_GRAPH_DSHIFT] = norm ? op->bias_grad : NULL,
        [CUDNN_GRAPH_MEAN] = s->mean,
        [CUDNN_GRAPH_INV_STD] = s->inv_std,
    };
    memcpy(pointers, all, sizeof all);
}

static int open_graphs(struct cuda *c, struct op *op, bool backward, struct cudnn_graph **graphs,
                       int *count) {
    struct cudnn_graph_spec specs[CUDNN_GRAPH_LIST_MAX];
    void *pointers[CUDNN_GRAPH_ROLES];
    int rc = cudnn_graph_list(op, backward, c->precision, specs, count);
    bind(op, pointers);
    for (int i = 0; i < *count && !rc; i++)
        rc = cuda_graph(c, &specs[i], pointers, &graphs[i]);
    return rc;
}

static void open_params(struct cuda *c, struct op *op) {
    struct cuda_op *s = op->state;
    s->weight = cuda_param(c, op->weight);
    if (op->bias)
        s->bias = cuda_param(c, op->bias);
}

static void open_norm(struct cuda *c, struct op *op) {
    struct cuda_op *s = op->state;
    size_t bytes = (size_t)op->layer->channels * sizeof(float);
    s->mean = cuda_take(c, bytes);
    s->inv_std = cuda_take(c, bytes);
}

int cuda_op_open(struct backend *b, struct op *op) {
    struct cuda *c = b->state;
    struct cuda_op *s = op->state = calloc(1, sizeof *s);
    enum layer_kind kind = op->layer->kind;
    int count;
    if (!s)
        return fail(SYSTEM_FAILED, "out of memory");
    if (op->sum)
        return fail(BAD_USAGE, "--sync-batchnorm: not on GPUs");
    if (kind == LAYER_DROPOUT && !op->training) { /* nothing to do: the same values */
        op->out->count = op->in->count;
        op->out->data = op->in->data;
        return 0;
    }
    open_data(c, op->out, (size_t)op->out->shape.c);
    if (kind == LAYER_CONV || kind == LAYER_LINEAR)
        open_params(c, op);
    if (kind == LAYER_BATCHNORM)
        open_norm(c, op);
    if (kind == LAYER_DROPOUT)
        s->seed_slot = c->seed_count++;
    if (kind == LAYER_MAXPOOL)
        s->index = cuda_take(c, op->out->count * sizeof *s->index);
    return open_graphs(c, op, false, &s->forward, &count);
}

int cuda_backward_open(struct backend *b, struct op *op) {
    struct cuda *c = b->state;
    struct cuda_op *s = op->state;
    bool product = op->layer->kind == LAYER_CONV || op->layer->kind == LAYER_LINEAR;
    if (product && op->weight_wanted)
        s->weight_grad = c->io == KERNELS_FP32 ? (void *)op->weight_grad
                                               : cuda_take(c, op->shape->count * c->io_size);
    if (product && op->bias_wanted)
        s->partial = cuda_take(c, kernels_bias_grad_floats(rows(op->out), op->layer->channels) *
                                      sizeof(float));
    return open_graphs(c, op, true, s->backward, &s->backward_count);
}

void cuda_op_close(struct backend *b, struct op *op) {
    (void)b;
    free(op->state);
    op->state = NULL;
}

static void run_graph(struct cuda *c, const struct op *op, const struct cudnn_graph *graph) {
    void *pointers[CUDNN_GRAPH_ROLES];
    bind(op, pointers);
    cuda_must(cudnn_graph_run(c->cudnn, graph, pointers, c->workspace.begin));
}

static void norm_forward(struct cuda *c, struct op *op) {
    struct cuda_op *s = op->state;
    const struct layer *l = op->layer;
    if (!op->training)
        cuda_must(kernels_fold(s->mean, s->inv_std, op->weight, op->bias, op->running_mean,
                               op->running_variance, l->channels, l->eps, c->compute));
    run_graph(c, op, s->forward);
    if (op->training)
        cuda_must(kernels_running(op->running_mean, op->running_variance, s->mean, s->inv_std,
                                  l->channels, rows(op->in), l->eps, l->momentum, c->compute));
}

static int launch_forward(struct cuda *c, struct op *op) {
    struct cuda_op *s = op->state;
    struct tensor *in = op->in, *out = op->out;
    const struct layer *l = op->layer;
    switch (l->kind) {
    case LAYER_CONV:
    case LAYER_LINEAR: run_graph(c, op, s->forward); return 0;
    case LAYER_BATCHNORM: norm_forward(c, op); return 0;
    case LAYER_GELU: return kernels_gelu(out->data, in->data, c->io, out->count, c->compute);
    case LAYER_MAXPOOL:
        return kernels_maxpool(out->data, s->index, in->data, c->io, in->shape, l->kernel,
                               c->compute);
    case LAYER_AVGPOOL:
        return kernels_avgpool(out->data, in->data, c->io, in->shape, l->kernel, c->compute);
    case LAYER_DROPOUT:
        return op->training ? kernels_dropout(out->data, in->data, c->io, out->count, l->p, s->seed,
                                              false, c->compute)
                            : 0;
    case LAYER_ADD:
        return kernels_add(out->data, in->data, op->in2->data, c->io, out->count, c->compute);
    case LAYER_SCALE:
        return kernels_scale(out->data, in->data, c->io, out->count, l->p, false, c->compute);
    }
    return 0;
}

void cuda_forward(struct backend *b, struct op *op) {
    struct cuda *c = b->state;
    struct cuda_op *s = op->state;
    if (op->layer->kind == LAYER_DROPOUT && op->training)
        s->seed = cuda_put(c, offsetof(struct cuda_inbox, seeds[s->seed_slot]), &op->seed,
                           sizeof op->seed);
    if (cuda_skips(c, op, 0))
        return;
    nvtxRangePushA(op->layer->name);
    cuda_must(launch_forward(c, op));
    nvtxRangePop();
    if (c->profile)
        cuda_wait(c, c->compute);
}

static int product_backward(struct cuda *c, struct op *op) {
    struct cuda_op *s = op->state;
    const struct layer *l = op->layer;
    struct tensor *out = op->out;
    int rc = 0;
    if (l->relu)
        rc = kernels_relu_mask(out->grad, out->data, c->io, out->count, c->compute);
    if (!rc && op->bias_wanted)
        rc = kernels_bias_grad(op->bias_grad, out->grad, c->io, rows(out), l->channels, s->partial,
                               c->compute);
    for (int i = 0; i < s->backward_count && !rc; i++)
        run_graph(c, op, s->backward[i]);
    if (!rc && op->weight_wanted && c->io != KERNELS_FP32)
        rc = kernels_to_float(op->weight_grad, s->weight_grad, c->io, op->shape->count, c->compute);
    return rc;
}

static int launch_backward(struct cuda *c, struct op *op) {
    struct cuda_op *s = op->state;
    struct tensor *in = op->in, *out = op->out;
    const struct layer *l = op->layer;
    switch (l->kind) {
    case LAYER_CONV:
    case LAYER_LINEAR: return product_backward(c, op);
    case LAYER_BATCHNORM: run_graph(c, op, s->backward[0]); return 0;
    case LAYER_GELU:
        return kernels_gelu_backward(in->grad, in->data, out->grad, c->io, out->count,
                                     op->accumulate, c->compute);
    case LAYER_MAXPOOL:
        return kernels_maxpool_backward(in->grad, out->grad, s->index, c->io, in->shape, l->kernel,
                                        op->accumulate, c->compute);
    case LAYER_AVGPOOL:
        return kernels_avgpool_backward(in->grad, out->grad, c->io, in->shape, l->kernel,
                                        op->accumulate, c->compute);
    case LAYER_DROPOUT:
        return kernels_dropout(in->grad, out->grad, c->io, out->count, l->p, s->seed,
                               op->accumulate, c->compute);
    case LAYER_SCALE:
        return kernels_scale(in->grad, out->grad, c->io, out->count, l->p, op->accumulate,
                             c->compute);
    case LAYER_ADD: return 0; /* inputs share its gradient */
    }
    return 0;
}

void cuda_backward(struct backend *b, struct op *op) {
    struct cuda *c = b->state;
    if (cuda_skips(c, op, 1))
        return;
    nvtxRangePushA(op->layer->name);
    cuda_must(launch_backward(c, op));
    nvtxRangePop();
    if (c->profile)
        cuda_wait(c, c->compute);
}
