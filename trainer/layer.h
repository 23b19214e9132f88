/* layer: one row of a network's table, independent of batch size and device. */
#ifndef DDPIPE_LAYER_H
#define DDPIPE_LAYER_H

#include <stdbool.h>

enum layer_kind {
    LAYER_CONV,      /* weight (O,I,K,K), stride 1, zero padding */
    LAYER_BATCHNORM, /* scale, shift (C); running mean and variance */
    LAYER_GELU,      /* exact: x·Φ(x) */
    LAYER_MAXPOOL,   /* stride = kernel, no padding, rest cut off; kernel 0: the whole map */
    LAYER_AVGPOOL,   /* the same */
    LAYER_DROPOUT,   /* zeroes with probability p, else × 1/(1-p) */
    LAYER_ADD,       /* in + in2 */
    LAYER_LINEAR,    /* weight (O,I), on maps of 1×1 */
    LAYER_SCALE,     /* × p */
};

enum layer_init {
    INIT_PYTORCH, /* weights U(±1/√fan_in), that is kaiming_uniform(a=√5); bias U(±1/√fan_in) */
    INIT_DIRAC,  /* the same, then the first I filters pass their channel through */
    INIT_WHITEN, /* eigenvectors of the patch covariance and their negatives, see whiten.h; bias 0
                  */
};

enum { LAYER_INPUT = -1 };

struct layer {
    enum layer_kind kind;
    char name[48];    /* PyTorch's module path: parameters are name.weight, name.bias, … */
    int in, in2;      /* index of the layer whose output is read; LAYER_INPUT: the images */
    int channels;     /* of the output */
    int kernel, pad;  /* CONV, pools */
    bool bias;        /* CONV, LINEAR */
    bool relu;        /* CONV, BATCHNORM: max(0, ·) applied to the output */
    bool frozen;      /* CONV: weight; BATCHNORM: scale: kept as initialised */
    bool bias_frozen; /* CONV */
    float p;          /* DROPOUT: probability; SCALE: factor */
    float eps;        /* BATCHNORM */
    float momentum;   /* BATCHNORM: running = (1-momentum)·running + momentum·batch */
    enum layer_init init;
};

#endif
