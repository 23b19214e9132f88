/* cpu_norm.c: BatchNorm, with the ReLU behind it fused, as oneDNN primitives.
 *
 * oneDNN returns the biased variance of the batch; cpu_running_update makes PyTorch's running
 * statistics of it. Outside training the running statistics normalise. */
#include "trainer/cpu.h"

static void parameters(struct cpu *cpu, struct op *op, struct cpu_step *s) {
    dnnl_memory_desc_t md = cpu_plain(1, (int[]){op->in->shape.c});
    cpu_arg(s, DNNL_ARG_SCALE, cpu_memory(cpu, &md, op->weight));
    cpu_arg(s, DNNL_ARG_SHIFT, cpu_memory(cpu, &md, op->bias));
}

void cpu_norm_open(struct cpu *cpu, struct op *op) {
    if (op->training && op->sum) {
        cpu_sync_norm_open(cpu, op);
        return;
    }
    struct cpu_op *state = op->state;
    int channels = op->in->shape.c;
    dnnl_memory_desc_t per_channel = cpu_plain(1, (int[]){channels});
    unsigned flags = dnnl_use_scale | dnnl_use_shift;
    flags |= op->layer->relu ? dnnl_fuse_norm_relu : 0;
    flags |= op->training ? 0 : dnnl_use_global_stats;
    dnnl_batch_normalization_desc_t d;
    DNNL_CHECK(dnnl_batch_normalization_forward_desc_init(
        &d, op->training ? dnnl_forward_training : dnnl_forward_inference, cpu_order(op->in),
        op->layer->eps, flags));
    state->hint = cpu_describe(cpu, &d, NULL, NULL);
    struct cpu_step *s = cpu_forward_step(cpu, op, state->hint);
    parameters(cpu, op, s);
    if (!op->training) {
        cpu_arg(s, DNNL_ARG_MEAN, cpu_memory(cpu, &per_channel, op->running_mean));
        cpu_arg(s, DNNL_ARG_VARIANCE, cpu_memory(cpu, &per_channel, op->running_variance));
        return;
    }
    state->count = (double)op->in->shape.n * op->in->shape.h * op->in->shape.w;
    state->mean = cpu_take(cpu, (size_t)channels * sizeof(float));
    state->variance = cpu_take(cpu, (size_t)channels * sizeof(float));
    cpu_arg(s, DNNL_ARG_MEAN, cpu_memory(cpu, &per_channel, state->mean));
    cpu_arg(s, DNNL_ARG_VARIANCE, cpu_memory(cpu, &per_channel, state->variance));
    const dnnl_memory_desc_t *workspace = cpu_query(state->hint, dnnl_query_workspace_md);
    if (op->layer->relu) {
        state->workspace = cpu_memory(cpu, workspace, NULL);
        cpu_arg(s, DNNL_ARG_WORKSPACE, state->workspace);
    }
    cpu_step(op, CPU_FORWARD)->run = cpu_running_update;
}

/* The gradient by the scale comes with the rest; a frozen scale's is never read. */
void cpu_norm_backward_open(struct cpu *cpu, struct op *op) {
    if (op->sum) {
        cpu_sync_norm_backward_open(cpu, op);
        return;
    }
    struct cpu_op *state = op->state;
    dnnl_memory_desc_t per_channel = cpu_plain(1, (int[]){op->in->shape.c});
    unsigned flags = dnnl_use_scale | dnnl_use_shift;
    flags |= op->layer->relu ? dnnl_fuse_norm_relu : 0;
    dnnl_batch_normalization_desc_t d;
    DNNL_CHECK(dnnl_batch_normalization_backward_desc_init(
        &d, dnnl_backward, cpu_order(op->out), cpu_order(op->in), op->layer->eps, flags));
    dnnl_primitive_desc_t pd = cpu_describe(cpu, &d, NULL, state->hint);
    const dnnl_memory_desc_t *md = cpu_query(pd, dnnl_query_diff_src_md);
    dnnl_memory_t target = cpu_grad_target(cpu, op, md);
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_SRC, cpu_data(cpu, op->in));
    cpu_arg(s, DNNL_ARG_MEAN, cpu_memory(cpu, &per_channel, state->mean));
    cpu_arg(s, DNNL_ARG_VARIANCE, cpu_memory(cpu, &per_channel, state->variance));
    cpu_arg(s, DNNL_ARG_DIFF_DST, cpu_grad(cpu, op->out));
    parameters(cpu, op, s);
    if (op->layer->relu)
        cpu_arg(s, DNNL_ARG_WORKSPACE, state->workspace);
    cpu_arg(s, DNNL_ARG_DIFF_SRC, target);
    cpu_arg(s, DNNL_ARG_DIFF_SCALE, cpu_memory(cpu, &per_channel, op->weight_grad));
    cpu_arg(s, DNNL_ARG_DIFF_SHIFT, cpu_memory(cpu, &per_channel, op->bias_grad));
    cpu_grad_done(cpu, op, md, target);
}
