/* backend_cpu.c: the oneDNN backend's table: weights, plans, and the passes over steps. In:
 * operations as backend.h describes them; out: primitives created once, executed every step. */
#include "lib/log.h"
#include "trainer/cpu.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE_PAGE = 2 << 20 };

static float *backend_alloc(struct backend *b, size_t count) {
    size_t bytes = (count ? count : 1) * sizeof(float);
    size_t align = bytes < LARGE_PAGE ? 64 : LARGE_PAGE;
    bytes = (bytes + align - 1) / align * align;
    float *p = aligned_alloc(align, bytes);
    if (!p) {
        fail(SYSTEM_FAILED, "no memory for %zu bytes of parameters", bytes);
        return NULL;
    }
    if (align == LARGE_PAGE)
        madvise(p, bytes,
                MADV_HUGEPAGE); /* an update walks over all of it: fewer misses in the TLB */
    memset(p, 0, bytes);
    cpu_own(b->state, p, free);
    return p;
}

static int weight_open(struct backend *b, const struct layer *l, struct shape in,
                       struct weight *w) {
    dnnl_memory_desc_t md;
    cpu_weight_order(b->state, l, in, &md);
    *w = (struct weight){.o = l->channels, .i = in.c, .k = l->kind == LAYER_CONV ? l->kernel : 1};
    w->layout = cpu_keep_order(b->state, &md);
    w->count = dnnl_memory_desc_get_size(&md) / sizeof(float);
    return 0;
}

static dnnl_memory_desc_t plain_like(const dnnl_memory_desc_t *md) {
    int dims[4] = {0};
    for (int i = 0; i < md->ndims; i++)
        dims[i] = (int)md->dims[i];
    return cpu_plain(md->ndims, dims);
}

static void weight_put(struct backend *b, const struct weight *w, const float *plain,
                       float *native) {
    dnnl_memory_desc_t md = plain_like(w->layout);
    cpu_reorder_now(b->state, &md, plain, w->layout, native);
}

static void weight_get(struct backend *b, const struct weight *w, const float *native,
                       float *plain) {
    dnnl_memory_desc_t md = plain_like(w->layout);
    cpu_reorder_now(b->state, w->layout, native, &md, plain);
}

static void tensor_get(struct backend *b, const struct tensor *t, const float *native,
                       float *plain) {
    dnnl_memory_desc_t md = plain_like(t->layout);
    cpu_reorder_now(b->state, t->layout, native, &md, plain);
}

static int plan_begin(struct backend *b) {
    cpu_rewind(b->state);
    return 0;
}

static int input_open(struct backend *b, struct tensor *t) {
    dnnl_memory_desc_t md = cpu_plain(4, (int[]){t->shape.n, t->shape.c, t->shape.h, t->shape.w});
    cpu_tensor_open(b->state, t, &md);
    return 0;
}

static int grad_open(struct backend *b, struct tensor *t) {
    t->grad = cpu_take(b->state, t->count * sizeof(float));
    return 0;
}

static int loop_open(struct cpu *cpu, struct op *op, void (*run)(struct op *)) {
    struct cpu_op *state = op->state;
    if (op->in2 && !dnnl_memory_desc_equal(cpu_order(op->in), cpu_order(op->in2)))
        return fail(SYSTEM_FAILED, "layer \"%s\": oneDNN gave its inputs different orders",
                    op->layer->name);
    cpu_tensor_open(cpu, op->out, cpu_order(op->in));
    if (op->layer->kind == LAYER_DROPOUT)
        state->kept = cpu_take(cpu, op->out->count);
    cpu_step(op, CPU_FORWARD)->run = run;
    return 0;
}

static int op_open(struct backend *b, struct op *op) {
    struct cpu *cpu = b->state;
    op->state = calloc(1, sizeof(struct cpu_op));
    if (!op->state)
        return fail(SYSTEM_FAILED, "out of memory");
    switch (op->layer->kind) {
    case LAYER_CONV: cpu_conv_open(cpu, op); return 0;
    case LAYER_LINEAR: cpu_linear_open(cpu, op); return 0;
    case LAYER_BATCHNORM: cpu_norm_open(cpu, op); return 0;
    case LAYER_MAXPOOL:
    case LAYER_AVGPOOL: cpu_pool_open(cpu, op); return 0;
    case LAYER_GELU: cpu_gelu_open(cpu, op); return 0;
    case LAYER_ADD: return loop_open(cpu, op, cpu_add_forward);
    case LAYER_SCALE: return loop_open(cpu, op, cpu_scale_forward);
    case LAYER_DROPOUT: return loop_open(cpu, op, cpu_dropout_forward);
    }
    return 0;
}

static int backward_open(struct backend *b, struct op *op) {
    struct cpu *cpu = b->state;
    switch (op->layer->kind) {
    case LAYER_CONV: cpu_conv_backward_open(cpu, op); break;
    case LAYER_LINEAR: cpu_linear_backward_open(cpu, op); break;
    case LAYER_BATCHNORM: cpu_norm_backward_open(cpu, op); break;
    case LAYER_MAXPOOL:
    case LAYER_AVGPOOL: cpu_pool_backward_open(cpu, op); break;
    case LAYER_GELU: cpu_gelu_backward_open(cpu, op); break;
    case LAYER_SCALE: cpu_step(op, CPU_BACKWARD)->run = cpu_scale_backward; break;
    case LAYER_DROPOUT: cpu_step(op, CPU_BACKWARD)->run = cpu_dropout_backward; break;
    case LAYER_ADD: break;
    }
    return 0;
}

static void op_close(struct backend *b, struct op *op) {
    (void)b;
    if (op->state)
        free(((struct cpu_op *)op->state)->sync);
    free(op->state);
    op->state = NULL;
}

static void run_steps(struct cpu *cpu, struct op *op, const struct cpu_step *steps, int count) {
    for (int i = 0; i < count; i++) {
        if (steps[i].run)
            steps[i].run(op);
        else
            cpu_execute(cpu, steps[i].primitive, steps[i].count, steps[i].args);
    }
}

static void forward(struct backend *b, struct op *op) {
    struct cpu_op *state = op->state;
    run_steps(b->state, op, state->forward, state->forward_count);
}

static void backward(struct backend *b, struct op *op) {
    struct cpu_op *state = op->state;
    run_steps(b->state, op, state->backward, state->backward_count);
}

static void backend_close(struct backend **b) {
    struct cpu *cpu = (*b)->state;
    cpu_close(&cpu);
    free(*b);
    *b = NULL;
}

static const struct backend_table table = {
    .name = "cpu",
    .alloc = backend_alloc,
    .read = backend_host_read,
    .write = backend_host_write,
    .copy = backend_host_copy,
    .weight_open = weight_open,
    .weight_put = weight_put,
    .weight_get = weight_get,
    .plan_begin = plan_begin,
    .input_open = input_open,
    .op_open = op_open,
    .grad_open = grad_open,
    .backward_open = backward_open,
    .op_close = op_close,
    .forward = forward,
    .backward = backward,
    .input = cpu_input,
    .loss = cpu_loss,
    .totals = backend_host_totals,
    .tensor_get = tensor_get,
    .sgd = cpu_sgd,
    .adam = cpu_adam,
    .lerp = cpu_lerp,
    .add = cpu_add,
    .swap = cpu_swap,
    .close = backend_close,
};

int backend_cpu_open(struct backend **b, int threads) {
    *b = calloc(1, sizeof **b);
    if (!*b)
        return fail(SYSTEM_FAILED, "out of memory");
    omp_set_num_threads(threads);
    (*b)->call = &table;
    (*b)->state = cpu_open();
    return 0;
}
