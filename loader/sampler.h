/* sampler: which samples a rank sees in an epoch, and in which order.
 *
 * The epoch's order of all n samples is a function of (seed, epoch) alone, equal on every rank
 * (rng_permutation; 0..n-1 without shuffling). Rank r takes the places r, r + W, r + 2W, … of it,
 * as PyTorch's torch.utils.data.DistributedSampler does. What happens to the rest: SAMPLER_PAD the
 * order is repeated from its start until every rank has ceil(n / W) SAMPLER_DROP   every rank has
 * floor(n / W), and a last batch that is not full is dropped too: drop_last of both
 * DistributedSampler and DataLoader SAMPLER_EXACT  nothing is repeated, nothing dropped: ranks
 * differ by up to one sample */
#ifndef DDPIPE_LOADER_SAMPLER_H
#define DDPIPE_LOADER_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

enum sampler_rest { SAMPLER_PAD, SAMPLER_DROP, SAMPLER_EXACT };

struct sampler {
    uint32_t n, rank, world_size, batch_size;
    enum sampler_rest rest;
    bool shuffle;
    uint64_t seed;
    uint32_t count;  /* samples of this rank in an epoch */
    uint32_t steps;  /* batches of this rank in an epoch; the last may be smaller than the others */
    uint32_t epoch;  /* whose order is in order[]; 0: none yet */
    uint32_t *order; /* (n), its own */
};

/* Takes over n … seed, which the caller has set, and works out the others. */
int sampler_open(struct sampler *s);

/* Writes the samples of a batch (step from 1 to steps, epoch from 1) to indices[batch_size];
 * returns how many. Makes the epoch's order when epoch is another than before. */
uint32_t sampler_batch(struct sampler *s, uint32_t epoch, uint32_t step, uint32_t *indices);

void sampler_close(struct sampler *s);

#endif
