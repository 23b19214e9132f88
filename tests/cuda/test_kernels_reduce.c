/* The loss, gradients of biases and running statistics, and what these fold into, are those of
 * backend_ref.c or of sums in double; what accumulates, accumulates; the same inputs give the same
 * bits.
 *
 * Tolerances: u = 2^-24. A sum of K floats is within K·u of the sum of magnitudes (Higham, Accuracy
 * and Stability, 4.2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "tests/cuda/values.h"
#include <math.h>
#include <string.h>

static const double u = 1.0 / 16777216;

static size_t times(int a, int b) {
    return (size_t)a * (size_t)b;
}

/* A logit is up to 8. A shifted one, up to D = 16, is rounded once; its expf is within 2 ulp: D + 4
 * roundings; their sum of K: K more, and the logarithm turns these into an absolute error of
 * (D + K + 4)·u, its own 1 ulp at log K + D adds 2(log K + D)·u. The loss then takes five more
 * operations on values of at most log K + D. A probability, at most 1, sees the error of its
 * argument and of its expf, and two operations. */
static void check_loss(enum kernels_type type, int n, int classes, int stride, float smoothing,
                       float loss_scale, bool want_grad) {
    struct backend *ref;
    assert_int_equal(backend_ref_open(&ref), 0);
    const double spread = 16, log_sum = log(classes) + spread;
    const double of_log = u * (spread + classes + 4 + 2 * log_sum);
    const double of_loss = of_log + 5 * u * log_sum, of_p = of_log + u * (2 * log_sum + 4 + 3);

    void *logits = values_new(type, times(n, stride)), *grad = values_new(type, times(n, stride));
    int32_t *labels = values_bytes((size_t)n * sizeof *labels);
    struct kernels_totals *totals = values_bytes(sizeof *totals);
    float *scale = values_bytes(sizeof *scale);
    struct tensor t = {.shape = {n, classes, 1, 1}};
    t.data = values_bytes(times(n, classes) * sizeof(float));
    t.grad = values_bytes(times(n, classes) * sizeof(float));
    values_random(logits, type, times(n, stride), 8);
    for (int i = 0; i < n; i++) {
        labels[i] = (int32_t)values_below((uint32_t)classes);
        if (i % 3 == 0) /* the first of equals counts */
            for (int j = 0; j < stride; j++)
                values_set(logits, type, times(i, stride) + (size_t)j, j / 2 % 3);
        for (int j = 0; j < classes; j++)
            t.data[times(i, classes) + (size_t)j] =
                (float)values_get(logits, type, times(i, stride) + (size_t)j);
    }
    *scale = loss_scale;
    *totals = (struct kernels_totals){.loss_sum = 1, .correct = 2, .count = 3};
    ref->call->loss(ref, &t, labels, smoothing);
    struct backend_loss exact = ref->call->totals(ref);
    for (int pass = 0; pass < 2; pass++)
        assert_int_equal(kernels_loss(totals, want_grad ? grad : NULL, logits, type, labels, n,
                                      classes, stride, smoothing, loss_scale > 1 ? scale : NULL,
                                      NULL),
                         0);
    if (!(fabs(totals->loss_sum - (1 + 2 * exact.loss_sum)) <= 2 * n * of_loss))
        fail_msg("loss %.9g, not %.9g", totals->loss_sum, 1 + 2 * exact.loss_sum);
    assert_int_equal(totals->correct, 2 + 2 * exact.correct);
    assert_int_equal(totals->count, 3 + 2 * n);
    const double by = loss_scale > 1 ? (double)loss_scale : 1;
    for (int i = 0; want_grad && i < n; i++)
        for (int j = 0; j < stride; j++) {
            double g = j < classes ? (double)t.grad[times(i, classes) + (size_t)j] * by : 0;
            values_check("gradient of the loss", grad, type, times(i, stride) + (size_t)j, g,
                         j < classes ? of_p * by / n : 0);
        }
    values_free();
    ref->call->close(&ref);
}

static void losses(void **state) {
    (void)state;
    for (size_t t = 0; t < 3; t++) {
        values_seed((uint32_t)t + 1);
        check_loss(values_types[t], 1, 1, 1, 0, 1, true);
        check_loss(values_types[t], 1, 10, 16, 0.2f, 1, true);
        check_loss(values_types[t], 31, 10, 10, 0, 1, false);
        check_loss(values_types[t], 513, 3, 8, 0.1f, 1024, true);
        check_loss(values_types[t], 1200, 10, 16, 0.2f, 1, true);
        check_loss(values_types[t], 40, 100, 104, 0.2f, 256, true);
    }
}

/* values are at most 1; rows of them and the parts are summed, and no chain is longer. */
static void check_bias_grad(enum kernels_type type, size_t rows, int channels) {
    const size_t c = (size_t)channels, floats = kernels_bias_grad_floats(rows, channels);
    void *dy = values_new(type, rows * c);
    float *out = values_bytes(c * sizeof *out), *again = values_bytes(c * sizeof *again);
    float *workspace = values_bytes(floats * sizeof *workspace);
    values_random(dy, type, rows * c, 1);
    assert_int_equal(kernels_bias_grad(out, dy, type, rows, channels, workspace, NULL), 0);
    assert_int_equal(kernels_bias_grad(again, dy, type, rows, channels, workspace, NULL), 0);
    assert_memory_equal(out, again, c * sizeof *out);
    for (size_t k = 0; k < c; k++) {
        double sum = 0, magnitude = 0;
        for (size_t row = 0; row < rows; row++) {
            sum += values_get(dy, type, row * c + k);
            magnitude += fabs(values_get(dy, type, row * c + k));
        }
        /* A thread's rows, its block's 32, its column's parts, twice through the same kernel. */
        double chain = (double)rows / 32 + 5 + (double)floats / channels / 32 + 1 + 5;
        values_check("bias_grad", out, KERNELS_FP32, k, sum,
                     fmin(chain, (double)rows) * u * magnitude);
    }
    values_free();
}

static void bias_grads(void **state) {
    (void)state;
    for (size_t t = 0; t < 3; t++) {
        values_seed((uint32_t)t + 1);
        check_bias_grad(values_types[t], 1, 1);
        check_bias_grad(values_types[t], 33, 10);
        check_bias_grad(values_types[t], 300, 8);
        check_bias_grad(values_types[t], 1025, 72);
        check_bias_grad(values_types[t], 6000, 13);
        check_bias_grad(values_types[t], 9 * 32 * 32, 64);
    }
}

/* 1/rstd² takes a product and a division of a number whose square is var + eps: 3u of that; less
 * eps, times the unbiasing: 3 more roundings (with that of the factor). Then three operations. */
static void running_statistics(void **state) {
    (void)state;
    const int sizes[] = {1, 24, 640, 1027};
    for (size_t s = 0; s < 4; s++) {
        const int c = sizes[s];
        const size_t values = s == 0 ? 1 : 98 * (size_t)c, bytes = (size_t)c * sizeof(float);
        const float eps = s % 2 ? 1e-12f : 1e-5f, momentum = s % 2 ? 0.4f : 0.1f;
        values_seed((uint32_t)c);
        float *mean = values_bytes(bytes), *rstd = values_bytes(bytes);
        float *running_mean = values_bytes(bytes), *running_variance = values_bytes(bytes);
        values_random(mean, KERNELS_FP32, (size_t)c, 2);
        values_random(running_mean, KERNELS_FP32, (size_t)c, 2);
        float *mean0 = values_bytes(bytes), *variance0 = values_bytes(bytes);
        for (int k = 0; k < c; k++) {
            rstd[k] = (float)(1 / sqrt(1e-3 * (1 + values_below(4000)) + (double)eps));
            running_variance[k] = (float)(1e-3 * values_below(4000));
        }
        memcpy(mean0, running_mean, bytes);
        memcpy(variance0, running_variance, bytes);
        assert_int_equal(kernels_running(running_mean, running_variance, mean, rstd, c, values, eps,
                                         momentum, NULL),
                         0);
        for (int k = 0; k < c; k++) {
            double f = (double)momentum, m = (double)mean[k], was = (double)mean0[k];
            values_check("running_mean", running_mean, KERNELS_FP32, (size_t)k, was + f * (m - was),
                         3 * u * (fabs(m) + fabs(was)));
            double squared = 1 / ((double)rstd[k] * (double)rstd[k]);
            double unbias = values > 1 ? (double)values / (double)(values - 1) : 1;
            double v = fmax(squared - (double)eps, 0) * unbias;
            was = (double)variance0[k];
            values_check("running_variance", running_variance, KERNELS_FP32, (size_t)k,
                         was + f * (v - was), u * (6 * f * unbias * squared + 3 * (v + was)));
        }
        values_free();
    }
}

/* v + eps, its root, the division and the product round once each, and halving the first's error
 * still leaves less than 4u of the scale; the shift adds a product and a difference. */
static void folded_statistics(void **state) {
    (void)state;
    const int sizes[] = {1, 24, 640, 1027};
    for (size_t s = 0; s < 4; s++) {
        const size_t c = (size_t)sizes[s], bytes = c * sizeof(float);
        const float eps = s % 2 ? 1e-12f : 1e-5f;
        float *in[4], *out_scale = values_bytes(bytes), *out_shift = values_bytes(bytes);
        values_seed((uint32_t)c);
        for (int k = 0; k < 4; k++) {
            in[k] = values_bytes(bytes);
            values_random(in[k], KERNELS_FP32, c, 2);
        }
        for (size_t k = 0; k < c; k++) /* a channel that is constant has none */
            in[3][k] = k % 7 == 6 ? 0 : 1e-3f * (float)values_below(4000);
        assert_int_equal(
            kernels_fold(out_scale, out_shift, in[0], in[1], in[2], in[3], sizes[s], eps, NULL), 0);
        for (size_t k = 0; k < c; k++) {
            double scale = (double)in[0][k] / sqrt((double)in[3][k] + (double)eps);
            double shift = (double)in[1][k], product = (double)in[2][k] * scale;
            values_check("out_scale", out_scale, KERNELS_FP32, k, scale, 4 * u * fabs(scale));
            values_check("out_shift", out_shift, KERNELS_FP32, k, shift - product,
                         6 * u * fabs(product));
        }
        values_free();
    }
}

/* A gradient that fp16 cannot hold becomes infinite, not the largest number, and so is found. */
static void gradient_overflows(void **state) {
    (void)state;
    for (int large = 0; large < 2; large++) {
        void *logits = values_new(KERNELS_FP16, 8), *grad = values_new(KERNELS_FP16, 8);
        float *scale = values_bytes(sizeof *scale), *wide = values_bytes(8 * sizeof *wide);
        int32_t *label = values_bytes(sizeof *label), *found = values_bytes(sizeof *found);
        struct kernels_totals *totals = values_bytes(sizeof *totals);
        for (size_t j = 0; j < 8; j++)
            values_set(logits, KERNELS_FP16, j, j == 0 ? 16 : 0);
        *label = 1; /* p is nearly 0: a gradient of nearly -scale */
        *scale = large ? 65536 : 65504;
        *found = 0;
        *totals = (struct kernels_totals){.loss_sum = 0};
        assert_int_equal(
            kernels_loss(totals, grad, logits, KERNELS_FP16, label, 1, 8, 8, 0, scale, NULL), 0);
        assert_int_equal(kernels_to_float(wide, grad, KERNELS_FP16, 8, NULL), 0);
        assert_int_equal(kernels_not_finite(found, wide, 8, NULL), 0);
        assert_int_equal(*found, large);
        assert_int_equal(isinf(wide[1]) != 0, large);
        assert_true(isfinite(totals->loss_sum)); /* which is not scaled */
        values_free();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses),
        cmocka_unit_test(bias_grads),
        cmocka_unit_test(running_statistics),
        cmocka_unit_test(folded_statistics),
        cmocka_unit_test(gradient_overflows),
    };
    return cmocka_run_group_tests_name("kernels_reduce", tests, NULL, NULL);
}
