/* backend: the contract of every operation on a device.
 *
 * Three backends keep it: backend_ref.c (plain loops, the truth), backend_cpu.c (oneDNN) and one
 * for CUDA. Activations and convolution weights lie in memory in whatever order the backend likes
 * ("native"); plain order is NCHW and OIHW. Everything is created before the first step: a forward
 * or backward pass allocates nothing. A failure inside a pass ends the process (SYSTEM_FAILED):
 * there is nothing to go back to. */
#ifndef DDPIPE_BACKEND_H
#define DDPIPE_BACKEND_H

#include "trainer/comm.h"
#include "trainer/layer.h"
#include <stddef.h>
#include <stdint.h>

struct backend;

struct shape {
    int n, c, h, w;
};

/* An activation of a plan and, where training wants it, the gradient of the loss by it. */
struct tensor {
    struct shape shape;
    size_t count; /* values, with the padding of the native order; padding is kept zero */
    float *data;  /* where the backend has other types than float: of those, on its device */
    float *grad;  /* native order of data; NULL: not wanted. May be shared, see LAYER_ADD */
    void *layout; /* the backend's own */
};

/* How a weight (O,I,K,K) lies in the arenas. */
struct weight {
    int o, i, k;
    size_t count; /* floats with padding */
    void *layout; /* the backend's own; NULL: plain */
};

/* One layer bound to tensors and parameters. */
struct op {
    const struct layer *layer;
    struct tensor *in, *in2, *out;
    const struct weight *shape;             /* CONV, LINEAR */
    float *weight, *weight_grad;            /* CONV, LINEAR: native; BATCHNORM: scale (C) */
    float *bias, *bias_grad;                /* CONV, LINEAR, or NULL; BATCHNORM: shift (C) */
    float *running_mean, *running_variance; /* BATCHNORM (C); variance unbiased, as PyTorch's */
    bool training;   /* batch statistics, dropout on, and what backward needs is kept */
    bool in_grad;    /* backward writes in->grad … */
    bool accumulate; /* … by adding to what an earlier op of this pass wrote */
    bool weight_wanted, bias_wanted; /* backward writes weight_grad, bias_grad */
    uint64_t seed;                   /* DROPOUT: set before each forward pass */
    /* BATCHNORM in training: where set, batch statistics are those of all ranks' batches together
     * (SyncBatchNorm), and this adds up x[count] over the ranks. weight_grad and bias_grad stay
     * this rank's part. */
    void (*sum)(void *arg, double *x, size_t count);
    void *sum_arg;
    void *state; /* the backend's own */
};

/* A stretch of the parameter arena with the same hyperparameters. */
struct backend_group {
    size_t begin, end; /* floats */
    float rate;        /* learning rate */
    float decay;       /* weight decay, added to the gradient as PyTorch does: g + decay·w */
};

struct backend_loss {
    double loss_sum; /* over images, natural logarithm */
    int64_t correct; /* arg max equals label (the first of equal logits counts) */
};

/* What a backend must know to talk to those of the other ranks. */
struct backend_ranks {
    int rank, world_size;
    double timeout_seconds;  /* of every wait for another rank */
    comm_exchange *exchange; /* comm.h */
    void *arg;
};

/* Collectives on memory that is not the host's. Every call is made by all ranks in the same order.
 * A failure, or a wait beyond the timeout, ends the process (SYSTEM_FAILED). */
struct backend_collectives {
    int (*join)(struct backend *b, const struct backend_ranks *ranks);
    /* x[count] becomes the sum over ranks, the same bits on every rank: after the work called
     * before it, and beside the work called after it, up to sums_wait. */
    void (*sum)(struct backend *b, float *x, size_t count);
    void (*sums_wait)(struct backend *b);
    /* In the order of the other work. all: (world_size·count, by rank) on root. */
    void (*broadcast)(struct backend *b, float *x, size_t count, int root);
    void (*gather)(struct backend *b, const float *x, float *all, size_t count, int root);
    void (*scatter)(struct backend *b, const float *all, float *x, size_t count, int root);
    /* The host's x[count ≤ 16] becomes the sum over ranks: on every rank, or (to >= 0) on that one
     * alone. Waits. */
    void (*sum_host)(struct backend *b, double *x, size_t count, int to);
};

struct backend_table {
    const char *name;

    /* Memory for parameters and the like: count floats, zeroed, aligned to 64 bytes; lives until
     * close. NULL after a report. */
    float *(*alloc)(struct backend *b, size_t count);
    /* Copies between it and the host, once all work on it that was started before is done. */
    void (*read)(struct backend *b, float *host, const float *from, size_t count);
    void (*write)(struct backend *b, float *to, const float *host, size_t count);

    /* Decides w->count and w->layout for a CONV or LINEAR that will see inputs of this shape. */
    int (*weight_open)(struct backend *b, const struct layer *layer, struct shape in,
                       struct weight *w);
    /* Plain order to native order and back, on the host; padding becomes zero. */
    void (*weight_put)(struct backend *b, const struct weight *w, const float *plain,
                       float *native);
    void (*weight_get)(struct backend *b, const struct weight *w, const float *native,
                       float *plain);

    /* Plans share one workspace, since only one runs at a time: begin makes the next op_open and
     * tensor calls take memory from its start. */
    int (*plan_begin)(struct backend *b);
    /* The images' tensor: shape is set, data is allocated. */
    int (*input_open)(struct backend *b, struct tensor *t);
    /* Chooses out's order, allocates out->data (out->shape is set) and prepares forward. */
    int (*op_open)(struct backend *b, struct op *op);
    /* Gives t a gradient of its own. */
    int (*grad_open)(struct backend *b, struct tensor *t);
    /* Prepares backward; every gradient it reads or writes has been opened. */
    int (*backward_open)(struct backend *b, struct op *op);
    void (*op_close)(struct backend *b, struct op *op);

    void (*forward)(struct backend *b, struct op *op);
    void (*backward)(struct backend *b, struct op *op);

    /* t (N,C,H,W) = pixels (N,H,W,C) · scale[c] + shift[c]. */
    void (*input)(struct backend *b, struct tensor *t, const uint8_t *pixels, const float *scale,
                  const float *shift);
    /* Cross-entropy of softmax(logits) against (1-smoothing)·onehot + smoothing/classes
     * (Szegedy et al., arXiv 1512.00567, section 7). Adds the batch to the sums that totals reads.
     * Writes logits->grad, the gradient of the batch's mean, where it is wanted. logits are plain
     * (N,classes). */
    void (*loss)(struct backend *b, struct tensor *logits, const int32_t *labels, float smoothing);
    /* The sums over the batches since the last call; waits for their work to be done. */
    struct backend_loss (*totals)(struct backend *b);
    /* Copies an activation (or its gradient) into plain NCHW order on the host. */
    void (*tensor_get)(struct backend *b, const struct tensor *t, const float *native,
                       float *plain);

    /* PyTorch's SGD: g = scale·grad + decay·w; v = momentum·v + g; w -= rate·(nesterov ?
     * g + momentum·v : v). */
    void (*sgd)(struct backend *b, float *w, const float *grad, float *v,
                const struct backend_group *groups, int count, float scale, float momentum,
                bool nesterov);
    /* PyTorch's Adam, t from 1: m, v the averages; eps beside the root of the corrected v. */
    void (*adam)(struct backend *b, float *w, const float *grad, float *m, float *v,
                 const struct backend_group *groups, int count, float scale, float beta1,
                 float beta2, float eps, int64_t t);
    /* a += (b - a)·fraction, over count floats. */
    void (*lerp)(struct backend *b, float *a, const float *to, float fraction, size_t count);
    /* a += x, over count floats. May be called by another thread while a pass runs. */
    void (*add)(struct backend *b, float *a, const float *x, size_t count);
    void (*copy)(struct backend *b, float *to, const float *from, size_t count);
    /* Exchanges the contents. */
    void (*swap)(struct backend *b, float *a, float *c, size_t count);

    /* NULL where every call is done when it returns. Else the calls between the two, from input to
     * sgd, adam or loss, are one step, which may be recorded and run again as a whole: steps of the
     * same plan and kind make the same calls, with other pixels, labels, seeds and rates alone. No
     * reading, writing or totals between. */
    void (*step_begin)(struct backend *b, const void *plan, int kind);
    void (*step_end)(struct backend *b);

    const struct backend_collectives *collectives; /* NULL: memory is the host's, for comm.h */

    void (*close)(struct backend **b);
};

struct backend {
    const struct backend_table *call;
    void *state;
    struct backend_loss totals; /* of the backends whose memory is the host's */
};

/* read, write, copy and totals of these. */
void backend_host_read(struct backend *b, float *host, const float *from, size_t count);
void backend_host_write(struct backend *b, float *to, const float *host, size_t count);
void backend_host_copy(struct backend *b, float *to, const float *from, size_t count);
struct backend_loss backend_host_totals(struct backend *b);

int backend_ref_open(struct backend **b);
/* threads: OpenMP threads that the rank may use. */
int backend_cpu_open(struct backend **b, int threads);

#endif
