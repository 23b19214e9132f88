/* Proves that each recipe gives exactly the likenesses it promises, all of them and about evenly,
 * that flips alternate, and that the result is a function of (seed, epoch, index) alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/log.h"
#include "loader/augment.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

enum { H = 12, W = 10, C = 3, BYTES = H * W * C, IMAGES = 4000 };
static const struct geometry size = {C, H, W};

/* An image without zeros whose rows and columns all differ. */
static void draw(uint8_t *image) {
    for (int i = 0; i < BYTES; i++)
        image[i] = (uint8_t)(1 + (i * 7919 % 251));
}

static void make(const struct augment *a, uint32_t epoch, uint32_t index, uint8_t *out) {
    uint8_t in[BYTES], scratch[BYTES];
    draw(in);
    augment_image(a, epoch, index, in, out, scratch);
}

/* Which of the (2·pad+1)² crops, with or without flip, out is: found by trying them all. */
static int which(const uint8_t *out, int pad, enum geometry_border border) {
    uint8_t in[BYTES], crop[BYTES];
    int number = 0, found = -1;
    draw(in);
    for (int mirror = 0; mirror <= 1; mirror++)
        for (int dy = -pad; dy <= pad; dy++)
            for (int dx = -pad; dx <= pad; dx++, number++) {
                geometry_shift(&size, in, crop, dy, dx, mirror, border);
                if (memcmp(crop, out, BYTES) == 0) {
                    assert_int_equal(found, -1);
                    found = number;
                }
            }
    assert_int_not_equal(found, -1);
    return found;
}

/* Counts the likenesses of IMAGES images: each Binomial(IMAGES, 1/kinds), at least one, and none
 * further than 5 standard deviations (at most sqrt(IMAGES/kinds)) from the mean. */
static void count_evenly(enum augment_kind kind, int pad, enum geometry_border border) {
    enum { KINDS_MAX = 162 };
    int kinds = 2 * (2 * pad + 1) * (2 * pad + 1), count[KINDS_MAX] = {0};
    struct augment a = {.kind = kind, .seed = 5, .size = size};
    uint8_t out[BYTES];
    for (uint32_t i = 0; i < IMAGES; i++) {
        make(&a, 2, i, out);
        count[which(out, pad, border)]++;
    }
    double mean = (double)IMAGES / kinds;
    for (int k = 0; k < kinds; k++) {
        double off = count[k] - mean;
        assert_true(count[k] > 0 && off * off < 25 * mean);
    }
}

static void standard_is_every_crop_and_flip(void **state) {
    (void)state;
    count_evenly(AUGMENT_STANDARD, 4, GEOMETRY_ZERO);
}

static void speed_is_every_shift_and_flip(void **state) {
    (void)state;
    count_evenly(AUGMENT_SPEED, 2, GEOMETRY_REFLECT);
}

static void none_is_the_image(void **state) {
    (void)state;
    struct augment a = {.kind = AUGMENT_NONE, .size = size};
    uint8_t in[BYTES], out[BYTES];
    draw(in);
    make(&a, 1, 1, out);
    assert_memory_equal(in, out, BYTES);
}

static void speed_flips_every_other_epoch(void **state) {
    (void)state;
    struct augment a = {.kind = AUGMENT_SPEED, .seed = 5, .size = size};
    uint8_t out[BYTES];
    int flipped_first = 0;
    for (uint32_t i = 0; i < 400; i++) {
        bool first = false;
        for (uint32_t epoch = 1; epoch <= 5; epoch++) {
            make(&a, epoch, i, out);
            bool flipped = which(out, 2, GEOMETRY_REFLECT) >= 25;
            if (epoch == 1)
                first = flipped;
            assert_int_equal(flipped, epoch % 2 ? first : !first);
        }
        flipped_first += first;
    }
    /* Binomial(400, 1/2): 200 ± 5 · 10. */
    assert_in_range(flipped_first, 150, 250);
}

/* Each of the three addresses changes the likeness, nothing else does: other images made before, or
 * memory used before. */
static void a_function_of_seed_epoch_and_index(void **state) {
    (void)state;
    static const enum augment_kind kinds[] = {AUGMENT_STANDARD, AUGMENT_COURSE, AUGMENT_SPEED};
    for (int k = 0; k < 3; k++) {
        struct augment a = {.kind = kinds[k], .cutout = 3, .seed = 5, .size = size};
        struct augment b = a;
        b.seed = 6;
        int by_seed = 0, by_epoch = 0, by_index = 0;
        for (uint32_t i = 0; i < 50; i++) {
            uint8_t out[BYTES], again[BYTES], other[BYTES];
            memset(out, 0xEE, BYTES);
            memset(again, 0x11, BYTES);
            make(&a, 3, i, out);
            make(&b, 3, i, other);
            by_seed += memcmp(out, other, BYTES) != 0;
            make(&a, 5, i, other);
            by_epoch += memcmp(out, other, BYTES) != 0;
            make(&a, 3, i + 1000, other);
            by_index += memcmp(out, other, BYTES) != 0;
            make(&a, 3, i, again);
            assert_memory_equal(out, again, BYTES);
        }
        assert_true(by_seed > 40 && by_epoch > 40 && by_index > 40);
    }
}

/* Over 2,000 images: the whole range of angles and colours is used (a corner pixel leaves the image
 * in most), and a grey image keeps its greys within what ±20 % of brightness and contrast allow. */
static void course_moves_and_tints(void **state) {
    (void)state;
    struct augment a = {.kind = AUGMENT_COURSE, .seed = 5, .size = size};
    uint8_t in[BYTES], out[BYTES], scratch[BYTES];
    const size_t centre = ((H / 2) * W + W / 2) * C;
    int dark = 0, light = 0, corner = 0;
    memset(in, 100, BYTES);
    for (uint32_t i = 0; i < 2000; i++) {
        augment_image(&a, 1, i, in, out, scratch);
        /* At most 100 · 1.2 · 1.2, with a mean of 0; at least 100 · 0.8 · 0.8, cut off thrice. */
        assert_in_range(out[centre], 61, 144);
        dark += out[centre] < 90;
        light += out[centre] > 110;
        /* Zeros come in from outside; contrast may lift them, never above the rest. */
        corner += out[0] < out[centre];
    }
    assert_true(dark > 200 && light > 200 && corner > 400 && corner < 2000);
}

/* In a row: where the edge between the halves of the image is. */
static int edge(const uint8_t *row, uint8_t lightest) {
    int x = 10;
    while (x < 22 && (row[x] * 10 > lightest * 7) == (row[10] * 10 > lightest * 7))
        x++;
    return x;
}

/* An upright edge is tilted by rotation and shear together: over 15 rows by up to 15 · (tan 10° +
 * tan 10°) = 5.3 pixels, by either alone 2.6; rounding at both ends adds up to 1 for each step. */
static void course_rotates_and_shears(void **state) {
    (void)state;
    enum { ROWS = 24, COLUMNS = 32, TOP = 4, BOTTOM = 19 };
    struct augment a = {.kind = AUGMENT_COURSE, .seed = 5, .size = {1, ROWS, COLUMNS}};
    uint8_t in[ROWS * COLUMNS], out[sizeof in], scratch[sizeof in];
    int tilted = 0, mirrored = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        in[i] = i % COLUMNS < COLUMNS / 2 ? 60 : 160;
    for (uint32_t index = 0; index < 2000; index++) {
        uint8_t lightest = 0;
        augment_image(&a, 1, index, in, out, scratch);
        for (size_t i = 0; i < sizeof out; i++)
            lightest = out[i] > lightest ? out[i] : lightest;
        int tilt = edge(out + TOP * COLUMNS, lightest) - edge(out + BOTTOM * COLUMNS, lightest);
        assert_in_range(tilt + 7, 0, 14);
        mirrored += out[ROWS / 2 * COLUMNS + 10] * 10 > lightest * 7;
        tilted += tilt >= 5 || tilt <= -5;
    }
    assert_true(tilted > 0);
    /* Binomial(2000, 1/2): 1000 ± 5 · 22.4. */
    assert_in_range(mirrored, 888, 1112);
}

static void cutout_makes_one_hole(void **state) {
    (void)state;
    struct augment a = {.kind = AUGMENT_NONE, .cutout = 4, .seed = 5, .size = size};
    uint8_t in[BYTES], out[BYTES], seen[H][W] = {{0}};
    draw(in);
    for (uint32_t i = 0; i < 1000; i++) {
        int holes = 0, top = -1, left = -1;
        make(&a, 1, i, out);
        for (int p = 0; p < H * W; p++) {
            bool hole = out[p * C] == 0 && out[p * C + 1] == 0 && out[p * C + 2] == 0;
            if (hole && holes++ == 0) {
                top = p / W;
                left = p % W;
            }
            if (hole)
                assert_true(p / W < top + 4 && p % W >= left && p % W < left + 4);
            else
                assert_memory_equal(in + p * C, out + p * C, C);
        }
        assert_int_equal(holes, 16);
        seen[top][left] = 1;
    }
    for (int y = 0; y <= H - 4; y++)
        for (int x = 0; x <= W - 4; x++)
            assert_int_equal(seen[y][x], 1);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct augment a = {.kind = AUGMENT_NONE, .cutout = 10, .size = size};
    assert_int_equal(augment_check(&a), 0);
    a.cutout = 11;
    assert_int_equal(augment_check(&a), BAD_USAGE);
    a = (struct augment){.kind = AUGMENT_SPEED, .size = {3, 2, 9}};
    assert_int_equal(augment_check(&a), BAD_USAGE);
    a = (struct augment){.kind = AUGMENT_COURSE, .size = {4, 9, 9}};
    assert_int_equal(augment_check(&a), BAD_USAGE);
    for (enum augment_kind k = AUGMENT_NONE; k <= AUGMENT_SPEED; k++)
        assert_int_equal(augment_kind_of(augment_name(k)), k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_is_every_crop_and_flip),
        cmocka_unit_test(speed_is_every_shift_and_flip),
        cmocka_unit_test(none_is_the_image),
        cmocka_unit_test(speed_flips_every_other_epoch),
        cmocka_unit_test(a_function_of_seed_epoch_and_index),
        cmocka_unit_test(course_moves_and_tints),
        cmocka_unit_test(course_rotates_and_shears),
        cmocka_unit_test(cutout_makes_one_hole),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
