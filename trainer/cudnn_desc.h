/* cudnn_desc: the descriptors that a cuDNN operation graph is made of.
 *
 * cuDNN's graph API knows one kind of object, the descriptor: created, given attributes, finalised,
 * then read-only. A struct cudnn_desc collects those of one graph. Its first error is kept; later
 * calls do nothing and return NULL, so a builder needs no checks between its lines.
 *
 * cuDNN takes an attribute that was never set for 0 without a word (a tensor's type is then float,
 * a normalisation LayerNorm), so every attribute that an operation has is set here; those left out
 * mean by their absence that the operation has no such input.
 *
 * Source: "cuDNN Graph API" and "Backend Descriptor Types" in the cuDNN 9 documentation. */
#ifndef DDPIPE_CUDNN_DESC_H
#define DDPIPE_CUDNN_DESC_H

#include "trainer/backend.h"
#include <cudnn.h>

enum { CUDNN_DESC_MAX = 64, CUDNN_DESC_OPERATIONS_MAX = 4, CUDNN_DESC_REAL_MAX = 12 };

struct cudnn_desc {
    cudnnStatus_t status; /* the first that was no success */
    char reason[512];     /* in cuDNN's words, on one line */
    int count, operation_count, real_count;
    cudnnBackendDescriptor_t all[CUDNN_DESC_MAX]; /* in order of creation */
    cudnnBackendDescriptor_t operations[CUDNN_DESC_OPERATIONS_MAX];
    int64_t real[CUDNN_DESC_REAL_MAX]; /* the ids of tensors that memory is bound to */
};

/* Tensors are bound to memory by their ids, which are 0 or more; CUDNN_DESC_VIRTUAL: a tensor that
 * lies between two operations of the graph and has no memory. */
enum { CUDNN_DESC_VIRTUAL = -1 };

/* The steps of making any descriptor. name: the first of an array of n values of this type. */
cudnnBackendDescriptor_t cudnn_desc_open(struct cudnn_desc *d, cudnnBackendDescriptorType_t type);
void cudnn_desc_set(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                    const void *values);
void cudnn_desc_set_desc(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                         cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value);
/* Reads up to n values of an attribute; how many there were, 0 after an error. values NULL: how
 * many there are. */
int64_t cudnn_desc_get(struct cudnn_desc *d, cudnnBackendDescriptor_t desc,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t n, void *values);
cudnnBackendDescriptor_t cudnn_desc_finalize(struct cudnn_desc *d, cudnnBackendDescriptor_t desc);
/* Keeps the first error; true where status is success. */
bool cudnn_desc_ok(struct cudnn_desc *d, cudnnStatus_t status);
/* Gives d a descriptor that was made elsewhere, to destroy. */
void cudnn_desc_keep(struct cudnn_desc *d, cudnnBackendDescriptor_t desc);
/* Destroys all descriptors; *d is empty afterwards. */
void cudnn_desc_close(struct cudnn_desc *d);

/* Activation (N,C,H,W), in memory NHWC; a convolution weight (O,I,K,K) by the same rule lies as
 * OKKI; a value per channel is (1,C,1,1). All begin at multiples of 16 bytes. */
cudnnBackendDescriptor_t cudnn_desc_tensor(struct cudnn_desc *d, int64_t id, struct shape shape,
                                           cudnnDataType_t type);
/* One float on the host, given with each run. */
cudnnBackendDescriptor_t cudnn_desc_scalar(struct cudnn_desc *d, int64_t id);

/* Operations, appended in the order of the calls. All compute in float. */

enum cudnn_desc_conv { CUDNN_DESC_CONV_FORWARD, CUDNN_DESC_CONV_DATA, CUDNN_DESC_CONV_WEIGHT };
/* x (N,I,H,W), w (O,I,K,K), y (N,O,H',W'), or their gradients; the one that the direction writes is
 * overwritten, or added to where accumulate. Stride 1, cross-correlation. */
void cudnn_desc_conv(struct cudnn_desc *d, enum cudnn_desc_conv direction,
                     cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w,
                     cudnnBackendDescriptor_t y, int pad, bool accumulate);
/* y = x + b or x · b; what has one element in a dimension is repeated along it. */
void cudnn_desc_add(struct cudnn_desc *d, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                    cudnnBackendDescriptor_t y);
void cudnn_desc_multiply(struct cudnn_desc *d, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y);
/* y = max(0, x); dx = dy where x > 0, else 0. */
void cudnn_desc_relu(struct cudnn_desc *d, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y);
void cudnn_desc_relu_backward(struct cudnn_desc *d, cudnnBackendDescriptor_t x,
                              cudnnBackendDescriptor_t dy, cudnnBackendDescriptor_t dx);

/* BatchNorm's values per channel, float (1,C,1,1). cuDNN does not check their C. */
struct cudnn_desc_norm {
    cudnnBackendDescriptor_t scale, shift, mean, inv_std; /* inv_std = 1/√(variance + eps) */
};
/* y = (x - mean)·inv_std·scale + shift. With eps: mean and inv_std are the batch's and written
 * (training); without (NULL): they are read. */
void cudnn_desc_norm_forward(struct cudnn_desc *d, const struct cudnn_desc_norm *norm,
                             cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t eps,
                             cudnnBackendDescriptor_t y);
/* Writes dx, and the gradients of scale and shift. */
void cudnn_desc_norm_backward(struct cudnn_desc *d, const struct cudnn_desc_norm *norm,
                              cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t dy,
                              cudnnBackendDescriptor_t dx, cudnnBackendDescriptor_t dscale,
                              cudnnBackendDescriptor_t dshift);

#endif
