/* cpu_conv.c: convolutions and the linear layer as oneDNN primitives.
 *
 * oneDNN chooses every order. The weight's order in the arenas is the one forward likes; backward
 * reads a reordered copy, or reorders its gradient, only where it likes another. */
#include "trainer/cpu.h"

struct geometry {
    dnnl_memory_desc_t in, out, weight, bias; /* in, out, weight: any order */
    dnnl_dims_t strides, pad;
};

static struct geometry geometry(const struct layer *l, struct shape in, struct shape out) {
    bool conv = l->kind == LAYER_CONV;
    int k = conv ? l->kernel : 1;
    struct geometry g = {.strides = {1, 1}, .pad = {l->pad, l->pad}};
    dnnl_memory_desc_t md = cpu_plain(4, (int[]){in.n, in.c, in.h, in.w});
    g.in = cpu_any(&md);
    md = cpu_plain(conv ? 4 : 2, (int[]){out.n, out.c, out.h, out.w});
    g.out = conv ? cpu_any(&md) : md;
    md = cpu_plain(4, (int[]){l->channels, in.c, k, k});
    g.weight = cpu_any(&md);
    g.bias = cpu_plain(1, (int[]){l->channels});
    return g;
}

static dnnl_primitive_desc_t describe_forward(struct cpu *cpu, const struct layer *l,
                                              const struct geometry *g) {
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    dnnl_convolution_desc_t d;
    DNNL_CHECK(dnnl_primitive_attr_create(&attr));
    DNNL_CHECK(dnnl_post_ops_create(&post));
    if (l->relu)
        DNNL_CHECK(dnnl_post_ops_append_eltwise(post, 1, dnnl_eltwise_relu, 0, 0));
    DNNL_CHECK(dnnl_primitive_attr_set_post_ops(attr, post));
    DNNL_CHECK(dnnl_convolution_forward_desc_init(
        &d, dnnl_forward_training, dnnl_convolution_direct, &g->in, &g->weight,
        l->bias ? &g->bias : NULL, &g->out, g->strides, g->pad, g->pad));
    dnnl_primitive_desc_t pd = cpu_describe(cpu, &d, attr, NULL);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
    return pd;
}

static dnnl_primitive_desc_t describe_linear(struct cpu *cpu, const struct layer *l,
                                             const struct geometry *g,
                                             const dnnl_memory_desc_t *in) {
    dnnl_inner_product_desc_t d;
    DNNL_CHECK(dnnl_inner_product_forward_desc_init(&d, dnnl_forward_training, in, &g->weight,
                                                    l->bias ? &g->bias : NULL, &g->out));
    return cpu_describe(cpu, &d, NULL, NULL);
}

void cpu_weight_order(struct cpu *cpu, const struct layer *l, struct shape in,
                      dnnl_memory_desc_t *md) {
    int shrink = l->kind == LAYER_CONV ? 2 * l->pad - l->kernel + 1 : 0;
    struct geometry g =
        geometry(l, in, (struct shape){in.n, l->channels, in.h + shrink, in.w + shrink});
    dnnl_primitive_desc_t pd =
        l->kind == LAYER_CONV ? describe_forward(cpu, l, &g) : describe_linear(cpu, l, &g, &g.in);
    *md = *cpu_query(pd, dnnl_query_weights_md);
}

/* Arguments that forward primitives of both kinds share. */
static void forward_step(struct cpu *cpu, struct op *op, dnnl_primitive_desc_t pd,
                         const struct geometry *g) {
    dnnl_memory_t in = cpu_as(cpu, op, CPU_FORWARD, cpu_order(op->in), cpu_data(cpu, op->in),
                              cpu_query(pd, dnnl_query_src_md));
    dnnl_memory_t weight = cpu_as(cpu, op, CPU_FORWARD, op->shape->layout,
                                  cpu_memory(cpu, op->shape->layout, op->weight),
                                  cpu_query(pd, dnnl_query_weights_md));
    struct cpu_step *s = cpu_step(op, CPU_FORWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_SRC, in);
    cpu_arg(s, DNNL_ARG_WEIGHTS, weight);
    if (op->bias)
        cpu_arg(s, DNNL_ARG_BIAS, cpu_memory(cpu, &g->bias, op->bias));
    cpu_arg(s, DNNL_ARG_DST, cpu_data(cpu, op->out));
}

void cpu_conv_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    struct geometry g = geometry(op->layer, op->in->shape, op->out->shape);
    state->hint = describe_forward(cpu, op->layer, &g);
    cpu_tensor_open(cpu, op->out, cpu_query(state->hint, dnnl_query_dst_md));
    forward_step(cpu, op, state->hint, &g);
}

void cpu_linear_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    struct geometry g = geometry(op->layer, op->in->shape, op->out->shape);
    state->hint = describe_linear(cpu, op->layer, &g, cpu_order(op->in));
    cpu_tensor_open(cpu, op->out, &g.out);
    forward_step(cpu, op, state->hint, &g);
}

/* Appends the primitive that computes weight and bias gradients. A gradient that is not wanted but
 * comes with the other goes to scratch memory. */
static void weight_step(struct cpu *cpu, struct op *op, dnnl_primitive_desc_t pd,
                        const struct geometry *g) {
    dnnl_memory_t in = cpu_as(cpu, op, CPU_BACKWARD, cpu_order(op->in), cpu_data(cpu, op->in),
                              cpu_query(pd, dnnl_query_src_md));
    dnnl_memory_t grad = cpu_as(cpu, op, CPU_BACKWARD, cpu_order(op->out), cpu_grad(cpu, op->out),
                                cpu_query(pd, dnnl_query_diff_dst_md));
    const dnnl_memory_desc_t *md = cpu_query(pd, dnnl_query_diff_weights_md);
    bool direct = op->weight_wanted && dnnl_memory_desc_equal(md, op->shape->layout);
    dnnl_memory_t arena = cpu_memory(cpu, op->shape->layout, op->weight_grad);
    dnnl_memory_t target = direct ? arena : cpu_memory(cpu, md, NULL);
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_SRC, in);
    cpu_arg(s, DNNL_ARG_DIFF_DST, grad);
    cpu_arg(s, DNNL_ARG_DIFF_WEIGHTS, target);
    if (op->bias_wanted)
        cpu_arg(s, DNNL_ARG_DIFF_BIAS, cpu_memory(cpu, &g->bias, op->bias_grad));
    if (op->weight_wanted && !direct)
        cpu_reorder(cpu, op, CPU_BACKWARD, md, target, op->shape->layout, arena);
}

static void data_step(struct cpu *cpu, struct op *op, dnnl_primitive_desc_t pd) {
    dnnl_memory_t weight = cpu_as(cpu, op, CPU_BACKWARD, op->shape->layout,
                                  cpu_memory(cpu, op->shape->layout, op->weight),
                                  cpu_query(pd, dnnl_query_weights_md));
    dnnl_memory_t grad = cpu_as(cpu, op, CPU_BACKWARD, cpu_order(op->out), cpu_grad(cpu, op->out),
                                cpu_query(pd, dnnl_query_diff_dst_md));
    const dnnl_memory_desc_t *md = cpu_query(pd, dnnl_query_diff_src_md);
    dnnl_memory_t target = cpu_grad_target(cpu, op, md);
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_DIFF_DST, grad);
    cpu_arg(s, DNNL_ARG_WEIGHTS, weight);
    cpu_arg(s, DNNL_ARG_DIFF_SRC, target);
    cpu_grad_done(cpu, op, md, target);
}

void cpu_conv_backward_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    struct geometry g = geometry(op->layer, op->in->shape, op->out->shape);
    dnnl_convolution_desc_t d;
    if (op->layer->relu)
        cpu_step(op, CPU_BACKWARD)->run = cpu_relu_mask;
    if (op->weight_wanted || op->bias_wanted) {
        DNNL_CHECK(dnnl_convolution_backward_weights_desc_init(
            &d, dnnl_convolution_direct, &g.in, &g.weight, op->bias_wanted ? &g.bias : NULL, &g.out,
            g.strides, g.pad, g.pad));
        weight_step(cpu, op, cpu_describe(cpu, &d, NULL, state->hint), &g);
    }
    if (op->in_grad) {
        DNNL_CHECK(dnnl_convolution_backward_data_desc_init(
            &d, dnnl_convolution_direct, &g.in, &g.weight, &g.out, g.strides, g.pad, g.pad));
        data_step(cpu, op, cpu_describe(cpu, &d, NULL, state->hint));
    }
}

void cpu_linear_backward_open(struct cpu *cpu, struct op *op) {
    struct cpu_op *state = op->state;
    struct geometry g = geometry(op->layer, op->in->shape, op->out->shape);
    dnnl_inner_product_desc_t d;
    DNNL_CHECK(dnnl_inner_product_backward_weights_desc_init(
        &d, cpu_order(op->in), &g.weight, op->bias_wanted ? &g.bias : NULL, &g.out));
    weight_step(cpu, op, cpu_describe(cpu, &d, NULL, state->hint), &g);
    if (op->in_grad) {
        DNNL_CHECK(
            dnnl_inner_product_backward_data_desc_init(&d, cpu_order(op->in), &g.weight, &g.out));
        data_step(cpu, op, cpu_describe(cpu, &d, NULL, state->hint));
    }
}
