/* rng: random numbers by Philox4x32-10, a block cipher of few rounds run over a counter.
 *
 * Nothing is kept between calls but a position, so any number of any image and epoch can be had
 * at once, in any order, by any thread. Constants and rounds: Salmon, Moraes, Dror, Shaw,
 * "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 3.3. */
#include "lib/rng.h"

enum { ROUNDS = 10 };

void rng_block(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = (uint64_t)x0 * 0xD2511F53u;
        uint64_t b = (uint64_t)x2 * 0xCD9E8D57u;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

struct rng rng_at(uint64_t seed, enum rng_purpose purpose, uint32_t epoch, uint32_t index) {
    return (struct rng){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, (uint32_t)purpose, epoch, index},
    };
}

uint32_t rng_u32(struct rng *r) {
    if (r->left == 0) {
        rng_block(r->key, r->counter, r->block);
        r->counter[0]++;
        r->left = 4;
    }
    return r->block[4 - r->left--];
}

/* Multiply and reject: Lemire, "Fast random integer generation in an interval", 2019. */
uint32_t rng_below(struct rng *r, uint32_t n) {
    uint64_t product = (uint64_t)rng_u32(r) * n;
    if ((uint32_t)product < n) {
        uint32_t unfair = -n % n;
        while ((uint32_t)product < unfair)
            product = (uint64_t)rng_u32(r) * n;
    }
    return (uint32_t)(product >> 32);
}

float rng_uniform(struct rng *r) {
    return (float)(rng_u32(r) >> 8) * 0x1p-24f;
}

void rng_permutation(uint32_t *order, uint32_t n, uint64_t seed, uint32_t epoch) {
    struct rng r = rng_at(seed, RNG_SHUFFLE, epoch, 0);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = rng_below(&r, i);
        uint32_t last = order[i - 1];
        order[i - 1] = order[j];
        order[j] = last;
    }
}
