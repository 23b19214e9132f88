/* init: a net's first weights, as PyTorch draws them (torch.nn.Conv2d and Linear: uniform within
 * ±1/√fan_in for weights and biases; BatchNorm: 1 and 0), a function of (seed, parameter). */
#ifndef DDPIPE_INIT_H
#define DDPIPE_INIT_H

#include "trainer/net.h"

enum { INIT_PATCH = 12 }; /* values in a 2×2 patch of 3 channels */

/* What the whitening layer needs to know of the data: E[p_i], E[p_i p_j] over 2×2 patches (c, dy,
 * dx) of raw pixels scaled to 0..1. */
struct init_patches {
    double mean[INIT_PATCH];
    double moment[INIT_PATCH][INIT_PATCH];
};

/* Call after net_normalise: whitening is of normalised pixels. patches may be NULL where no layer
 * is INIT_WHITEN. BAD_INPUT where the patches cannot be whitened. */
int init_weights(struct net *net, uint64_t seed, const struct init_patches *patches);

/* Filters (24,3,2,2): eigenvectors of the second moment of normalised patches, largest eigenvalue
 * first, each ÷ √(eigenvalue + 5e-4), then their negatives (airbench94, arXiv 2404.00498, 3.1).
 * Normalised value = scale[c]·255·p + shift[c]. */
void init_whiten(const struct init_patches *patches, const float *scale, const float *shift,
                 float *filters);

#endif
