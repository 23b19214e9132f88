/* twin: the same operation on the GPU and by the reference, for layers.c. The reference's tensors
 * hold, before each call, what the GPU's operation reads; afterwards what it wrote. */
#ifndef DDPIPE_TWIN_H
#define DDPIPE_TWIN_H

#include "tests/gpu/bounds.h"
#include "trainer/net.h"

struct twin {
    struct backend *gpu, *ref;
    const struct bounds_type *type;
    double error, bound; /* of what came nearest to its bound, */
    char what[80];       /* which is this */
    long values, over;   /* compared; over their bounds, or wrong */
};

/* got against exact, in the type or (not stored) in float; slack as in bounds.h, NULL: 0. The first
 * few that are over are printed. */
void twin_compare(struct twin *two, const char *what, const char *of, const float *got,
                  const float *exact, const double *slack, size_t count, bool stored);
void twin_wrong(struct twin *two, const char *what, const char *of);
/* Values of a tensor of the GPU (its data or grad), to be freed. */
float *twin_fetch(struct twin *two, const struct tensor *t, const float *native);

/* g: the GPU's operation, or net; r: the reference's. */
void twin_forward(struct twin *two, struct op *g, struct op *r);
void twin_backward(struct twin *two, struct net *g, struct net *r, struct op *gop, struct op *rop,
                   int layer);
/* After the last layer's forward. Returns by how much the gradients are scaled. */
double twin_loss(struct twin *two, struct net *g, struct plan *gp, struct plan *rp,
                 const int32_t *labels);

#endif
