/* cpu_pool.c: pooling and GELU as oneDNN primitives. */
#include "trainer/cpu.h"

struct window {
    dnnl_dims_t kernel, pad;
    dnnl_alg_kind_t algorithm;
};

static struct window window(const struct op *op) {
    int k = op->layer->kernel;
    struct window w = {.kernel = {k ? k : op->in->shape.h, k ? k : op->in->shape.w}};
    w.algorithm =
        op->layer->kind == LAYER_MAXPOOL ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding;
    return w;
}

void cpu_pool_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    struct shape o = op->out->shape;
    struct window w = window(op);
    dnnl_memory_desc_t plain = cpu_plain(4, (int[]){o.n, o.c, o.h, o.w}), any = cpu_any(&plain);
    dnnl_pooling_desc_t d;
    DNNL_CHECK(dnnl_pooling_forward_desc_init(
        &d, op->training ? dnnl_forward_training : dnnl_forward_inference, w.algorithm,
        cpu_order(op->in), &any, w.kernel, w.kernel, w.pad, w.pad));
    state->hint = cpu_describe(cpu, &d, NULL, NULL);
    struct cpu_step *s = cpu_forward_step(cpu, op, state->hint);
    if (op->training && op->layer->kind == LAYER_MAXPOOL) {
        state->workspace = cpu_memory(cpu, cpu_query(state->hint, dnnl_query_workspace_md), NULL);
        cpu_arg(s, DNNL_ARG_WORKSPACE, state->workspace);
    }
}

void cpu_pool_backward_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    struct window w = window(op);
    dnnl_pooling_desc_t d;
    DNNL_CHECK(dnnl_pooling_backward_desc_init(
        &d, w.algorithm, cpu_order(op->in), cpu_order(op->out), w.kernel, w.kernel, w.pad, w.pad));
    dnnl_primitive_desc_t pd = cpu_describe(cpu, &d, NULL, state->hint);
    const dnnl_memory_desc_t *md = cpu_query(pd, dnnl_query_diff_src_md);
    dnnl_memory_t target = cpu_grad_target(cpu, op, md);
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_DIFF_DST, cpu_grad(cpu, op->out));
    if (state->workspace)
        cpu_arg(s, DNNL_ARG_WORKSPACE, state->workspace);
    cpu_arg(s, DNNL_ARG_DIFF_SRC, target);
    cpu_grad_done(cpu, op, md, target);
}

/* GELU in the exact form x·Φ(x) (Hendrycks, Gimpel, arXiv 1606.08415). */
void cpu_gelu_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    dnnl_eltwise_desc_t d;
    DNNL_CHECK(dnnl_eltwise_forward_desc_init(&d, dnnl_forward_training, dnnl_eltwise_gelu_erf,
                                              cpu_order(op->in), 0, 0));
    state->hint = cpu_describe(cpu, &d, NULL, NULL);
    cpu_forward_step(cpu, op, state->hint);
}

void cpu_gelu_backward_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    dnnl_eltwise_desc_t d;
    DNNL_CHECK(dnnl_eltwise_backward_desc_init(&d, dnnl_eltwise_gelu_erf, cpu_order(op->out),
                                               cpu_order(op->in), 0, 0));
    dnnl_primitive_desc_t pd = cpu_describe(cpu, &d, NULL, state->hint);
    const dnnl_memory_desc_t *md = cpu_query(pd, dnnl_query_diff_src_md);
    dnnl_memory_t target = cpu_grad_target(cpu, op, md);
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_SRC, cpu_data(cpu, op->in));
    cpu_arg(s, DNNL_ARG_DIFF_DST, cpu_grad(cpu, op->out));
    cpu_arg(s, DNNL_ARG_DIFF_SRC, target);
    cpu_grad_done(cpu, op, md, target);
}
