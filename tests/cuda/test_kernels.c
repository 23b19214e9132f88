/* The kernels that work value by value compute what their contracts say, in all three types, at
 * counts around a pack of 8 and a block, beyond one round of the grid, in place, and accumulating.
 *
 * Tolerances: u is the unit roundoff of float, 2^-24; values_check adds that of the type. Where a
 * formula takes k operations on floats, its slack is the sum of u·|result| over them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "tests/cuda/values.h"
#include "trainer/cpu.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const double u = 1.0 / 16777216;
static const size_t counts[] = {1, 7, 8, 9, 2047, 2048, 4099};

/* Calls check for all types and counts, with and without accumulating. */
static void each(void (*check)(enum kernels_type type, size_t count, bool accumulate)) {
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                values_seed((uint32_t)i + 1);
                check(values_types[t], counts[i], accumulate);
                values_free();
            }
}

static void *random_values(enum kernels_type type, size_t count, double largest) {
    void *x = values_new(type, count);
    values_random(x, type, count, largest);
    return x;
}

static void *copy_of(const void *array, enum kernels_type type, size_t count) {
    void *x = values_new(type, count);
    memcpy(x, array, count * (type == KERNELS_FP32 ? 4 : 2));
    return x;
}

static void check_add(enum kernels_type type, size_t count, bool in_place) {
    void *a = random_values(type, count, 3), *b = random_values(type, count, 3);
    void *before = copy_of(a, type, count), *out = in_place ? a : values_new(type, count);
    assert_int_equal(kernels_add(out, a, b, type, count, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        double sum = values_get(before, type, i) + values_get(b, type, i);
        values_check("add", out, type, i, sum, u * fabs(sum));
    }
}

static void check_scale(enum kernels_type type, size_t count, bool accumulate) {
    void *in = random_values(type, count, 3), *out = random_values(type, count, 3);
    void *before = copy_of(out, type, count);
    const float factor = 1.f / 9;
    assert_int_equal(kernels_scale(out, in, type, count, factor, accumulate, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        double x = values_get(in, type, i) * (double)factor;
        double sum = x + (accumulate ? values_get(before, type, i) : 0);
        values_check("scale", out, type, i, sum, u * (fabs(x) + fabs(sum)));
    }
}

/* The same values are dropped as by backend_cpu.c, for seeds that differ in one half alone. */
static void check_dropout(enum kernels_type type, size_t count, bool accumulate) {
    omp_set_num_threads(1); /* ThreadSanitizer does not see how libgomp's threads wait */
    const uint64_t seeds[] = {0, 1, 1ULL << 32, 0xfedcba9876543210ULL};
    float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
    uint8_t *kept = malloc(count);
    assert_true(x && y && kept);
    for (size_t s = 0; s < 4; s++) {
        const struct layer layer = {.kind = LAYER_DROPOUT, .p = s == 3 ? 0.01f : 0.4f};
        void *in = random_values(type, count, 3), *out = random_values(type, count, 3);
        void *before = copy_of(out, type, count);
        uint64_t *seed = values_bytes(sizeof *seed);
        *seed = seeds[s];
        for (size_t i = 0; i < count; i++)
            x[i] = (float)values_get(in, type, i);
        struct cpu_op state = {.kept = kept};
        struct tensor ti = {.count = count, .data = x}, to = {.count = count, .data = y};
        struct op op = {.layer = &layer,
                        .in = &ti,
                        .out = &to,
                        .training = true,
                        .seed = *seed,
                        .state = &state};
        cpu_dropout_forward(&op);
        assert_int_equal(kernels_dropout(out, in, type, count, layer.p, seed, accumulate, NULL), 0);
        for (size_t i = 0; i < count; i++) {
            double sum = (double)y[i] + (accumulate ? values_get(before, type, i) : 0);
            values_check("dropout", out, type, i, sum, u * (fabs((double)y[i]) + fabs(sum)));
        }
    }
    free(x);
    free(y);
    free(kept);
}

static void check_relu_mask(enum kernels_type type, size_t count, bool accumulate) {
    (void)accumulate;
    void *dy = random_values(type, count, 3), *y = random_values(type, count, 3);
    void *before = copy_of(dy, type, count);
    assert_int_equal(kernels_relu_mask(dy, y, type, count, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        double exact = values_get(y, type, i) > 0 ? values_get(before, type, i) : 0;
        assert_true(fabs(values_get(dy, type, i) - exact) <= 0);
    }
}

static double cdf(double x) {
    return erfc(-x / sqrt(2)) / 2;
}
static double density(double x) {
    return exp(-x * x / 2) / sqrt(2 * acos(-1.0));
}

/* erff: 2 ulp, that is 4u (CUDA C++ Programming Guide, mathematical functions), and u for its
 * rounded argument, as z·erf'(z) ≤ 0.49 and the argument is 2u off; the sum with 1 up to 2u: 7u, so
 * Φ is within 3.5u, and y within 3.5u·|x| + 2u·|y|. */
static void check_gelu(enum kernels_type type, size_t count, bool in_place) {
    void *x = random_values(type, count, 6), *before = copy_of(x, type, count);
    void *y = in_place ? x : values_new(type, count);
    assert_int_equal(kernels_gelu(y, x, type, count, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        double z = values_get(before, type, i), exact = z * cdf(z);
        values_check("gelu", y, type, i, exact, u * (3.5 * fabs(z) + 2 * fabs(exact)));
    }
}

/* Φ within 3.5u. x·φ(x): 7u for expf's 2 ulp and three products, x²·u for its rounded argument;
 * with |xφ| ≤ 0.25 and |x³φ| ≤ 0.47 that is 2.3u. Then a sum and a product, each of at most 1.13:
 * 8.1u·|dy| in all. */
static void check_gelu_backward(enum kernels_type type, size_t count, bool accumulate) {
    void *x = random_values(type, count, 6), *dy = random_values(type, count, 3);
    void *dx = random_values(type, count, 3), *before = copy_of(dx, type, count);
    assert_int_equal(kernels_gelu_backward(dx, x, dy, type, count, accumulate, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        double z = values_get(x, type, i), g = values_get(dy, type, i);
        double sum = g * (cdf(z) + z * density(z));
        sum += accumulate ? values_get(before, type, i) : 0;
        values_check("gelu_backward", dx, type, i, sum, u * (8.1 * fabs(g) + fabs(sum)));
    }
}

static void check_lerp_and_swap(enum kernels_type type, size_t count, bool accumulate) {
    if (type != KERNELS_FP32 || accumulate)
        return;
    float *a = random_values(type, count, 3), *b = random_values(type, count, 3);
    float *a0 = copy_of(a, type, count), *b0 = copy_of(b, type, count);
    const float fraction = 0.3f;
    assert_int_equal(kernels_lerp(a, b, count, fraction, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        double step = ((double)b0[i] - (double)a0[i]) * (double)fraction;
        double exact = (double)a0[i] + step;
        values_check("lerp", a, type, i, exact, u * (2 * fabs(step) + fabs(exact)));
    }
    float *c = copy_of(a, type, count);
    assert_int_equal(kernels_swap(a, b, count, NULL), 0);
    assert_memory_equal(a, b0, count * sizeof *a);
    assert_memory_equal(b, c, count * sizeof *a);
}

/* The values halfway between two neighbours of the type, and a little above and below. */
static void check_casts(enum kernels_type type, size_t count, bool accumulate) {
    (void)accumulate;
    void *x = random_values(type, count, 3), *back = values_new(type, count);
    float *wide = values_bytes(count * sizeof *wide);
    assert_int_equal(kernels_to_float(wide, x, type, count, NULL), 0);
    for (size_t i = 0; i < count; i++)
        assert_true(fabs((double)wide[i] - values_get(x, type, i)) <= 0);
    assert_int_equal(kernels_from_float(back, type, wide, count, NULL), 0);
    assert_memory_equal(back, x, count * (type == KERNELS_FP32 ? 4 : 2));
    if (type == KERNELS_FP32)
        return;
    for (int side = -1; side <= 1; side++) {
        const uint16_t *of = x;
        for (size_t i = 0; i < count; i++) {
            uint16_t next = (uint16_t)(of[i] + 1);
            double sum = values_get(x, type, i) + values_get(&next, type, 0);
            float middle = (float)(sum / 2);
            float beyond = copysignf(side > 0 ? INFINITY : 0, middle);
            wide[i] = side ? nextafterf(middle, beyond) : middle;
        }
        assert_int_equal(kernels_from_float(back, type, wide, count, NULL), 0);
        for (size_t i = 0; i < count; i++) {
            bool up = side > 0 || (side == 0 && of[i] % 2);
            if ((of[i] & 0x7fff) != 0) /* beside 0 halves are not exact */
                assert_int_equal(((uint16_t *)back)[i], of[i] + up);
        }
    }
}

static void adds(void **state) {
    (void)state, each(check_add);
}
static void scales(void **state) {
    (void)state, each(check_scale);
}
static void drops(void **state) {
    (void)state, each(check_dropout);
}
static void masks(void **state) {
    (void)state, each(check_relu_mask);
}
static void gelus(void **state) {
    (void)state, each(check_gelu), each(check_gelu_backward);
}
static void lerps_and_swaps(void **state) {
    (void)state, each(check_lerp_and_swap);
}
static void casts(void **state) {
    (void)state, each(check_casts);
}

/* 1 to 17 channels: padded to 8, 16 or 24. */
static void inputs(void **state) {
    (void)state;
    for (size_t t = 0; t < 3; t++)
        for (int c = 1; c <= 17; c++) {
            enum kernels_type type = values_types[t];
            size_t pixels = (size_t)(c % 3 ? 3 * 7 * 5 : 1), channels = (size_t)c;
            size_t padded = (channels + 7) / 8 * 8;
            values_seed((uint32_t)c);
            uint8_t *in = values_bytes(pixels * channels);
            float *scale = random_values(KERNELS_FP32, channels, 0.02);
            float *shift = random_values(KERNELS_FP32, channels, 2);
            void *out = values_new(type, pixels * padded);
            for (size_t i = 0; i < pixels * channels; i++)
                in[i] = (uint8_t)values_below(256);
            assert_int_equal(kernels_input(out, type, in, scale, shift, pixels, c, NULL), 0);
            for (size_t i = 0; i < pixels * padded; i++) {
                size_t channel = i % padded;
                double product = 0, exact = 0;
                if (channel < channels) {
                    product = in[i / padded * channels + channel] * (double)scale[channel];
                    exact = product + (double)shift[channel];
                }
                values_check("input", out, type, i, exact, u * (fabs(product) + fabs(exact)));
            }
            values_free();
        }
}

/* More than a grid does in one round: 4096 blocks of 256 threads, 8 values each. */
static void second_rounds(void **state) {
    (void)state;
    const size_t count = 4096 * 256 * 8 + 13, pixels = count / 8;
    uint16_t *x = values_bytes(count * sizeof *x), *y = values_bytes(count * sizeof *y);
    for (size_t i = 0; i < count; i++)
        x[i] = (uint16_t)(i % 0x4000); /* bf16 from 0 to 2 */
    assert_int_equal(kernels_scale(y, x, KERNELS_BF16, count, -1, false, NULL), 0);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(y[i], x[i] | 0x8000);
    const uint8_t *in = values_bytes(pixels); /* all 255 */
    float *scale = values_bytes(sizeof *scale), *shift = values_bytes(sizeof *shift);
    *scale = 1, *shift = 1;
    assert_int_equal(kernels_input(y, KERNELS_BF16, in, scale, shift, pixels, 1, NULL), 0);
    for (size_t i = 0; i < pixels * 8; i++)
        assert_int_equal(y[i], i % 8 ? 0 : 0x4380); /* 256 */
    values_free();

    float *a = values_bytes(count * sizeof *a), *b = values_bytes(count * sizeof *b);
    for (size_t i = 0; i < count; i++)
        a[i] = (float)i, b[i] = -(float)i;
    assert_int_equal(kernels_swap(a, b, count, NULL), 0);
    for (size_t i = 0; i < count; i++)
        assert_true(a[i] <= 0 && b[i] >= 0 && (size_t)b[i] == i && (size_t)-a[i] == i);
    values_free();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds),  cmocka_unit_test(scales), cmocka_unit_test(drops),
        cmocka_unit_test(masks), cmocka_unit_test(gelus),  cmocka_unit_test(lerps_and_swaps),
        cmocka_unit_test(casts), cmocka_unit_test(inputs), cmocka_unit_test(second_rounds),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
