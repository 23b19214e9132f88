/* values: arrays for the tests of kernels, of the three types, each before a page that nobody may
 * touch: a read or write beyond the end ends the program. */
#ifndef DDPIPE_VALUES_H
#define DDPIPE_VALUES_H

#include "trainer/kernels.h"

static const enum kernels_type values_types[] = {KERNELS_FP32, KERNELS_BF16, KERNELS_FP16};

/* bytes at a multiple of 16, filled with 0xff (no number in any type). Lives until values_free. */
void *values_bytes(size_t bytes);
void *values_new(enum kernels_type type, size_t count);

/* Frees all; fails the test where what lies before an array, or between its end and the page, has
 * been written. */
void values_free(void);

/* Restarts the random numbers, a function of seed. */
void values_seed(uint32_t seed);
/* Uniform in [-largest, largest], every 16th of them 0, rounded to the type. */
void values_random(void *array, enum kernels_type type, size_t count, double largest);
/* 0..below-1 */
uint32_t values_below(uint32_t below);

double values_get(const void *array, enum kernels_type type, size_t i);
void values_set(void *array, enum kernels_type type, size_t i, double x);

/* Unit roundoff u: a number rounded to the type is at most u of itself away (Higham, Accuracy and
 * Stability, 2.1), or, below the normal numbers of fp16, half its smallest number. */
double values_roundoff(enum kernels_type type);

/* Fails the test unless array[i] is within u·|exact| + (1 + u)·slack of exact; slack: how far the
 * float that was rounded to the type may be from exact. */
void values_check(const char *what, const void *array, enum kernels_type type, size_t i,
                  double exact, double slack);

#endif
