/* average: an exponential moving average of weights and BatchNorm statistics, evaluated in place of
 * the raw ones, which training goes on with.
 *
 * Every `every` steps, with t steps done: average += (raw - average)·(1 - d),
 * d = min(decay^every, (1+t)/(50+t)): the second keeps the first weights from lingering. */
#ifndef DDPIPE_AVERAGE_H
#define DDPIPE_AVERAGE_H

#include "trainer/net.h"

struct average {
    float *weights, *stats;
    int64_t every;
    double decay;
};

/* Starts from the net's present weights. */
int average_open(struct average **a, struct net *net, int64_t every, double decay);
void average_step(struct average *a, struct net *net, int64_t steps_done);

/* Exchanges raw and averaged values: once before validation or saving, once after. */
void average_swap(struct average *a, struct net *net);
void average_close(struct average **a);

#endif
