/* cudnn_desc.c: see cudnn_desc.h. In: shapes, types, and what connects to what; out: finalised
 * descriptors, and the list of operations that make the graph. */
#include "trainer/cudnn_desc.h"
#include <assert.h>
#include <float.h>
#include <stdio.h>

/* Ids of virtual tensors: only unique. */
enum { FIRST_VIRTUAL = 1000 };

bool cudnn_desc_ok(struct cudnn_desc *d, cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS)
        return true;
    if (d->status == CUDNN_STATUS_SUCCESS) {
        d->status = status;
        /* The text may be an older error's; the status is this one's. */
        char text[400] = "";
        cudnnGetLastErrorString(text, sizeof text);
        snprintf(d->reason, sizeof d->reason, "%s: %s", cudnnGetErrorString(status), text);
        for (char *p = d->reason; *p; p++)
            *p = *p == '\n' || *p == '\t' ? ' ' : *p;
    }
    return false;
}

cudnnBackendDescriptor_t cudnn_desc_open(struct cudnn_desc *d, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t desc = NULL;
    if (d->status == CUDNN_STATUS_SUCCESS &&
        cudnn_desc_ok(d, cudnnBackendCreateDescriptor(type, &desc)))
        cudnn_desc_keep(d, desc);
    return desc;
}

void cudnn_desc_keep(struct cudnn_desc *d, cudnnBackendDescriptor_t desc) {
    assert(d->count < CUDNN_DESC_MAX);
    d->all[d->count++] = desc;
}

void cudnn_desc_set(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                    const void *values) {
    if (d->status == CUDNN_STATUS_SUCCESS)
        cudnn_desc_ok(d, cudnnBackendSetAttribute(desc, name, type, n, values));
}

void cudnn_desc_set_desc(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                         cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
    cudnn_desc_set(d, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

int64_t cudnn_desc_get(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t n, void *values) {
    int64_t count = 0;
    if (d->status != CUDNN_STATUS_SUCCESS ||
        !cudnn_desc_ok(d, cudnnBackendGetAttribute(desc, name, type, n, &count, values)))
        return 0;
    return count;
}

cudnnBackendDescriptor_t cudnn_desc_finalize(struct cudnn_desc *d, cudnnBackendDescriptor_t desc) {
    if (d->status == CUDNN_STATUS_SUCCESS)
        cudnn_desc_ok(d, cudnnBackendFinalize(desc));
    return d->status == CUDNN_STATUS_SUCCESS ? desc : NULL;
}

void cudnn_desc_close(struct cudnn_desc *d) {
    while (d->count > 0)
        cudnnBackendDestroyDescriptor(d->all[--d->count]);
    *d = (struct cudnn_desc){0};
}

static void set_type(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                     cudnnBackendAttributeName_t name, cudnnDataType_t type) {
    cudnn_desc_set(d, desc, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

/* Attributes whose values are descriptors, with as many as there are. */
struct link {
    cudnnBackendAttributeName_t name;
    cudnnBackendDescriptor_t desc;
};

static void set_links(struct cudnn_desc *d, cudnnBackendDescriptor_t desc, const struct link *links,
                      int count) {
    for (int i = 0; i < count; i++)
        cudnn_desc_set_desc(d, desc, links[i].name, links[i].desc);
}

static void append(struct cudnn_desc *d, cudnnBackendDescriptor_t operation) {
    assert(d->operation_count < CUDNN_DESC_OPERATIONS_MAX);
    d->operations[d->operation_count++] = cudnn_desc_finalize(d, operation);
}

static cudnnBackendDescriptor_t tensor(struct cudnn_desc *d, int64_t id, int rank,
                                       const int64_t *dims, const int64_t *strides,
                                       cudnnDataType_t type, bool by_value) {
    cudnnBackendDescriptor_t t = cudnn_desc_open(d, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool virtual = id == CUDNN_DESC_VIRTUAL;
    int64_t alignment = 16, unique = virtual ? FIRST_VIRTUAL + d->count : id, vector_count = 1;
    cudnnBackendTensorReordering_t reordering = CUDNN_TENSOR_REORDERING_NONE;
    set_type(d, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &unique);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_TYPE_INT64, 1, &vector_count);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &virtual);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    cudnn_desc_set(d, t, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1,
                   &reordering);
    if (!virtual) {
        assert(d->real_count < CUDNN_DESC_REAL_MAX);
        d->real[d->real_count++] = id;
    }
    return cudnn_desc_finalize(d, t);
}

cudnnBackendDescriptor_t cudnn_desc_tensor(struct cudnn_desc *d, int64_t id, struct shape s,
                                           cudnnDataType_t type) {
    int64_t row = (int64_t)s.w * s.c;
    return tensor(d, id, 4, (int64_t[]){s.n, s.c, s.h, s.w}, (int64_t[]){s.h * row, 1, row, s.c},
                  type, false);
}

cudnnBackendDescriptor_t cudnn_desc_scalar(struct cudnn_desc *d, int64_t id) {
    static const int64_t ones[] = {1, 1, 1, 1};
    return tensor(d, id, 4, ones, ones, CUDNN_DATA_FLOAT, true);
}

static cudnnBackendDescriptor_t conv_settings(struct cudnn_desc *d, int pad) {
    cudnnBackendDescriptor_t c = cudnn_desc_open(d, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    int64_t spatial = 2, pads[] = {pad, pad}, ones[] = {1, 1};
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    set_type(d, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_desc_set(d, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    cudnn_desc_set(d, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    cudnn_desc_set(d, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    cudnn_desc_set(d, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    cudnn_desc_set(d, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    cudnn_desc_set(d, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones);
    return cudnn_desc_finalize(d, c);
}

/* cuDNN names the same attributes anew for each direction. */
static const struct conv_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, settings, alpha, beta;
} conv_names[] = {
    [CUDNN_DESC_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [CUDNN_DESC_CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [CUDNN_DESC_CONV_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

void cudnn_desc_conv(struct cudnn_desc *d, enum cudnn_desc_conv direction,
                     cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w,
                     cudnnBackendDescriptor_t y, int pad, bool accumulate) {
    const struct conv_names *n = &conv_names[direction];
    cudnnBackendDescriptor_t op = cudnn_desc_open(d, n->type);
    float alpha = 1, beta = accumulate ? 1 : 0;
    set_links(
        d, op,
        (struct link[]){{n->x, x}, {n->w, w}, {n->y, y}, {n->settings, conv_settings(d, pad)}}, 4);
    cudnn_desc_set(d, op, n->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    cudnn_desc_set(d, op, n->beta, CUDNN_TYPE_FLOAT, 1, &beta);
    append(d, op);
}

static cudnnBackendDescriptor_t pointwise(struct cudnn_desc *d, cudnnPointwiseMode_t mode) {
    cudnnBackendDescriptor_t p = cudnn_desc_open(d, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_desc_set(d, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(d, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    if (mode == CUDNN_POINTWISE_RELU_FWD || mode == CUDNN_POINTWISE_RELU_BWD) {
        double lower = 0, upper = DBL_MAX, slope = 0;
        cudnn_desc_set(d, p, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_DOUBLE, 1, &lower);
        cudnn_desc_set(d, p, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, CUDNN_TYPE_DOUBLE, 1, &upper);
        cudnn_desc_set(d, p, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1,
                       &slope);
    }
    cudnn_desc_finalize(d, p);
    cudnnBackendDescriptor_t op = cudnn_desc_open(d, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    float alpha = 1;
    cudnn_desc_set_desc(d, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    cudnn_desc_set(d, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &alpha);
    cudnn_desc_set(d, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &alpha);
    return op;
}

static void binary(struct cudnn_desc *d, cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                   cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y) {
    cudnnBackendDescriptor_t op = pointwise(d, mode);
    set_links(d, op,
              (struct link[]){{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                              {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
                              {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}},
              3);
    append(d, op);
}

void cudnn_desc_add(struct cudnn_desc *d, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                    cudnnBackendDescriptor_t y) {
    binary(d, CUDNN_POINTWISE_ADD, x, b, y);
}

void cudnn_desc_multiply(struct cudnn_desc *d, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y) {
    binary(d, CUDNN_POINTWISE_MUL, x, b, y);
}

void cudnn_desc_relu(struct cudnn_desc *d, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y) {
    cudnnBackendDescriptor_t op = pointwise(d, CUDNN_POINTWISE_RELU_FWD);
    set_links(d, op,
              (struct link[]){{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                              {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}},
              2);
    append(d, op);
}

void cudnn_desc_relu_backward(struct cudnn_desc *d, cudnnBackendDescriptor_t x,
                              cudnnBackendDescriptor_t dy, cudnnBackendDescriptor_t dx) {
    cudnnBackendDescriptor_t op = pointwise(d, CUDNN_POINTWISE_RELU_BWD);
    set_links(d, op,
              (struct link[]){{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                              {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy},
                              {CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx}},
              3);
    append(d, op);
}

static const cudnnBackendNormMode_t batch_norm = CUDNN_BATCH_NORM;

void cudnn_desc_norm_forward(struct cudnn_desc *d, const struct cudnn_desc_norm *norm,
                             cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t eps,
                             cudnnBackendDescriptor_t y) {
    cudnnBackendDescriptor_t op =
        cudnn_desc_open(d, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
    cudnnBackendNormFwdPhase_t phase = eps ? CUDNN_NORM_FWD_TRAINING : CUDNN_NORM_FWD_INFERENCE;
    cudnn_desc_set(d, op, CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &batch_norm);
    cudnn_desc_set(d, op, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1,
                   &phase);
    set_links(d, op,
              (struct link[]){{CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x},
                              {CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, norm->scale},
                              {CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, norm->shift},
                              {CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, norm->mean},
                              {CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, norm->inv_std},
                              {CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y},
                              {CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, eps}},
              eps ? 7 : 6);
    append(d, op);
}

void cudnn_desc_norm_backward(struct cudnn_desc *d, const struct cudnn_desc_norm *norm,
                              cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t dy,
                              cudnnBackendDescriptor_t dx, cudnnBackendDescriptor_t dscale,
                              cudnnBackendDescriptor_t dshift) {
    cudnnBackendDescriptor_t op =
        cudnn_desc_open(d, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
    cudnn_desc_set(d, op, CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &batch_norm);
    set_links(d, op,
              (struct link[]){{CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, norm->mean},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, norm->inv_std},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dy},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, norm->scale},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, dscale},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, dshift},
                              {CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx}},
              8);
    append(d, op);
}
