/* Proves that resized images are PyTorch's: torch 1.13 interpolate(mode="bilinear", antialias=True,
 * align_corners=False) of float32 images, whose values stand here. Ours are rounded to uint8: they
 * may differ by the half that rounding takes, and float32's error of sums up to 255 · 25 terms,
 * below 0.001. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "loader/rescale.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

enum { C_MAX = 3, SIDE = 32, BYTES = C_MAX * SIDE * SIDE };

/* The image that was given to PyTorch too. */
static void draw(const struct geometry *g, uint8_t *out) {
    for (uint32_t y = 0; y < g->h; y++)
        for (uint32_t x = 0; x < g->w; x++)
            for (uint32_t k = 0; k < g->c; k++)
                *out++ = (uint8_t)((y * g->w + x) * 37 + k * 101 + 11 + y * x * x * 5);
}

static void resize(const struct geometry *from, uint32_t h, uint32_t w, uint8_t *out) {
    struct rescale *r;
    uint8_t in[BYTES];
    draw(from, in);
    assert_int_equal(rescale_open(&r, from, h, w), 0);
    float *scratch = malloc(rescale_scratch(r) * sizeof *scratch);
    assert_non_null(scratch);
    rescale_image(r, in, out, scratch);
    free(scratch);
    rescale_close(&r);
    assert_null(r);
}

/* Every step-th value of out. */
static void expect(const uint8_t *out, size_t step, const double *wanted, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double difference = out[i * step] - wanted[i];
        assert_true(difference < 0.501 && difference > -0.501);
    }
}

static void shrinking_both_ways(void **state) {
    (void)state;
    static const double wanted[] = {33,  99,  169, 177, 42,  127, 142, 114, 52,  114,
                                    134, 121, 61,  153, 116, 121, 71,  194, 176, 144};
    const struct geometry from = {1, 8, 7};
    uint8_t out[BYTES];
    resize(&from, 5, 4, out);
    expect(out, 1, wanted, 20);
}

static void growing(void **state) {
    (void)state;
    static const double wanted[] = {
        11.0,  25.8,    48.0,    70.2,    85.0,    66.5,  82.3,    106.0,  132.7,  150.5,
        140.5, 140.567, 140.667, 173.367, 195.167, 214.5, 147.633, 47.333, 86.033, 111.833,
        160.5, 129.1,   82.0,    126.7,   156.5,   88.0,  108.8,   140.0,  189.2,  222.0};
    const struct geometry from = {1, 4, 3};
    uint8_t out[BYTES];
    resize(&from, 6, 5, out);
    expect(out, 1, wanted, 30);
}

/* Row 11, channel 1 of 32×32 at 24×24, as the quick recipe has it. */
static void cifar_at_24(void **state) {
    (void)state;
    static const double wanted[] = {140.091, 105.455, 136.579, 88.182,  163.636, 104.413,
                                    178.793, 172.364, 196.281, 126.859, 85.091,  183.686,
                                    122.793, 146.182, 117.405, 147.554, 134.545, 77.835,
                                    65.736,  154.909, 109.405, 124.876, 137.455, 173.836};
    const struct geometry from = {3, 32, 32};
    uint8_t out[BYTES];
    resize(&from, 24, 24, out);
    expect(out + (11 * 24) * 3 + 1, 3, wanted, 24);
}

static void to_a_third(void **state) {
    (void)state;
    static const double wanted[] = {121, 134, 135, 150, 127, 110, 144, 129, 134,
                                    134, 132, 119, 144, 118, 134, 158, 128, 143,
                                    133, 126, 127, 151, 127, 111, 150, 123, 152};
    const struct geometry from = {3, 9, 9};
    uint8_t out[BYTES];
    resize(&from, 3, 3, out);
    for (int i = 0; i < 27; i++)
        assert_int_equal(out[i], (int)wanted[i]);
}

static void the_same_size_changes_nothing(void **state) {
    (void)state;
    const struct geometry from = {3, 31, 32};
    uint8_t in[BYTES], out[BYTES];
    draw(&from, in);
    resize(&from, 31, 32, out);
    assert_memory_equal(in, out, geometry_bytes(&from));
}

/* Weights sum to 1: a white image stays white, to a pixel and from a pixel. */
static void white_stays_white(void **state) {
    (void)state;
    for (uint32_t side = 1; side <= 32; side++) {
        const struct geometry from = {1, side, 33 - side};
        uint8_t in[BYTES], out[BYTES];
        float scratch[SIDE];
        struct rescale *r;
        memset(in, 255, sizeof in);
        assert_int_equal(rescale_open(&r, &from, 33 - side, side), 0);
        rescale_image(r, in, out, scratch);
        rescale_close(&r);
        for (uint32_t i = 0; i < side * (33 - side); i++)
            assert_int_equal(out[i], 255);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shrinking_both_ways),
        cmocka_unit_test(growing),
        cmocka_unit_test(cifar_at_24),
        cmocka_unit_test(to_a_third),
        cmocka_unit_test(the_same_size_changes_nothing),
        cmocka_unit_test(white_stays_white),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
