/* Proves that the generator is Philox4x32-10 and nothing else, that streams of different purposes,
 * epochs and indices differ, that intervals are fair and that a permutation is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rng.h"

/* The known answers that are published with Random123 (kat_vectors, philox4x32 10). */
static void known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        rng_block(known[i].key, known[i].counter, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

/* A stream is the blocks of consecutive positions, with the rest of the counter as documented. */
static void a_stream_is_consecutive_blocks(void **state) {
    (void)state;
    struct rng r = rng_at(0x0123456789abcdef, RNG_AUGMENT, 7, 11);
    const uint32_t key[2] = {0x89abcdef, 0x01234567};
    for (uint32_t position = 0; position < 3; position++) {
        uint32_t counter[4] = {position, RNG_AUGMENT, 7, 11}, out[4];
        rng_block(key, counter, out);
        for (int i = 0; i < 4; i++)
            assert_int_equal(rng_u32(&r), out[i]);
    }
}

/* Every part of the address counts: changing any one of them changes the numbers. */
static void addresses_do_not_share_numbers(void **state) {
    (void)state;
    struct rng streams[] = {
        rng_at(1, RNG_AUGMENT, 1, 1),
        rng_at(2, RNG_AUGMENT, 1, 1),
        rng_at(1 + (1ull << 32), RNG_AUGMENT, 1, 1),
        rng_at(1, RNG_FLIP, 1, 1),
        rng_at(1, RNG_AUGMENT, 2, 1),
        rng_at(1, RNG_AUGMENT, 1, 2),
    };
    enum { COUNT = sizeof streams / sizeof streams[0] };
    uint32_t first[COUNT];
    for (int i = 0; i < COUNT; i++) {
        first[i] = rng_u32(&streams[i]);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(first[i], first[j]);
    }
}

/* Counts of a fair 9-sided die over n = 90,000 throws: each Binomial(n, 1/9), standard deviation
 * sqrt(n·1/9·8/9) = 94.3. The seed is fixed, 5 standard deviations are allowed. And 3·2^30 as a
 * bound, where plain multiplication without rejection would hit a third of the numbers twice as
 * often: below 2^30 falls 1/3 of them, ± 5·sqrt(n·1/3·2/3). */
static void intervals_are_fair(void **state) {
    (void)state;
    enum { THROWS = 90000 };
    int count[9] = {0}, low = 0;
    struct rng r = rng_at(20, RNG_TEST, 0, 0);
    for (int i = 0; i < THROWS; i++) {
        uint32_t v = rng_below(&r, 9);
        assert_in_range(v, 0, 8);
        count[v]++;
        uint32_t wide = rng_below(&r, 3u << 30);
        assert_true(wide < 3u << 30);
        /* Without rejection every third value, v % 3 == 0, comes twice as often as the others. */
        low += wide % 3 == 0;
    }
    for (int i = 0; i < 9; i++)
        assert_in_range(count[i], 10000 - 472, 10000 + 472);
    assert_in_range(low, 30000 - 707, 30000 + 707);
    assert_int_equal(rng_below(&r, 1), 0);
}

static void uniform_stays_below_one(void **state) {
    (void)state;
    struct rng r = rng_at(3, RNG_TEST, 0, 0);
    r.block[3] = 0xffffffff;
    r.left = 1;
    assert_true(rng_uniform(&r) < 1.0f);
    double sum = 0;
    for (int i = 0; i < 10000; i++) {
        float v = rng_uniform(&r);
        assert_true(v >= 0 && v < 1);
        sum += (double)v;
    }
    /* Mean of 10,000: standard deviation 1/sqrt(12·10000) = 0.0029; 5 of them. */
    assert_true(sum / 10000 > 0.4856 && sum / 10000 < 0.5144);
}

static void a_permutation_is_one_and_a_function_of_seed_and_epoch(void **state) {
    (void)state;
    enum { N = 1001 };
    uint32_t a[N], b[N];
    uint8_t seen[N] = {0};
    rng_permutation(a, N, 5, 1);
    for (int i = 0; i < N; i++) {
        assert_in_range(a[i], 0, N - 1);
        assert_int_equal(seen[a[i]]++, 0);
    }
    rng_permutation(b, N, 5, 1);
    assert_memory_equal(a, b, sizeof a);
    rng_permutation(b, N, 5, 2);
    assert_memory_not_equal(a, b, sizeof a);
    rng_permutation(b, N, 6, 1);
    assert_memory_not_equal(a, b, sizeof a);
    rng_permutation(b, 1, 6, 1);
    assert_int_equal(b[0], 0);
    rng_permutation(NULL, 0, 6, 1);
}

/* Each of the 6 orders of 3 comes Binomial(n = 6000, 1/6) times: 1000 ± 5·sqrt(n·1/6·5/6). */
static void permutations_are_fair(void **state) {
    (void)state;
    int count[27] = {0};
    for (uint32_t epoch = 0; epoch < 6000; epoch++) {
        uint32_t order[3];
        rng_permutation(order, 3, 1, epoch);
        count[order[0] * 9 + order[1] * 3 + order[2]]++;
    }
    static const int orders[] = {5, 7, 11, 15, 19, 21}; /* 012 021 102 120 201 210 */
    for (int i = 0; i < 6; i++)
        assert_in_range(count[orders[i]], 1000 - 145, 1000 + 145);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(a_stream_is_consecutive_blocks),
        cmocka_unit_test(addresses_do_not_share_numbers),
        cmocka_unit_test(intervals_are_fair),
        cmocka_unit_test(uniform_stays_below_one),
        cmocka_unit_test(a_permutation_is_one_and_a_function_of_seed_and_epoch),
        cmocka_unit_test(permutations_are_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
