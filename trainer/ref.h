/* ref: what the two files of the reference backend share. */
#ifndef DDPIPE_REF_H
#define DDPIPE_REF_H

#include "trainer/backend.h"

struct ref_op {
    double *mean, *rstd; /* BATCHNORM: of the last forward */
    double *sums;        /* BATCHNORM: (2C+1), scratch */
    int32_t *index;      /* MAXPOOL: offset of the maximum in its map */
    float *mask;         /* DROPOUT: 0 or 1/(1-p) */
};

/* The contracts of forward and backward in backend.h. */
void ref_forward(struct backend *b, struct op *op);
void ref_backward(struct backend *b, struct op *op);

#endif
