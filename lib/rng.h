/* rng: random numbers as a function of (seed, purpose, epoch, index), so that a result does not
 * depend on the number of ranks, on batch size or on thread timing.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11):
 * key = seed, counter = (position, purpose, epoch, index). */
#ifndef DDPIPE_RNG_H
#define DDPIPE_RNG_H

#include <stdint.h>

enum rng_purpose { RNG_SHUFFLE = 1, RNG_AUGMENT, RNG_FLIP, RNG_INIT, RNG_DROPOUT, RNG_TEST };

struct rng {
    uint32_t key[2];
    uint32_t counter[4]; /* position, purpose, epoch, index */
    uint32_t block[4];   /* the numbers of this position */
    int left;            /* of block, not yet taken */
};

struct rng rng_at(uint64_t seed, enum rng_purpose purpose, uint32_t epoch, uint32_t index);

/* One Philox block: out = philox4x32-10(counter, key). For code that makes many at once. */
void rng_block(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

uint32_t rng_u32(struct rng *r);
/* 0..n-1 without bias, n ≥ 1. */
uint32_t rng_below(struct rng *r, uint32_t n);
/* [0, 1), 24 bits. */
float rng_uniform(struct rng *r);

/* order[0..n-1] becomes a permutation of 0..n-1, a function of (seed, epoch) (Fisher-Yates). */
void rng_permutation(uint32_t *order, uint32_t n, uint64_t seed, uint32_t epoch);

#endif
