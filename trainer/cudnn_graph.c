/* cudnn_graph.c: from a layer's shapes to the operations of its graphs, and running them. Plans for
 * them are made in cudnn_plan.c. In: a spec; out: a graph with plans. */
#include "trainer/cudnn_graph.h"
#include "lib/log.h"
#include "trainer/cudnn_plan.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

static cudnnDataType_t io_type(enum cudnn_graph_precision p) {
    return p == CUDNN_GRAPH_BF16   ? CUDNN_DATA_BFLOAT16
           : p == CUDNN_GRAPH_FP16 ? CUDNN_DATA_HALF
                                   : CUDNN_DATA_FLOAT;
}

static cudnnBackendDescriptor_t in_tensor(struct cudnn_graph *g, int64_t role) {
    return cudnn_desc_tensor(&g->desc, role, g->spec.in, io_type(g->spec.precision));
}

static cudnnBackendDescriptor_t out_tensor(struct cudnn_graph *g, int64_t role) {
    return cudnn_desc_tensor(&g->desc, role, g->spec.out, io_type(g->spec.precision));
}

/* Between two operations cuDNN keeps float, where its patterns allow it. */
static cudnnBackendDescriptor_t out_virtual(struct cudnn_graph *g) {
    return cudnn_desc_tensor(&g->desc, CUDNN_DESC_VIRTUAL, g->spec.out, CUDNN_DATA_FLOAT);
}

static cudnnBackendDescriptor_t per_channel(struct cudnn_graph *g, int64_t role,
                                            cudnnDataType_t type) {
    return cudnn_desc_tensor(&g->desc, role, (struct shape){1, g->spec.channels, 1, 1}, type);
}

static cudnnBackendDescriptor_t conv_weight(struct cudnn_graph *g, int64_t role) {
    const struct cudnn_graph_spec *s = &g->spec;
    return cudnn_desc_tensor(&g->desc, role,
                             (struct shape){s->out.c, s->in.c, s->kernel, s->kernel},
                             io_type(s->precision));
}

static void conv_forward(struct cudnn_graph *g) {
    const struct cudnn_graph_spec *s = &g->spec;
    bool last = !s->bias && !s->relu;
    cudnnBackendDescriptor_t y = last ? out_tensor(g, CUDNN_GRAPH_Y) : out_virtual(g);
    cudnn_desc_conv(&g->desc, CUDNN_DESC_CONV_FORWARD, in_tensor(g, CUDNN_GRAPH_X),
                    conv_weight(g, CUDNN_GRAPH_W), y, s->pad, false);
    if (s->bias) {
        cudnnBackendDescriptor_t sum = s->relu ? out_virtual(g) : out_tensor(g, CUDNN_GRAPH_Y);
        cudnn_desc_add(&g->desc, y, per_channel(g, CUDNN_GRAPH_B, io_type(s->precision)), sum);
        y = sum;
    }
    if (s->relu)
        cudnn_desc_relu(&g->desc, y, out_tensor(g, CUDNN_GRAPH_Y));
}

static void conv_data(struct cudnn_graph *g) {
    cudnn_desc_conv(&g->desc, CUDNN_DESC_CONV_DATA, in_tensor(g, CUDNN_GRAPH_DX),
                    conv_weight(g, CUDNN_GRAPH_W), out_tensor(g, CUDNN_GRAPH_DY), g->spec.pad,
                    g->spec.accumulate);
}

static void conv_weight_gradient(struct cudnn_graph *g) {
    cudnn_desc_conv(&g->desc, CUDNN_DESC_CONV_WEIGHT, in_tensor(g, CUDNN_GRAPH_X),
                    conv_weight(g, CUDNN_GRAPH_DW), out_tensor(g, CUDNN_GRAPH_DY), g->spec.pad,
                    false);
}

static void norm_forward(struct cudnn_graph *g) {
    struct cudnn_desc_norm norm = {
        .scale = per_channel(g, CUDNN_GRAPH_SCALE, CUDNN_DATA_FLOAT),
        .shift = per_channel(g, CUDNN_GRAPH_SHIFT, CUDNN_DATA_FLOAT),
        .mean = per_channel(g, CUDNN_GRAPH_MEAN, CUDNN_DATA_FLOAT),
        .inv_std = per_channel(g, CUDNN_GRAPH_INV_STD, CUDNN_DATA_FLOAT),
    };
    cudnnBackendDescriptor_t y = g->spec.relu ? out_virtual(g) : out_tensor(g, CUDNN_GRAPH_Y);
    cudnn_desc_norm_forward(&g->desc, &norm, in_tensor(g, CUDNN_GRAPH_X),
                            cudnn_desc_scalar(&g->desc, CUDNN_GRAPH_EPS), y);
    if (g->spec.relu)
        cudnn_desc_relu(&g->desc, y, out_tensor(g, CUDNN_GRAPH_Y));
}

/* The only pattern of three that cuDNN takes: it wants io type between the operations, and the same
 * x, scale, mean and inv_std in both normalisations. */
static void norm_backward(struct cudnn_graph *g) {
    cudnnDataType_t io = io_type(g->spec.precision);
    struct cudnn_desc_norm norm = {
        .scale = per_channel(g, CUDNN_GRAPH_SCALE, CUDNN_DATA_FLOAT),
        .mean = per_channel(g, CUDNN_GRAPH_MEAN, CUDNN_DATA_FLOAT),
        .inv_std = per_channel(g, CUDNN_GRAPH_INV_STD, CUDNN_DATA_FLOAT),
    };
    cudnnBackendDescriptor_t x = in_tensor(g, CUDNN_GRAPH_X), dy = out_tensor(g, CUDNN_GRAPH_DY);
    if (g->spec.relu) {
        cudnnBackendDescriptor_t y =
            cudnn_desc_tensor(&g->desc, CUDNN_DESC_VIRTUAL, g->spec.out, io);
        cudnnBackendDescriptor_t masked =
            cudnn_desc_tensor(&g->desc, CUDNN_DESC_VIRTUAL, g->spec.out, io);
        norm.shift = per_channel(g, CUDNN_GRAPH_SHIFT, CUDNN_DATA_FLOAT);
        cudnn_desc_norm_forward(&g->desc, &norm, x, NULL, y);
        cudnn_desc_relu_backward(&g->desc, y, dy, masked);
        dy = masked;
    }
    cudnn_desc_norm_backward(&g->desc, &norm, x, dy, in_tensor(g, CUDNN_GRAPH_DX),
                             per_channel(g, CUDNN_GRAPH_DSCALE, CUDNN_DATA_FLOAT),
                             per_channel(g, CUDNN_GRAPH_DSHIFT, CUDNN_DATA_FLOAT));
}

static void norm_inference(struct cudnn_graph *g) {
    cudnnBackendDescriptor_t product = out_virtual(g);
    cudnnBackendDescriptor_t sum = g->spec.relu ? out_virtual(g) : out_tensor(g, CUDNN_GRAPH_Y);
    cudnn_desc_multiply(&g->desc, in_tensor(g, CUDNN_GRAPH_X),
                        per_channel(g, CUDNN_GRAPH_SCALE, CUDNN_DATA_FLOAT), product);
    cudnn_desc_add(&g->desc, product, per_channel(g, CUDNN_GRAPH_SHIFT, CUDNN_DATA_FLOAT), sum);
    if (g->spec.relu)
        cudnn_desc_relu(&g->desc, sum, out_tensor(g, CUDNN_GRAPH_Y));
}

static const struct {
    const char *name;
    void (*build)(struct cudnn_graph *g);
} kinds[] = {
    [CUDNN_GRAPH_CONV_FORWARD] = {"conv-forward", conv_forward},
    [CUDNN_GRAPH_CONV_DATA] = {"conv-data", conv_data},
    [CUDNN_GRAPH_CONV_WEIGHT] = {"conv-weight", conv_weight_gradient},
    [CUDNN_GRAPH_NORM_FORWARD] = {"norm-forward", norm_forward},
    [CUDNN_GRAPH_NORM_BACKWARD] = {"norm-backward", norm_backward},
    [CUDNN_GRAPH_NORM_INFERENCE] = {"norm-inference", norm_inference},
};

static const char *const precision_names[] = {"fp32", "tf32", "bf16", "fp16"};

void cudnn_graph_describe(const struct cudnn_graph_spec *s, char text[CUDNN_GRAPH_TEXT]) {
    snprintf(text, CUDNN_GRAPH_TEXT, "%s %s %dx%dx%dx%d-%dx%dx%d k%d%s%s%s", kinds[s->kind].name,
             precision_names[s->precision], s->in.n, s->in.c, s->in.h, s->in.w, s->out.c, s->out.h,
             s->out.w, s->kernel, s->bias ? " +bias" : "", s->relu ? " +relu" : "",
             s->accumulate ? " +add" : "");
}

static bool is_norm(enum cudnn_graph_kind kind) {
    return kind == CUDNN_GRAPH_NORM_FORWARD || kind == CUDNN_GRAPH_NORM_BACKWARD ||
           kind == CUDNN_GRAPH_NORM_INFERENCE;
}

/* What cuDNN would take though it is wrong: it does not compare the length of BatchNorm's values
 * with C, and repeats a bias of one element. Other shapes it compares by itself. */
static bool fits(const struct cudnn_graph_spec *s) {
    return s->channels == s->out.c && (!is_norm(s->kind) || s->channels == s->in.c);
}

int cudnn_graph_open(struct cudnn_graph *g, const struct cudnn_graph_spec *spec,
                     const struct cudnn_desc *device, int64_t workspace_limit, int wanted) {
    char text[CUDNN_GRAPH_TEXT];
    cudnn_graph_describe(spec, text);
    *g = (struct cudnn_graph){.spec = *spec};
    if (!fits(spec))
        return fail(BAD_INPUT,
                    "layer \"%s\": %s: %d channels of parameters do not fit these shapes",
                    spec->layer, text, spec->channels);
    kinds[spec->kind].build(g);
    cudnn_plan_make(g, device, workspace_limit, wanted);
    int rc = 0;
    if (g->desc.status != CUDNN_STATUS_SUCCESS) {
        int category = CUDNN_STATUS_CATEGORY((int)g->desc.status);
        bool refused = category == CUDNN_STATUS_BAD_PARAM || category == CUDNN_STATUS_NOT_SUPPORTED;
        rc = fail(refused ? BAD_INPUT : SYSTEM_FAILED, "layer \"%s\": %s: cuDNN says: %s",
                  spec->layer, text, g->desc.reason);
    } else if (g->plan_count == 0) {
        rc = fail(BAD_INPUT,
                  "layer \"%s\": %s: cuDNN has no plan within %" PRId64 " bytes of workspace",
                  spec->layer, text, workspace_limit);
    }
    if (rc)
        cudnn_graph_close(g);
    return rc;
}

void cudnn_graph_close(struct cudnn_graph *g) {
    cudnn_desc_close(&g->desc);
    g->plan_count = 0;
}

int cudnn_graph_run(cudnnHandle_t handle, const struct cudnn_graph *g,
                    void *const pointers[CUDNN_GRAPH_ROLES], void *workspace) {
    struct cudnn_desc run = {0};
    void *bound[CUDNN_DESC_REAL_MAX];
    float eps = g->spec.eps;
    for (int i = 0; i < g->desc.real_count; i++) {
        int64_t role = g->desc.real[i];
        bound[i] = role == CUDNN_GRAPH_EPS ? &eps : pointers[role];
        assert(bound[i]);
    }
    cudnnBackendDescriptor_t pack = cudnn_desc_open(&run, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    cudnn_desc_set(&run, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                   g->desc.real_count, g->desc.real);
    cudnn_desc_set(&run, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                   g->desc.real_count, bound);
    cudnn_desc_set(&run, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                   &workspace);
    if (cudnn_desc_finalize(&run, pack))
        cudnn_desc_ok(&run, cudnnBackendExecute(handle, g->plans[g->chosen].plan, pack));
    int rc = run.status == CUDNN_STATUS_SUCCESS
                 ? 0
                 : fail(SYSTEM_FAILED, "layer \"%s\": %s: running it failed: %s", g->spec.layer,
                        kinds[g->spec.kind].name, run.reason);
    cudnn_desc_close(&run);
    return rc;
}

static struct cudnn_graph_spec spec_of(const struct op *op, enum cudnn_graph_kind kind,
                                       enum cudnn_graph_precision precision) {
    const struct layer *l = op->layer;
    bool forward = kind == CUDNN_GRAPH_CONV_FORWARD, norm = is_norm(kind);
    struct cudnn_graph_spec s = {
        .kind = kind,
        /* no matrix product, no TF32: one graph for both */
        .precision = norm && precision == CUDNN_GRAPH_TF32 ? CUDNN_GRAPH_FP32 : precision,
        .layer = l->name,
        .in = op->in->shape,
        .out = op->out->shape,
        .channels = l->channels,
        .kernel = norm                      ? 0
                  : l->kind == LAYER_LINEAR ? 1
                                            : l->kernel,
        .pad = norm ? 0 : l->pad,
        .bias = forward && l->bias,
        .relu = (forward || norm) && l->relu,
        .accumulate = kind == CUDNN_GRAPH_CONV_DATA && op->accumulate,
        .eps = kind == CUDNN_GRAPH_NORM_FORWARD ? l->eps : 0,
    };
    if (l->in == LAYER_INPUT)
        s.in.c = (s.in.c + 7) / 8 * 8;
    return s;
}

int cudnn_graph_list(const struct op *op, bool backward, enum cudnn_graph_precision precision,
                     struct cudnn_graph_spec specs[CUDNN_GRAPH_LIST_MAX], int *count) {
    enum layer_kind kind = op->layer->kind;
    bool norm = kind == LAYER_BATCHNORM, product = kind == LAYER_CONV || kind == LAYER_LINEAR;
    *count = 0;
    if (norm && backward && op->accumulate)
        return fail(BAD_INPUT, "layer \"%s\": BatchNorm cannot add to a gradient", op->layer->name);
    if (norm)
        specs[(*count)++] = spec_of(op,
                                    backward       ? CUDNN_GRAPH_NORM_BACKWARD
                                    : op->training ? CUDNN_GRAPH_NORM_FORWARD
                                                   : CUDNN_GRAPH_NORM_INFERENCE,
                                    precision);
    if (product && !backward)
        specs[(*count)++] = spec_of(op, CUDNN_GRAPH_CONV_FORWARD, precision);
    if (product && backward && op->weight_wanted)
        specs[(*count)++] = spec_of(op, CUDNN_GRAPH_CONV_WEIGHT, precision);
    if (product && backward && op->in_grad)
        specs[(*count)++] = spec_of(op, CUDNN_GRAPH_CONV_DATA, precision);
    return 0;
}
