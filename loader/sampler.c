/* sampler: the shard of one rank, batch by batch. In: (n, rank, world size, seed, epoch, step);
 * out: sample indices. The same on every machine, since it rests on rng_permutation alone. */
#include "loader/sampler.h"

#include <stdlib.h>

#include "lib/log.h"
#include "lib/rng.h"

static uint32_t count_of(const struct sampler *s) {
    switch (s->rest) {
    case SAMPLER_PAD: return (uint32_t)(((uint64_t)s->n + s->world_size - 1) / s->world_size);
    case SAMPLER_DROP: return s->n / s->world_size;
    case SAMPLER_EXACT: break;
    }
    return s->n / s->world_size + (s->rank < s->n % s->world_size);
}

int sampler_open(struct sampler *s) {
    s->count = count_of(s);
    s->steps = s->count / s->batch_size;
    if (s->rest != SAMPLER_DROP && s->count % s->batch_size > 0)
        s->steps++;
    s->epoch = 0;
    s->order = malloc(((size_t)s->n + 1) * sizeof *s->order);
    if (!s->order)
        return fail(SYSTEM_FAILED, "out of memory for an order of %u samples", s->n);
    return 0;
}

static void make_order(struct sampler *s, uint32_t epoch) {
    if (s->shuffle)
        rng_permutation(s->order, s->n, s->seed, epoch);
    else
        for (uint32_t i = 0; i < s->n; i++)
            s->order[i] = i;
    s->epoch = epoch;
}

uint32_t sampler_batch(struct sampler *s, uint32_t epoch, uint32_t step, uint32_t *indices) {
    uint64_t first = (uint64_t)(step - 1) * s->batch_size;
    uint64_t count = s->count - first < s->batch_size ? s->count - first : s->batch_size;
    if (s->epoch != epoch)
        make_order(s, epoch);
    for (uint64_t i = 0; i < count; i++)
        indices[i] = s->order[(s->rank + (first + i) * s->world_size) % s->n];
    return (uint32_t)count;
}

void sampler_close(struct sampler *s) {
    free(s->order);
    s->order = NULL;
}
