/* cpu_sync_norm.c: BatchNorm whose batch statistics are those of all ranks' batches together.
 *
 * Forward: one primitive for this rank's mean and variance (what it writes is overwritten), their
 * sum over ranks, one primitive that normalises by the result. Backward: oneDNN's, told that the
 * statistics are constants, gives scale·rstd·dy and this rank's Σdy·x̂ and Σdy; what is missing of
 * the gradient is -scale·rstd·(Σdy + x̂·Σdy·x̂)/count with sums over ranks (Ioffe and Szegedy, arXiv
 * 1502.03167, section 3), which is a BatchNorm by the same statistics with another scale and shift.
 * A training step costs one pass over the input and two over its gradient more than without. */
#include "lib/log.h"
#include "trainer/cpu.h"
#include <math.h>
#include <stdlib.h>

struct cpu_sync_norm {
    double *sums;         /* (2C+1) */
    float *scale, *shift; /* (C): of the missing part */
    float *missing, *dx;  /* to be added to dx */
    size_t count;         /* of missing */
};

enum { FLAGS = dnnl_use_scale | dnnl_use_shift };

static dnnl_memory_t per_channel(struct cpu *cpu, const struct op *op, float *data) {
    dnnl_memory_desc_t md = cpu_plain(1, (int[]){op->in->shape.c});
    return cpu_memory(cpu, &md, data);
}

static void statistics(struct cpu *cpu, const struct op *op, struct cpu_step *s) {
    const struct cpu_op *state = op->state;
    cpu_arg(s, DNNL_ARG_MEAN, per_channel(cpu, op, state->mean));
    cpu_arg(s, DNNL_ARG_VARIANCE, per_channel(cpu, op, state->variance));
}

static dnnl_primitive_desc_t describe(struct cpu *cpu, const struct op *op, dnnl_prop_kind_t kind,
                                      unsigned flags) {
    dnnl_batch_normalization_desc_t d;
    DNNL_CHECK(dnnl_batch_normalization_forward_desc_init(&d, kind, cpu_order(op->in),
                                                          op->layer->eps, flags));
    return cpu_describe(cpu, &d, NULL, NULL);
}

/* In doubles, squares of floats cancel without harm. */
static void sum_statistics(struct op *op) {
    struct cpu_op *state = op->state;
    struct shape in = op->in->shape;
    double *sums = state->sync->sums, mine = (double)in.n * in.h * in.w;
    for (int c = 0; c < in.c; c++) {
        double mean = (double)state->mean[c];
        sums[2 * c] = mean * mine;
        sums[2 * c + 1] = ((double)state->variance[c] + mean * mean) * mine;
    }
    sums[2 * in.c] = mine;
    op->sum(op->sum_arg, sums, 2 * (size_t)in.c + 1);
    state->count = sums[2 * in.c];
    for (int c = 0; c < in.c; c++) {
        double mean = sums[2 * c] / state->count;
        double variance = sums[2 * c + 1] / state->count - mean * mean;
        state->mean[c] = (float)mean;
        state->variance[c] = variance > 0 ? (float)variance : 0;
    }
}

static void sum_gradients(struct op *op) {
    struct cpu_op *state = op->state;
    struct cpu_sync_norm *sync = state->sync;
    int channels = op->in->shape.c;
    for (int c = 0; c < channels; c++) {
        sync->sums[2 * c] = (double)op->bias_grad[c];
        sync->sums[2 * c + 1] = (double)op->weight_grad[c];
    }
    op->sum(op->sum_arg, sync->sums, 2 * (size_t)channels);
    for (int c = 0; c < channels; c++) {
        double rstd = 1 / sqrt((double)state->variance[c] + (double)op->layer->eps);
        double factor = -(double)op->weight[c] * rstd / state->count;
        sync->shift[c] = (float)(factor * sync->sums[2 * c]);
        sync->scale[c] = (float)(factor * sync->sums[2 * c + 1]);
    }
}

static void add_missing(struct op *op) {
    const struct cpu_sync_norm *sync = ((struct cpu_op *)op->state)->sync;
    float *dx = sync->dx;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < sync->count; i++)
        dx[i] += sync->missing[i];
}

void cpu_sync_norm_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    size_t channels = (size_t)op->in->shape.c;
    unsigned relu = op->layer->relu ? dnnl_fuse_norm_relu : 0;
    state->mean = cpu_take(cpu, channels * sizeof(float));
    state->variance = cpu_take(cpu, channels * sizeof(float));
    state->sync = calloc(1, sizeof *state->sync); /* freed with the op */
    if (!state->sync)
        exit(fail(SYSTEM_FAILED, "out of memory"));
    *state->sync = (struct cpu_sync_norm){
        .sums = cpu_take(cpu, (2 * channels + 1) * sizeof(double)),
        .scale = cpu_take(cpu, channels * sizeof(float)),
        .shift = cpu_take(cpu, channels * sizeof(float)),
    };
    struct cpu_step *s = cpu_forward_step(cpu, op, describe(cpu, op, dnnl_forward_training, 0));
    statistics(cpu, op, s);
    cpu_step(op, CPU_FORWARD)->run = sum_statistics;
    state->hint = describe(cpu, op, dnnl_forward_training, FLAGS | relu | dnnl_use_global_stats);
    s = cpu_step(op, CPU_FORWARD);
    s->primitive = cpu_primitive(cpu, state->hint);
    cpu_arg(s, DNNL_ARG_SRC, cpu_data(cpu, op->in));
    cpu_arg(s, DNNL_ARG_DST, cpu_data(cpu, op->out));
    cpu_arg(s, DNNL_ARG_SCALE, per_channel(cpu, op, op->weight));
    cpu_arg(s, DNNL_ARG_SHIFT, per_channel(cpu, op, op->bias));
    statistics(cpu, op, s);
    if (relu) {
        state->workspace = cpu_memory(cpu, cpu_query(state->hint, dnnl_query_workspace_md), NULL);
        cpu_arg(s, DNNL_ARG_WORKSPACE, state->workspace);
    }
    cpu_step(op, CPU_FORWARD)->run = cpu_running_update;
}

static void append_missing(struct cpu *cpu, struct op *op, const dnnl_memory_desc_t *md,
                           dnnl_memory_t target) {
    struct cpu_op *state = op->state;
    struct cpu_sync_norm *sync = state->sync;
    sync->count = dnnl_memory_desc_get_size(md) / sizeof(float);
    sync->missing = cpu_take(cpu, sync->count * sizeof(float));
    void *dx;
    DNNL_CHECK(dnnl_memory_get_data_handle(target, &dx));
    sync->dx = dx;
    cpu_step(op, CPU_BACKWARD)->run = sum_gradients;
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(
        cpu, describe(cpu, op, dnnl_forward_inference, FLAGS | dnnl_use_global_stats));
    cpu_arg(s, DNNL_ARG_SRC, cpu_data(cpu, op->in));
    cpu_arg(s, DNNL_ARG_DST, cpu_memory(cpu, md, sync->missing));
    cpu_arg(s, DNNL_ARG_SCALE, per_channel(cpu, op, sync->scale));
    cpu_arg(s, DNNL_ARG_SHIFT, per_channel(cpu, op, sync->shift));
    statistics(cpu, op, s);
    cpu_step(op, CPU_BACKWARD)->run = add_missing;
}

void cpu_sync_norm_backward_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    unsigned relu = op->layer->relu ? dnnl_fuse_norm_relu : 0;
    dnnl_batch_normalization_desc_t d;
    DNNL_CHECK(dnnl_batch_normalization_backward_desc_init(&d, dnnl_backward, cpu_order(op->out),
                                                           cpu_order(op->in), op->layer->eps,
                                                           FLAGS | relu | dnnl_use_global_stats));
    dnnl_primitive_desc_t pd = cpu_describe(cpu, &d, NULL, state->hint);
    const dnnl_memory_desc_t *md = cpu_query(pd, dnnl_query_diff_src_md);
    if (!dnnl_memory_desc_equal(md, cpu_order(op->in)))
        exit(fail(SYSTEM_FAILED, "layer \"%s\": oneDNN gave its gradient another order",
                  op->layer->name));
    dnnl_memory_t target = cpu_grad_target(cpu, op, md);
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_SRC, cpu_data(cpu, op->in));
    statistics(cpu, op, s);
    cpu_arg(s, DNNL_ARG_DIFF_DST, cpu_grad(cpu, op->out));
    cpu_arg(s, DNNL_ARG_SCALE, per_channel(cpu, op, op->weight));
    cpu_arg(s, DNNL_ARG_SHIFT, per_channel(cpu, op, op->bias));
    if (relu)
        cpu_arg(s, DNNL_ARG_WORKSPACE, state->workspace);
    cpu_arg(s, DNNL_ARG_DIFF_SRC, target);
    cpu_arg(s, DNNL_ARG_DIFF_SCALE, per_channel(cpu, op, op->weight_grad));
    cpu_arg(s, DNNL_ARG_DIFF_SHIFT, per_channel(cpu, op, op->bias_grad));
    append_missing(cpu, op, md, target);
    cpu_grad_done(cpu, op, md, target);
}
