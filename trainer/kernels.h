/* kernels: what the CUDA backend computes by kernels of its own. Convolutions, BatchNorm and the
 * linear layer are cuDNN's.
 *
 * Activations are NHWC, in one of three types; arithmetic inside is float. All pointers are to
 * device memory of the caller. Activations, gradients, arenas and the workspace begin at a multiple
 * of 16 bytes; their counts may be anything. Each launcher puts its work on the stream and returns
 * at once: 0, or SYSTEM_FAILED after a report where the device refused the launch. A fault while a
 * kernel runs shows at the stream's next synchronisation.
 *
 * What changes from step to step (seed, loss scale, learning rates, Adam's corrections) is read
 * from device memory, so that a captured step can be replayed. The same inputs give the same bits.
 *
 * accumulate: the result is added to what out holds (op.accumulate in backend.h). */
#ifndef DDPIPE_KERNELS_H
#define DDPIPE_KERNELS_H

#include "trainer/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

enum kernels_type { KERNELS_FP32, KERNELS_BF16, KERNELS_FP16 };

/* out (pixels,P) = in (pixels,C) · scale[c] + shift[c], P = C rounded up to a multiple of 8, the
 * channels from C to P zero. pixels = N·H·W. scale, shift: C floats. */
int kernels_input(void *out, enum kernels_type type, const uint8_t *in, const float *scale,
                  const float *shift, size_t pixels, int channels, struct CUstream_st *stream);

/* out = a + b, count values each. out may be a, b or neither, in this and all that follow up to
 * kernels_swap. */
int kernels_add(void *out, const void *a, const void *b, enum kernels_type type, size_t count,
                struct CUstream_st *stream);

/* out = in · factor: LAYER_SCALE forward, and backward on gradients. */
int kernels_scale(void *out, const void *in, enum kernels_type type, size_t count, float factor,
                  bool accumulate, struct CUstream_st *stream);

/* out[i] = in[i] / (1-p), or 0 with probability p, 0 ≤ p < 1: a function of (*seed, i mod 2^32)
 * alone, the one of cpu_loops.c. Forward on values; backward, with the same seed, on gradients.
 */
int kernels_dropout(void *out, const void *in, enum kernels_type type, size_t count, float p,
                    const uint64_t *seed, bool accumulate, struct CUstream_st *stream);

/* dy = y > 0 ? dy : 0, y the output of the ReLU. */
int kernels_relu_mask(void *dy, const void *y, enum kernels_type type, size_t count,
                      struct CUstream_st *stream);

/* y = x·Φ(x), Φ the normal distribution's (Hendrycks, Gimpel, arXiv 1606.08415, not the tanh
 * form). */
int kernels_gelu(void *y, const void *x, enum kernels_type type, size_t count,
                 struct CUstream_st *stream);

/* dx = dy·(Φ(x) + x·φ(x)) */
int kernels_gelu_backward(void *dx, const void *x, const void *dy, enum kernels_type type,
                          size_t count, bool accumulate, struct CUstream_st *stream);

/* a += (to - a)·fraction */
int kernels_lerp(float *a, const float *to, size_t count, float fraction,
                 struct CUstream_st *stream);

/* out (type) = in (float), to nearest, ties to even; and back, which is exact. out is not in. */
int kernels_from_float(void *out, enum kernels_type type, const float *in, size_t count,
                       struct CUstream_st *stream);
int kernels_to_float(float *out, const void *in, enum kernels_type type, size_t count,
                     struct CUstream_st *stream);

/* Exchanges the contents. */
int kernels_swap(float *a, float *b, size_t count, struct CUstream_st *stream);

/* LAYER_MAXPOOL: out (N,H/kernel,W/kernel,C), the rest of a map cut off; kernel 0: out (N,1,1,C),
 * in's whole map, H·W ≤ 65536. index, of out's shape, gets the maximum's place in its window (row
 * times the window's width + column; the first of equals), which backward reads. */
int kernels_maxpool(void *out, uint16_t *index, const void *in, enum kernels_type type,
                    struct shape in_shape, int kernel, struct CUstream_st *stream);
int kernels_maxpool_backward(void *dx, const void *dy, const uint16_t *index,
                             enum kernels_type type, struct shape in_shape, int kernel,
                             bool accumulate, struct CUstream_st *stream);

/* LAYER_AVGPOOL: the same with the mean of the window. */
int kernels_avgpool(void *out, const void *in, enum kernels_type type, struct shape in_shape,
                    int kernel, struct CUstream_st *stream);
int kernels_avgpool_backward(void *dx, const void *dy, enum kernels_type type,
                             struct shape in_shape, int kernel, bool accumulate,
                             struct CUstream_st *stream);

/* Sums over the batches since they were zeroed. */
struct kernels_totals {
    double loss_sum; /* as in struct backend_loss, */
    int64_t correct; /* this too */
    int64_t count;   /* images */
};

/* Softmax cross-entropy as backend.h's loss. logits (N,stride), of which classes ≤ stride are
 * read. grad (N,stride): gradient of the batch's mean · *loss_scale, zero from classes to stride;
 * NULL: not wanted. loss_scale NULL: 1. Adds the batch to totals. */
int kernels_loss(struct kernels_totals *totals, void *grad, const void *logits,
                 enum kernels_type type, const int32_t *labels, int n, int classes, int stride,
                 float smoothing, const float *loss_scale, struct CUstream_st *stream);

/* bias_grad (C) = Σ dy (rows,C) over the rows, rows = N·H·W. workspace:
 * kernels_bias_grad_floats(rows, C) floats, its contents free after the kernel. */
size_t kernels_bias_grad_floats(size_t rows, int channels);
int kernels_bias_grad(float *bias_grad, const void *dy, enum kernels_type type, size_t rows,
                      int channels, float *workspace, struct CUstream_st *stream);

/* BatchNorm's running statistics (C) from the batch's mean and 1/√(variance + eps) (C) over
 * values = N·H·W values each: running += (batch - running)·momentum, the variance unbiased
 * (torch.nn.BatchNorm2d). */
int kernels_running(float *running_mean, float *running_variance, const float *mean,
                    const float *rstd, int channels, size_t values, float eps, float momentum,
                    struct CUstream_st *stream);

/* BatchNorm's running statistics folded into a scale and a shift per channel (C each): out_scale =
 * scale·rstd, out_shift = shift - mean·rstd·scale, rstd = 1/√(variance + eps). No array of out is
 * an input. */
int kernels_fold(float *out_scale, float *out_shift, const float *scale, const float *shift,
                 const float *mean, const float *variance, int channels, float eps,
                 struct CUstream_st *stream);

/* *flag becomes 1 where any of grad is infinite or not a number; else it stays. */
int kernels_not_finite(int32_t *flag, const float *grad, size_t count, struct CUstream_st *stream);

/* What the optimizer reads from device memory beside the groups. */
struct kernels_step {
    float scale;            /* of the gradient: also undoes the loss scale */
    float correction1;      /* Adam's, at step t: 1 - beta1^t */
    float root_correction2; /* √(1 - beta2^t) */
};

/* FP16's loss scale as torch.amp.GradScaler keeps it, in device memory: twice as large after 2000
 * good steps in a row, half as large after one that overflowed; 65536 at first. It neither grows to
 * infinity nor shrinks below the normal numbers. */
struct kernels_scaler {
    float scale;   /* kernels_loss's loss_scale */
    int32_t good;  /* steps in a row */
    int32_t found; /* kernels_not_finite's flag */
    int32_t skip;  /* kernels_arena's */
};

/* Between the search of the gradients and the update: skip = found, found = 0; step->scale is
 * divided by scale as it was in this step's loss; then scale and good become the next step's. */
int kernels_scaler_update(struct kernels_scaler *s, struct kernels_step *step,
                          struct CUstream_st *stream);

/* The arenas of one update. */
struct kernels_arena {
    float *w;                           /* weights */
    const float *grad;                  /* all reduced */
    size_t count;                       /* floats of each: all groups end in it */
    void *copy;                         /* weights in copy_type, written along; NULL: none */
    enum kernels_type copy_type;        /* not KERNELS_FP32 */
    const struct backend_group *groups; /* device memory; ascending, disjoint. What lies between
                                         * them stays */
    int group_count;
    const struct kernels_step *step;
    const int32_t *skip; /* *skip not 0: nothing is updated (kernels_not_finite); NULL: never */
};

/* backend.h's sgd and adam; v, m of arena.count floats. The struct is on the host. */
int kernels_sgd(const struct kernels_arena *arena, float *v, float momentum, bool nesterov,
                struct CUstream_st *stream);
int kernels_adam(const struct kernels_arena *arena, float *m, float *v, float beta1, float beta2,
                 float eps, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
