/* Pools on the device's order (NHWC, three types) do what backend_ref.c does on NCHW: values, which
 * of equal maxima gets the gradient, what a map's cut-off rest gets, accumulating.
 *
 * Tolerance: u = 2^-24; a mean of K floats is within K·u of the mean of their magnitudes (Higham,
 * Accuracy and Stability, 4.2), and the reference rounds its own result once. */
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

static struct backend *ref;

struct pool_case {
    struct shape in;
    int kernel;
};

static const struct pool_case cases[] = {
    {{1, 1, 1, 1}, 0},    {{2, 3, 5, 7}, 2},  {{1, 8, 8, 8}, 7},    {{3, 16, 6, 4}, 2},
    {{2, 24, 15, 15}, 2}, {{2, 10, 7, 7}, 3}, {{3, 64, 3, 3}, 0},   {{1, 5, 4, 9}, 0},
    {{1, 1032, 2, 3}, 2}, {{2, 8, 3, 3}, 3},  {{4500, 8, 2, 1}, 1}, {{1, 1, 300, 10}, 0},
};

/* Index in NCHW of the value at index i in NHWC. */
static size_t plain(struct shape s, size_t i) {
    size_t c = i % (size_t)s.c, rest = i / (size_t)s.c, map = (size_t)(s.h * s.w);
    return (rest / map * (size_t)s.c + c) * map + rest % map;
}

static size_t count_of(struct shape s) {
    return (size_t)s.n * (size_t)(s.c * s.h * s.w);
}

static void to_plain(float *out, const void *in, enum kernels_type type, struct shape s) {
    for (size_t i = 0; i < count_of(s); i++)
        out[plain(s, i)] = (float)values_get(in, type, i);
}

/* A plan of one layer on the reference backend. */
struct layer_run {
    struct layer layer;
    struct tensor in, out;
    struct op op;
};

static void layer_open(struct layer_run *r, enum layer_kind kind, struct pool_case c,
                       bool accumulate) {
    int k = c.kernel;
    *r = (struct layer_run){.layer = {.kind = kind, .kernel = k}, .in = {.shape = c.in}};
    r->out.shape = (struct shape){c.in.n, c.in.c, k ? c.in.h / k : 1, k ? c.in.w / k : 1};
    r->op = (struct op){.layer = &r->layer,
                        .in = &r->in,
                        .out = &r->out,
                        .training = true,
                        .in_grad = true,
                        .accumulate = accumulate};
    assert_int_equal(ref->call->plan_begin(ref), 0);
    assert_int_equal(ref->call->input_open(ref, &r->in), 0);
    assert_int_equal(ref->call->op_open(ref, &r->op), 0);
    assert_int_equal(ref->call->grad_open(ref, &r->in), 0);
    assert_int_equal(ref->call->grad_open(ref, &r->out), 0);
    assert_int_equal(ref->call->backward_open(ref, &r->op), 0);
}

static void check_pool(enum layer_kind kind, struct pool_case c, enum kernels_type type,
                       bool accumulate) {
    bool max = kind == LAYER_MAXPOOL;
    struct layer_run r;
    layer_open(&r, kind, c, accumulate);
    struct shape o = r.out.shape;
    size_t in_count = count_of(c.in), out_count = count_of(o);
    double window = c.kernel ? c.kernel * c.kernel : c.in.h * c.in.w;

    void *x = values_new(type, in_count), *y = values_new(type, out_count);
    void *dx = values_new(type, in_count), *dy = values_new(type, out_count);
    uint16_t *index = values_bytes(out_count * sizeof *index);
    values_random(x, type, in_count, 2);
    for (size_t i = 0; max && i < in_count; i++) /* many equals */
        values_set(x, type, i, nearbyint(values_get(x, type, i)));
    values_random(dx, type, in_count, 2);
    values_random(dy, type, out_count, 2);
    to_plain(r.in.data, x, type, c.in);
    to_plain(r.in.grad, dx, type, c.in);
    to_plain(r.out.grad, dy, type, o);

    ref->call->forward(ref, &r.op);
    ref->call->backward(ref, &r.op);
    if (max) {
        assert_int_equal(kernels_maxpool(y, index, x, type, c.in, c.kernel, NULL), 0);
        assert_int_equal(
            kernels_maxpool_backward(dx, dy, index, type, c.in, c.kernel, accumulate, NULL), 0);
    } else {
        assert_int_equal(kernels_avgpool(y, x, type, c.in, c.kernel, NULL), 0);
        assert_int_equal(kernels_avgpool_backward(dx, dy, type, c.in, c.kernel, accumulate, NULL),
                         0);
    }
    /* Magnitudes are at most 2. */
    for (size_t i = 0; i < out_count; i++)
        values_check("pool", y, type, i, (double)r.out.data[plain(o, i)],
                     max ? 0 : (window + 1) * u * 2);
    for (size_t i = 0; i < in_count; i++)
        values_check("pool_backward", dx, type, i, (double)r.in.grad[plain(c.in, i)], 3 * u * 4);
    ref->call->op_close(ref, &r.op);
    values_free();
}

static void check_all(enum layer_kind kind) {
    assert_int_equal(backend_ref_open(&ref), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < 3; t++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                values_seed((uint32_t)i + 1);
                check_pool(kind, cases[i], values_types[t], accumulate);
            }
    ref->call->close(&ref);
}

static void maxima(void **state) {
    (void)state, check_all(LAYER_MAXPOOL);
}
static void means(void **state) {
    (void)state, check_all(LAYER_AVGPOOL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maxima),
        cmocka_unit_test(means),
    };
    return cmocka_run_group_tests_name("kernels_pool", tests, NULL, NULL);
}
