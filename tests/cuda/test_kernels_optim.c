/* The optimizers do to the arena what backend_ref.c does, group by group, touch nothing between the
 * groups, write the 16-bit copy along, and stand still when told that a gradient is not finite.
 *
 * Tolerances: u = 2^-24; u·|result| for each operation on floats, of the kernel's and, since it
 * rounds the same operations in its own way, of the reference's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "tests/cuda/values.h"
#include <float.h>
#include <math.h>
#include <string.h>

static const double u = 1.0 / 16777216;

enum { W, M, V, GRAD, ARENAS };

/* Arenas before the update, after it by the kernel, after it by the reference. */
struct arenas {
    size_t count;
    float *before[ARENAS], *now[ARENAS], *exact[ARENAS];
    struct kernels_arena arg;
    struct kernels_step *step;
};

static float *copy_of(const float *x, size_t count) {
    return memcpy(values_bytes(count * sizeof *x), x, count * sizeof *x);
}

static void arenas_open(struct arenas *a, size_t count, const struct backend_group *groups,
                        int group_count, const enum kernels_type *copy_type) {
    *a = (struct arenas){.count = count};
    for (int k = 0; k < ARENAS; k++) {
        a->before[k] = values_bytes(count * sizeof(float));
        values_random(a->before[k], KERNELS_FP32, count, k == V ? 0.1 : 1);
        for (size_t i = 0; k == V && i < count; i++)
            a->before[k][i] = 0.01f + fabsf(a->before[k][i]);
        a->now[k] = copy_of(a->before[k], count);
        a->exact[k] = copy_of(a->before[k], count);
    }
    struct backend_group *table = values_bytes((size_t)group_count * sizeof *table);
    memcpy(table, groups, (size_t)group_count * sizeof *table);
    a->step = values_bytes(sizeof *a->step);
    a->arg = (struct kernels_arena){.w = a->now[W],
                                    .grad = a->now[GRAD],
                                    .count = count,
                                    .copy = copy_type ? values_new(*copy_type, count) : NULL,
                                    .copy_type = copy_type ? *copy_type : KERNELS_BF16,
                                    .groups = table,
                                    .group_count = group_count,
                                    .step = a->step};
}

/* Which group, or -1: between them. */
static int group_of(const struct arenas *a, size_t i) {
    for (int k = 0; k < a->arg.group_count; k++)
        if (i >= a->arg.groups[k].begin && i < a->arg.groups[k].end)
            return k;
    return -1;
}

static void check_copy(const struct arenas *a) {
    for (size_t i = 0; a->arg.copy && i < a->count; i++)
        values_check("copy", a->arg.copy, a->arg.copy_type, i, (double)a->now[W][i], 0);
}

static void check_untouched(const struct arenas *a, size_t i) {
    for (int k = 0; k < ARENAS; k++)
        assert_memory_equal(&a->now[k][i], &a->before[k][i], sizeof(float));
}

/* g takes 3 operations, v 2 more, the step 3, w 1; momentum ≤ 1. */
static void check_sgd(struct arenas *a, struct backend *ref, bool nesterov) {
    const float momentum = 0.85f, scale = 0.25f;
    *a->step = (struct kernels_step){.scale = scale};
    ref->call->sgd(ref, a->exact[W], a->exact[GRAD], a->exact[V], a->arg.groups, a->arg.group_count,
                   scale, momentum, nesterov);
    assert_int_equal(kernels_sgd(&a->arg, a->now[V], momentum, nesterov, NULL), 0);
    for (size_t i = 0; i < a->count; i++) {
        int k = group_of(a, i);
        if (k < 0) {
            check_untouched(a, i);
            continue;
        }
        double g = fabs((double)(scale * a->before[GRAD][i])) +
                   fabs((double)(a->arg.groups[k].decay * a->before[W][i]));
        double v = fabs((double)a->before[V][i]) + g, w = fabs((double)a->before[W][i]);
        double rate = (double)a->arg.groups[k].rate;
        values_check("v", a->now[V], KERNELS_FP32, i, (double)a->exact[V][i], 2 * 5 * u * v);
        values_check("w", a->now[W], KERNELS_FP32, i, (double)a->exact[W][i],
                     2 * u * (8 * rate * (g + v) + w + rate * (g + v)));
    }
    check_copy(a);
}

/* m: 3 operations on it and 3 on g. The root of v is within 4u of itself where v is within 5u (g
 * twice 3, 3 more: 9u at most of each of its positive terms). The corrections are rounded: 2u; two
 * divisions, a sum and a product: 4u. */
static void check_adam(struct arenas *a, struct backend *ref, int64_t t) {
    const float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, scale = 0.25f;
    const double c1 = 1 - pow((double)beta1, (double)t), c2 = 1 - pow((double)beta2, (double)t);
    *a->step = (struct kernels_step){scale, (float)c1, (float)sqrt(c2)};
    ref->call->adam(ref, a->exact[W], a->exact[GRAD], a->exact[M], a->exact[V], a->arg.groups,
                    a->arg.group_count, scale, beta1, beta2, eps, t);
    assert_int_equal(kernels_adam(&a->arg, a->now[M], a->now[V], beta1, beta2, eps, NULL), 0);
    for (size_t i = 0; i < a->count; i++) {
        int k = group_of(a, i);
        if (k < 0) {
            check_untouched(a, i);
            continue;
        }
        double g = fabs((double)(scale * a->before[GRAD][i])) +
                   fabs((double)(a->arg.groups[k].decay * a->before[W][i]));
        double v = (double)a->exact[V][i], m = fabs((double)a->before[M][i]) + g;
        double of_g = 3 * u * g; /* as terms of either sign cancel, absolute */
        double of_v = 2 * (2 * of_g * g * (1 - (double)beta2) + 5 * u * v);
        double of_m = 2 * (of_g + 3 * u * m);
        values_check("m", a->now[M], KERNELS_FP32, i, (double)a->exact[M][i], of_m);
        values_check("v", a->now[V], KERNELS_FP32, i, (double)a->exact[V][i], of_v);
        double below = sqrt(v / c2) + (double)eps, rate = (double)a->arg.groups[k].rate / c1;
        double of_root = sqrt((v + of_v) / c2) - sqrt(v / c2);
        values_check("w", a->now[W], KERNELS_FP32, i, (double)a->exact[W][i],
                     rate * (of_m / below + m / below * (of_root / below + 2 * 6 * u)) +
                         2 * u * fabs((double)a->before[W][i]));
    }
    check_copy(a);
}

static const struct backend_group many[] = {
    {0, 1, 0.1f, 0},       {1, 20, 0.2f, 0.01f},       {25, 26, 0, 0.5f},
    {26, 32, 0.3f, 0.01f}, {48, 1003, 1e-3f, 0.1f},    {1003, 1004, 1, 0},
    {1005, 1006, 2, 0.1f}, {1010, 4100, 0.05f, 0.02f},
};
static const struct backend_group few[] = {{2, 3, 0.1f, 0.01f}};
static const struct backend_group one[] = {{0, 9, 0.1f, 0.01f}};

static void updates(void **state) {
    (void)state;
    const struct {
        const struct backend_group *groups;
        int group_count;
        size_t count;
    } cases[] = {{many, 8, 4109}, {few, 1, 5}, {one, 1, 9}, {many, 1, 1}};
    const enum kernels_type copies[] = {KERNELS_BF16, KERNELS_FP16};
    struct backend *ref;
    assert_int_equal(backend_ref_open(&ref), 0);
    for (size_t i = 0; i < 4; i++)
        for (int copy = 0; copy < 3; copy++)
            for (int mode = 0; mode < 4; mode++) {
                struct arenas a;
                values_seed((uint32_t)i + 1);
                arenas_open(&a, cases[i].count, cases[i].groups, cases[i].group_count,
                            copy ? &copies[copy - 1] : NULL);
                if (mode < 2)
                    check_sgd(&a, ref, mode == 1);
                else
                    check_adam(&a, ref, mode == 2 ? 1 : 1000);
                values_free();
            }
    ref->call->close(&ref);
}

static void skips(void **state) {
    (void)state;
    for (int skip = 0; skip < 2; skip++) {
        struct arenas a;
        const enum kernels_type type = KERNELS_FP16;
        values_seed(1);
        arenas_open(&a, 4109, many, 8, &type);
        int32_t *flag = values_bytes(sizeof *flag);
        *flag = skip;
        a.arg.skip = flag;
        *a.step = (struct kernels_step){1, 1, 1};
        assert_int_equal(kernels_sgd(&a.arg, a.now[V], 0.9f, true, NULL), 0);
        assert_int_equal(kernels_adam(&a.arg, a.now[M], a.now[V], 0.9f, 0.9f, 0.1f, NULL), 0);
        for (int k = 0; k < GRAD; k++) {
            int differs = memcmp(a.now[k], a.before[k], a.count * sizeof(float));
            assert_int_equal(differs == 0, skip);
        }
        assert_int_equal(*(uint16_t *)a.arg.copy == 0xffff, skip);
        values_free();
    }
}

static void finds_what_is_not_finite(void **state) {
    (void)state;
    const size_t counts[] = {1, 8, 13, 2055};
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t k = 0; k < 4; k++) {
        float *x = values_bytes(counts[k] * sizeof *x);
        int32_t *flag = values_bytes(sizeof *flag);
        for (size_t i = 0; i < counts[k]; i++)
            x[i] = i % 2 ? FLT_MAX : -FLT_MAX;
        *flag = 0;
        assert_int_equal(kernels_not_finite(flag, x, counts[k], NULL), 0);
        assert_int_equal(*flag, 0);
        for (size_t i = 0; i<counts[k]; i += counts[k]> 100 ? 137 : 1) {
            float keep = x[i];
            x[i] = bad[i % 3];
            *flag = 0;
            assert_int_equal(kernels_not_finite(flag, x, counts[k], NULL), 0);
            assert_int_equal(*flag, 1);
            x[i] = keep;
        }
        *flag = 1; /* stays */
        assert_int_equal(kernels_not_finite(flag, x, counts[k], NULL), 0);
        assert_int_equal(*flag, 1);
        values_free();
    }
}

/* step->scale afterwards; the scaler is left with what the next step has. */
static double scaled(struct kernels_scaler *s, struct kernels_step *step, int32_t found) {
    s->found = found;
    s->skip = -1;
    *step = (struct kernels_step){.scale = 0.25f, .correction1 = 3, .root_correction2 = 5};
    assert_int_equal(kernels_scaler_update(s, step, NULL), 0);
    assert_int_equal(s->found, 0);
    assert_int_equal(s->skip, found);
    assert_int_equal((int)step->correction1, 3);
    assert_int_equal((int)step->root_correction2, 5);
    return (double)step->scale;
}

static void assert_same(double a, double b) {
    if (!(a <= b && a >= b))
        fail_msg("%.9g, not %.9g", a, b);
}

/* Powers of two: every result is exact. */
static void loss_scale(void **state) {
    (void)state;
    struct kernels_scaler *s = values_bytes(sizeof *s);
    struct kernels_step *step = values_bytes(sizeof *step);
    *s = (struct kernels_scaler){.scale = 65536};
    for (int good = 1; good < 2000; good++) { /* 1999 are too few */
        assert_same(scaled(s, step, 0), 0.25 / 65536);
        assert_same((double)s->scale, 65536);
        assert_int_equal(s->good, good);
    }
    assert_same(scaled(s, step, 0), 0.25 / 65536); /* by the scale that this step had */
    assert_same((double)s->scale, 131072);
    assert_int_equal(s->good, 0);
    for (int good = 1; good < 2000; good++)
        scaled(s, step, 0);
    assert_same(scaled(s, step, 1), 0.25 / 131072);
    assert_same((double)s->scale, 65536);
    assert_int_equal(s->good, 0); /* the row is broken */
    scaled(s, step, 0);
    assert_same((double)s->scale, 65536);
    assert_int_equal(s->good, 1);
    /* At the ends the row still begins anew. */
    *s = (struct kernels_scaler){.scale = 0x1p127f, .good = 1999};
    scaled(s, step, 0);
    assert_same((double)s->scale, 0x1p127);
    assert_int_equal(s->good, 0);
    s->scale = FLT_MIN;
    assert_true(isfinite(scaled(s, step, 1)));
    assert_same((double)s->scale, (double)FLT_MIN);
    values_free();
}

/* More than a grid does in one round: 4096 blocks of 256 threads, 8 values each. */
static void second_round(void **state) {
    (void)state;
    const size_t count = 4096 * 256 * 8 + 13;
    float *w = values_bytes(count * sizeof *w), *v = values_bytes(count * sizeof *v);
    float *grad = values_bytes(count * sizeof *grad);
    struct backend_group *groups = values_bytes(2 * sizeof *groups);
    struct kernels_step *step = values_bytes(sizeof *step);
    int32_t *flag = values_bytes(sizeof *flag);
    groups[0] = (struct backend_group){0, count - 9, 1, 0};
    groups[1] = (struct backend_group){count - 9, count, 2, 0};
    *step = (struct kernels_step){.scale = 1};
    *flag = 0;
    for (size_t i = 0; i < count; i++)
        w[i] = 4, v[i] = 0, grad[i] = 1;
    struct kernels_arena arena = {.w = w,
                                  .grad = grad,
                                  .count = count,
                                  .copy_type = KERNELS_BF16,
                                  .groups = groups,
                                  .group_count = 2,
                                  .step = step};
    assert_int_equal(kernels_sgd(&arena, v, 0, false, NULL), 0);
    for (size_t i = 0; i < count; i++)
        assert_int_equal((int)w[i], i < count - 9 ? 3 : 2);
    grad[count - 15] = INFINITY;
    assert_int_equal(kernels_not_finite(flag, grad, count, NULL), 0);
    assert_int_equal(*flag, 1);
    values_free();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates),
        cmocka_unit_test(skips),
        cmocka_unit_test(finds_what_is_not_finite),
        cmocka_unit_test(loss_scale),
        cmocka_unit_test(second_round),
    };
    return cmocka_run_group_tests_name("kernels_optim", tests, NULL, NULL);
}
