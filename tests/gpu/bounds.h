/* bounds: how far the result of one operation may be from the exact one, for layers.c.
 *
 * |got - exact| ≤ u·|exact| + (1 + u)·slack + d. u is the roundoff of the type that holds the
 * result and a float's for the reference; d half the type's smallest number. slack: a sum of K
 * products is within c(K)·2^-23·Σ|terms| of the exact one, for additions that may cut off instead
 * of rounding, as tensor cores do (Fasi, Higham, Mikaitis, Pranesh: "Numerical behavior of NVIDIA
 * tensor cores", PeerJ CS 7:e330). c(K) = K holds always (Higham, Accuracy and Stability, 4.2);
 * c(K) = 8·√K but once in 10^13 sums (Higham, Mary: "A new approach to probabilistic rounding error
 * analysis", SIAM J. Sci. Comput. 41(5), λ = 8); the smaller is taken. Σ|terms| is what the
 * reference computes from absolute values. TF32 cuts 13 of the 23 bits off each factor: 2^-10. */
#ifndef DDPIPE_BOUNDS_H
#define DDPIPE_BOUNDS_H

#include "trainer/backend.h"

struct bounds_type {
    const char *name;
    double u, half_smallest; /* of the type of activations */
    double cut;              /* of the factors of products */
};

/* By the shapes of an operation of the reference, zero. */
struct bounds {
    double *out, *dx;
    double *dw, *db; /* of weight (scale) and bias (shift) */
};

void bounds_open(struct bounds *s, const struct op *op);
void bounds_close(struct bounds *s);

/* op: the reference's, in host memory, with what it reads in place; its state is left alone. For
 * backward out->grad is masked where the layer has a ReLU (BATCHNORM: not). before: what in->grad
 * held, where it was added to; else NULL. */
void bounds_forward(struct backend *ref, const struct bounds_type *type, const struct op *op,
                    struct bounds *s);
void bounds_backward(struct backend *ref, const struct bounds_type *type, const struct op *op,
                     const float *before, struct bounds *s);

/* BATCHNORM in training: of the running statistics, C each, before values that they are near to. */
void bounds_running(const struct op *op, double *of_mean, double *of_variance);

/* count zeroed elements; ends the program where there is no memory. */
void *bounds_take(size_t count, size_t size);
/* A copy of x. */
float *bounds_copy(const float *x, size_t count);

#endif
