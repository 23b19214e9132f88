/* stats: numbers about the train images that networks are set up with. */
#ifndef DDPIPE_STATS_H
#define DDPIPE_STATS_H

#include "lib/store.h"

/* Fills mean, std (of the population, not of a sample), patch_mean and patch_moment of a store from
 * its train images; see struct store. All sums are exact integers, so the result depends neither
 * on the number of threads nor on the order. */
int stats_compute(struct store *s, int threads);

#endif
