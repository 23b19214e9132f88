/* test_stats: the exact integer sums against the definitions, computed plainly in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "prep/stats.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

/* Pixels without pattern in any channel, from a fixed linear congruence. */
static uint8_t *pixels_of(size_t count) {
    uint8_t *pixels = malloc(count);
    assert_non_null(pixels);
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        pixels[i] = (uint8_t)(state >> 24 >> (i % 3 == 1)); /* the second channel is darker */
    }
    return pixels;
}

/* Relative rounding of a sum of n doubles is at most n·2^-53 of the sum of magnitudes. */
static void assert_close(double a, double b, double n) {
    assert_true(fabs(a - b) <= n * 0x1p-53);
}

/* Proves: mean, std and patch moments follow their definitions (element (c, dy, dx), the first
 * 5,000 images and no more, population std), for any number of threads. */
static void check(uint32_t n_train, uint32_t h, uint32_t w, uint32_t c) {
    struct store s = {.geometry = {.n_train = n_train, .n_val = 1, .c = c, .h = h, .w = w}};
    size_t image = (size_t)h * w * c;
    s.train_images = pixels_of(n_train * image);
    double count = (double)n_train * h * w;
    assert_int_equal(stats_compute(&s, 3), 0);
    for (uint32_t k = 0; k < c; k++) {
        double mean = 0, square = 0;
        for (size_t i = k; i < n_train * image; i += c)
            mean += s.train_images[i] / 255.0 / count;
        for (size_t i = k; i < n_train * image; i += c)
            square += pow(s.train_images[i] / 255.0 - mean, 2) / count;
        assert_close(s.mean[k], mean, count);
        assert_close(s.std[k], sqrt(square), count);
    }
    double patch_mean[12] = {0}, moment[12][12] = {{0}};
    size_t images = n_train < 5000 ? n_train : 5000;
    double patches = (double)(images * (h - 1) * (w - 1));
    for (size_t n = 0; c == 3 && n < images; n++)
        for (size_t y = 0; y + 1 < h; y++)
            for (size_t x = 0; x + 1 < w; x++) {
                double p[12];
                for (size_t i = 0; i < 12; i++)
                    p[i] =
                        s.train_images[n * image + ((y + i / 2 % 2) * w + x + i % 2) * 3 + i / 4] /
                        255.0;
                for (int i = 0; i < 12; i++) {
                    patch_mean[i] += p[i] / patches;
                    for (int j = 0; j < 12; j++)
                        moment[i][j] += p[i] * p[j] / patches;
                }
            }
    for (int i = 0; i < 12; i++) {
        assert_close(s.patch_mean[i], patch_mean[i], count);
        for (int j = 0; j < 12; j++)
            assert_close(s.patch_moment[i][j], moment[i][j], count);
    }
    struct store one = s;
    assert_int_equal(stats_compute(&one, 1), 0);
    assert_memory_equal(one.patch_moment, s.patch_moment, sizeof s.patch_moment);
    free(s.train_images);
}

static void test_rgb(void **state) {
    (void)state;
    check(300, 5, 7, 3);
    check(5100, 3, 4, 3);
}

static void test_grey(void **state) {
    (void)state;
    check(10, 4, 4, 1);
}

/* Proves: a constant image has a deviation of exactly 0, not the root of a rounding error. */
static void test_constant(void **state) {
    (void)state;
    struct store s = {.geometry = {.n_train = 7, .n_val = 1, .c = 3, .h = 9, .w = 9}};
    s.train_images = malloc(7 * 9 * 9 * 3);
    assert_non_null(s.train_images);
    memset(s.train_images, 77, 7 * 9 * 9 * 3);
    assert_int_equal(stats_compute(&s, 0), 0);
    assert_true(s.std[0] == 0 && s.std[1] == 0 && s.std[2] == 0 && s.mean[0] == 77 / 255.0);
    free(s.train_images);
}

int main(void) {
    log_open("test_stats", -1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rgb),
        cmocka_unit_test(test_grey),
        cmocka_unit_test(test_constant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
