/* Proves that the ranks' shards together are the epoch's order, each sample exactly as often as
 * promised, for 1, 2, 3 and 5 ranks and sizes that do not divide; that the order is the same for
 * every number of ranks, and another in each epoch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rng.h"
#include "loader/sampler.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

enum { N_MAX = 64, WORLD_MAX = 13 };
static const uint32_t sizes[] = {1, 2, 3, 7, 10, 12, 59, 60, 61};
static const uint32_t worlds[] = {1, 2, 3, 5, 13};
static const uint32_t batches[] = {1, 4, 7, 64};
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* All that a rank gets in an epoch, by batches; checks their sizes on the way. */
static uint32_t collect(struct sampler s, uint32_t epoch, uint32_t *out) {
    uint32_t indices[N_MAX], total = 0;
    assert_int_equal(sampler_open(&s), 0);
    for (uint32_t step = 1; step <= s.steps; step++) {
        uint32_t count = sampler_batch(&s, epoch, step, indices);
        assert_in_range(count, 1, s.batch_size);
        if (step < s.steps || s.rest == SAMPLER_DROP)
            assert_int_equal(count, s.batch_size);
        memcpy(out + total, indices, count * sizeof *indices);
        total += count;
    }
    if (s.rest != SAMPLER_DROP)
        assert_int_equal(total, s.count);
    sampler_close(&s);
    return total;
}

/* What DistributedSampler does, as plainly as it can be said: a list, made longer or shorter until
 * it divides, of which rank r takes every world-th. */
static uint32_t plain(const struct sampler *s, uint32_t epoch, uint32_t *out) {
    uint32_t list[N_MAX + WORLD_MAX], order[N_MAX], length = 0, count = 0;
    if (s->shuffle)
        rng_permutation(order, s->n, s->seed, epoch);
    for (uint32_t i = 0; i < s->n; i++)
        list[length++] = s->shuffle ? order[i] : i;
    while (s->rest == SAMPLER_PAD && length % s->world_size) {
        list[length] = list[length - s->n];
        length++;
    }
    while (s->rest == SAMPLER_DROP && length % s->world_size)
        length--;
    for (uint32_t i = s->rank; i < length; i += s->world_size)
        out[count++] = list[i];
    while (s->rest == SAMPLER_DROP && count % s->batch_size)
        count--;
    return count;
}

static void every_shard_is_that_of_the_plain_list(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(sizes); n++)
        for (size_t w = 0; w < COUNT(worlds); w++)
            for (size_t b = 0; b < COUNT(batches); b++)
                for (int rest = SAMPLER_PAD; rest <= SAMPLER_EXACT; rest++)
                    for (uint32_t rank = 0; rank < worlds[w]; rank++) {
                        struct sampler s = {.n = sizes[n],
                                            .rank = rank,
                                            .world_size = worlds[w],
                                            .batch_size = batches[b],
                                            .rest = (enum sampler_rest)rest,
                                            .shuffle = (rank + b) % 2,
                                            .seed = 9};
                        uint32_t is[N_MAX], wanted[N_MAX];
                        uint32_t count = collect(s, 3, is);
                        assert_int_equal(count, plain(&s, 3, wanted));
                        assert_memory_equal(is, wanted, count * sizeof *is);
                    }
}

/* How often each sample comes, over all ranks. */
static void tally(enum sampler_rest rest, uint32_t n, uint32_t world, uint32_t times[N_MAX]) {
    uint32_t is[N_MAX];
    memset(times, 0, N_MAX * sizeof *times);
    for (uint32_t rank = 0; rank < world; rank++) {
        struct sampler s = {.n = n,
                            .rank = rank,
                            .world_size = world,
                            .batch_size = 1,
                            .rest = rest,
                            .shuffle = true,
                            .seed = 4};
        uint32_t count = collect(s, 1, is);
        for (uint32_t i = 0; i < count; i++)
            times[is[i]]++;
    }
}

static void every_sample_comes_as_often_as_promised(void **state) {
    (void)state;
    uint32_t times[N_MAX];
    for (size_t n = 0; n < COUNT(sizes); n++)
        for (size_t w = 0; w < COUNT(worlds); w++) {
            uint32_t world = worlds[w], once = 0, never = 0, extra = 0;
            tally(SAMPLER_EXACT, sizes[n], world, times);
            for (uint32_t i = 0; i < sizes[n]; i++)
                assert_int_equal(times[i], 1);
            tally(SAMPLER_PAD, sizes[n], world, times);
            for (uint32_t i = 0; i < sizes[n]; i++) {
                assert_true(times[i] >= 1);
                extra += times[i] - 1;
            }
            assert_int_equal(extra, (world - sizes[n] % world) % world);
            tally(SAMPLER_DROP, sizes[n], world, times);
            for (uint32_t i = 0; i < sizes[n]; i++) {
                once += times[i] == 1;
                never += times[i] == 0;
            }
            assert_int_equal(never, sizes[n] % world);
            assert_int_equal(once, sizes[n] - never);
        }
}

/* Ranks put together again, place by place, give the order that one rank alone sees. */
static void the_order_is_the_same_for_every_world(void **state) {
    (void)state;
    enum { N = 61 };
    uint32_t alone[N_MAX], is[N_MAX], together[N_MAX];
    struct sampler s = {.n = N,
                        .world_size = 1,
                        .batch_size = 8,
                        .rest = SAMPLER_EXACT,
                        .shuffle = true,
                        .seed = 2};
    collect(s, 5, alone);
    for (size_t w = 0; w < COUNT(worlds); w++) {
        s.world_size = worlds[w];
        for (s.rank = 0; s.rank < s.world_size; s.rank++) {
            uint32_t count = collect(s, 5, is);
            for (uint32_t i = 0; i < count; i++)
                together[s.rank + i * s.world_size] = is[i];
        }
        assert_memory_equal(together, alone, N * sizeof *alone);
    }
}

static void epochs_differ_and_can_come_in_any_order(void **state) {
    (void)state;
    enum { N = 60 };
    struct sampler s = {.n = N, .world_size = 1, .batch_size = N, .shuffle = true, .seed = 2};
    uint32_t first[N], second[N], again[N];
    assert_int_equal(sampler_open(&s), 0);
    sampler_batch(&s, 1, 1, first);
    sampler_batch(&s, 2, 1, second);
    sampler_batch(&s, 1, 1, again);
    assert_memory_not_equal(first, second, sizeof first);
    assert_memory_equal(first, again, sizeof first);
    sampler_close(&s);
}

static void without_shuffling_the_order_is_the_stores(void **state) {
    (void)state;
    struct sampler s = {.n = 60, .world_size = 1, .batch_size = 60};
    uint32_t is[N_MAX];
    assert_int_equal(collect(s, 2, is), 60);
    for (uint32_t i = 0; i < 60; i++)
        assert_int_equal(is[i], i);
}

/* The figures of CIFAR-10 on 3 ranks with batches of 128, counted by hand: ceil(50000/3) = 16667 =
 * 130 · 128 + 27; floor = 16666, 130 full batches; 10000/3 is 3334, 3333, 3333. */
static void counts_of_a_real_run(void **state) {
    (void)state;
    struct sampler s = {.n = 50000, .rank = 1, .world_size = 3, .batch_size = 128};
    uint32_t is[128];
    assert_int_equal(sampler_open(&s), 0);
    assert_int_equal(s.count, 16667);
    assert_int_equal(s.steps, 131);
    assert_int_equal(sampler_batch(&s, 1, 131, is), 27);
    sampler_close(&s);
    s.rest = SAMPLER_DROP;
    assert_int_equal(sampler_open(&s), 0);
    assert_int_equal(s.count, 16666);
    assert_int_equal(s.steps, 130);
    sampler_close(&s);
    s.rest = SAMPLER_EXACT;
    s.n = 10000;
    assert_int_equal(sampler_open(&s), 0);
    assert_int_equal(s.count, 3333);
    sampler_close(&s);
    /* More ranks than images: the last ones have nothing, and no batch. */
    s.n = 1;
    assert_int_equal(sampler_open(&s), 0);
    assert_int_equal(s.steps, 0);
    sampler_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shard_is_that_of_the_plain_list),
        cmocka_unit_test(every_sample_comes_as_often_as_promised),
        cmocka_unit_test(the_order_is_the_same_for_every_world),
        cmocka_unit_test(epochs_differ_and_can_come_in_any_order),
        cmocka_unit_test(without_shuffling_the_order_is_the_stores),
        cmocka_unit_test(counts_of_a_real_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
