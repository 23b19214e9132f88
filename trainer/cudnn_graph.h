/* cudnn_graph: the computations that the trainer leaves to cuDNN, as operation graphs with
 * execution plans: convolutions, and BatchNorm with the ReLU behind it. A linear layer is a
 * convolution of 1×1 on maps of 1×1: cuDNN's matrix products have no plan that keeps float inputs
 * whole, and are all compiled at run time. Everything else in a step is a kernel of our own, the
 * gradient of a bias too: cuDNN 9.19 sums only in an order that it does not promise to keep.
 *
 * A graph is made for one shape, before the first step. Plans are made for a device's properties,
 * which come from a handle or, so that all of it can be checked without a GPU, from a description
 * in JSON.
 *
 * Which tensor has which type. "io" is the type of activations, of their gradients and of the
 * weights that cuDNN reads: float for FP32 and TF32, else the 16-bit type. All sums are in float.
 *
 *   graph           io                     float
 *   CONV_FORWARD    x, weight, bias, y
 *   CONV_DATA       dy, weight, dx
 *   CONV_WEIGHT     x, dy, dweight
 *   NORM_FORWARD    x, y                   scale, shift, mean, inv_std
 *   NORM_BACKWARD   x, dy, dx              scale, shift, mean, inv_std, dscale, dshift
 *   NORM_INFERENCE  x, y                   scale, shift
 *
 * Weights and biases are read from a 16-bit copy of the float arena, scale and shift from the arena
 * itself. dweight has io type, for the caller to widen, because cuDNN writes float from 16-bit
 * inputs only by a plan that is compiled at run time and has a single candidate on Hopper. FP16
 * wants the loss scaled; BF16 does not. In 16 bits BatchNorm wants C to be a multiple of 8.
 *
 * Passed over are engines that lower the precision of inputs or sums, engines whose results differ
 * from run to run, and for FP32 products those on tensor cores, which would round inputs to TF32's
 * 10 bits. */
#ifndef DDPIPE_CUDNN_GRAPH_H
#define DDPIPE_CUDNN_GRAPH_H

#include "trainer/cudnn_desc.h"

enum cudnn_graph_precision {
    CUDNN_GRAPH_FP32,
    CUDNN_GRAPH_TF32,
    CUDNN_GRAPH_BF16,
    CUDNN_GRAPH_FP16
};

/* NORM_FORWARD is training's: mean and inv_std of the batch are outputs; running statistics are a
 * kernel of ours, since cuDNN does not say which variance it would average. NORM_BACKWARD behind a
 * ReLU computes y again from x, so that neither y nor a mask has to be kept. NORM_INFERENCE wants
 * the running statistics folded into its scale and shift: scale·inv_std, shift -
 * mean·inv_std·scale. */
enum cudnn_graph_kind {
    CUDNN_GRAPH_CONV_FORWARD,   /* y = x * weight [+ bias] [ReLU] */
    CUDNN_GRAPH_CONV_DATA,      /* dx = or += dy * weight, turned */
    CUDNN_GRAPH_CONV_WEIGHT,    /* dweight = dy * x */
    CUDNN_GRAPH_NORM_FORWARD,   /* y = (x - mean)·inv_std·scale + shift [ReLU] */
    CUDNN_GRAPH_NORM_BACKWARD,  /* dx, dscale, dshift [through ReLU] */
    CUDNN_GRAPH_NORM_INFERENCE, /* y = x·scale + shift [ReLU] */
};

/* The tensors of graphs. Activations lie as NHWC, weights as (O,K,K,I); the others have one value
 * per channel. Every one begins at a multiple of 16 bytes. */
enum cudnn_graph_role {
    CUDNN_GRAPH_X,
    CUDNN_GRAPH_Y,
    CUDNN_GRAPH_DX,
    CUDNN_GRAPH_DY,
    CUDNN_GRAPH_W,
    CUDNN_GRAPH_DW,
    CUDNN_GRAPH_B,
    CUDNN_GRAPH_SCALE,
    CUDNN_GRAPH_SHIFT,
    CUDNN_GRAPH_DSCALE,
    CUDNN_GRAPH_DSHIFT,
    CUDNN_GRAPH_MEAN,
    CUDNN_GRAPH_INV_STD,
    CUDNN_GRAPH_EPS, /* filled in by cudnn_graph_run */
    CUDNN_GRAPH_ROLES
};

struct cudnn_graph_spec {
    enum cudnn_graph_kind kind;
    enum cudnn_graph_precision precision;
    const char *layer;    /* its name, for reports; not copied */
    struct shape in, out; /* of the layer, forward */
    int channels;         /* length of bias, scale, shift, mean, inv_std, dscale, dshift */
    int kernel, pad;      /* CONV; 0 for NORM */
    bool bias;            /* CONV_FORWARD */
    bool relu;            /* CONV_FORWARD, NORM */
    bool accumulate;      /* CONV_DATA: add to dx */
    float eps;            /* NORM_FORWARD */
};

struct cudnn_graph_plan {
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes;
    int64_t engine;   /* cuDNN's number of the engine in use */
    bool tensor_core; /* uses them */
    bool compiled;    /* at run time: 0.3 to 4 s to make */
};

enum { CUDNN_GRAPH_PLANS_MAX = 16 };

struct cudnn_graph {
    struct cudnn_graph_spec spec;
    struct cudnn_desc desc; /* owns every descriptor, those of plans too */
    int plan_count;         /* in the order that cuDNN's heuristics prefer */
    int chosen;             /* the plan that runs: 0 until someone has timed them */
    struct cudnn_graph_plan plans[CUDNN_GRAPH_PLANS_MAX];
};

/* What plans are made for. handle: of the device in use; or NULL and the text of a description (see
 * tests/gpu/devices). SYSTEM_FAILED after a report. */
int cudnn_graph_device_open(struct cudnn_desc *device, cudnnHandle_t handle, const char *json);

/* Builds the graph and up to `wanted` plans that need no more than workspace_limit bytes. BAD_INPUT
 * after a report that names layer, shape and type where shapes do not fit or there is no plan;
 * SYSTEM_FAILED where cuDNN fails. Nothing stays open after a failure. */
int cudnn_graph_open(struct cudnn_graph *g, const struct cudnn_graph_spec *spec,
                     const struct cudnn_desc *device, int64_t workspace_limit, int wanted);
void cudnn_graph_close(struct cudnn_graph *g);

/* Runs the chosen plan on the handle's stream. pointers: device memory by role, those of the
 * graph's kind; workspace: the chosen plan's workspace_bytes, at a multiple of 16. Allocates
 * nothing on the device. SYSTEM_FAILED after a report. */
int cudnn_graph_run(cudnnHandle_t handle, const struct cudnn_graph *g,
                    void *const pointers[CUDNN_GRAPH_ROLES], void *workspace);

enum { CUDNN_GRAPH_LIST_MAX = 2 };

/* The graphs that an operation of a plan needs, forward or backward, in the order of their running;
 * none for the layers that are not cuDNN's. Images are expected with their channels padded to a
 * multiple of 8 (with zeros; weights too), as tensor cores want them. A convolution's ReLU is
 * undone by a kernel of ours before its backward graphs run. BAD_INPUT after a report where a
 * gradient that cannot be added to should be. */
int cudnn_graph_list(const struct op *op, bool backward, enum cudnn_graph_precision precision,
                     struct cudnn_graph_spec specs[CUDNN_GRAPH_LIST_MAX], int *count);

/* "conv-weight bf16 128x16x32x32-160x32x32 k3": what tells one graph from another. */
enum { CUDNN_GRAPH_TEXT = 96 };
void cudnn_graph_describe(const struct cudnn_graph_spec *spec, char text[CUDNN_GRAPH_TEXT]);

#endif
