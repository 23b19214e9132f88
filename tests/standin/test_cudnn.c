/* The cuDNN stand-in, through the trainer's own graphs, computes what the formulas say: every kind
 * of graph, in every precision, with every plan, against plain loops in double.
 *
 * Bounds. A result that is a sum of K float products is off by at most (K + 2)·u·Σ|terms| with
 * u = 2^-24 (Higham, Accuracy and Stability, 3.1), then rounded to its type: 2^-24, 2^-8 (bfloat16)
 * or 2^-11 (half, and 2^-25 among its smallest). Inputs are rounded to their type before, so that
 * they add nothing. What is not a sum of products has K = 4, for the roundings of mean, inv_std and
 * of each step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "trainer/cudnn_graph.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static cudnnHandle_t handle;
static cudaStream_t stream;
static struct cudnn_desc device;

/* One tensor of a graph: its values on the host, and memory of the device. The reference, with the
 * sum of its terms' magnitudes, where the graph writes it. */
struct array {
    size_t count;
    bool wide; /* float in every precision */
    float *values;
    double *expected, *size;
    double terms;
    void *memory;
};

static struct array arrays[CUDNN_GRAPH_ROLES];
static struct cudnn_graph_spec spec;

static bool wide(const struct array *a) {
    return a->wide || spec.precision <= CUDNN_GRAPH_TF32;
}

static size_t bytes_of(const struct array *a) {
    return a->count * (wide(a) ? 4 : 2);
}

static void finish(void) {
    while (cudaStreamQuery(stream) == cudaErrorNotReady)
        ;
    assert_int_equal(cudaStreamQuery(stream), cudaSuccess);
}

static void copy(void *to, const void *from, size_t bytes) {
    assert_int_equal(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    finish();
}

/* To the 16 bits nearest to x, by the definition; x is normal and not too large. */
static uint16_t narrow(float x) {
    bool half = spec.precision == CUDNN_GRAPH_FP16;
    int digits = half ? 11 : 8, bias = half ? 15 : 127, exponent;
    double m = frexp(fabs((double)x), &exponent); /* 1/2 ≤ m < 1 */
    if (x == 0)
        return 0;
    unsigned bits = (unsigned)nearbyint(ldexp(m, digits));
    bits += (unsigned)(exponent + bias - 2) << (digits - 1);
    return (uint16_t)(bits | (x < 0 ? 0x8000U : 0U));
}

static float widen(uint16_t bits) {
    int digits = spec.precision == CUDNN_GRAPH_FP16 ? 11 : 8, bias = digits == 11 ? 15 : 127;
    int exponent = (bits & 0x7fff) >> (digits - 1), rest = bits & ((1 << (digits - 1)) - 1);
    double x = exponent ? ldexp(rest + (1 << (digits - 1)), exponent - bias - digits + 1)
                        : ldexp(rest, 2 - bias - digits);
    return (float)(bits & 0x8000 ? -x : x);
}

static void upload(struct array *a) {
    uint16_t *narrowed = calloc(a->count, 2);
    for (size_t i = 0; i < a->count && !wide(a); i++)
        narrowed[i] = narrow(a->values[i]);
    copy(a->memory, wide(a) ? (void *)a->values : (void *)narrowed, bytes_of(a));
    free(narrowed);
}

static void download(struct array *a) {
    uint16_t *narrowed = calloc(a->count, 2);
    copy(wide(a) ? (void *)a->values : (void *)narrowed, a->memory, bytes_of(a));
    for (size_t i = 0; i < a->count && !wide(a); i++)
        a->values[i] = widen(narrowed[i]);
    free(narrowed);
}

static struct array *open_array(int role, size_t count, bool is_wide) {
    struct array *a = &arrays[role];
    *a = (struct array){count, is_wide, calloc(count, 4), NULL, NULL, 4, NULL};
    assert_int_equal(cudaMalloc(&a->memory, bytes_of(a)), cudaSuccess);
    return a;
}

/* An input whose values are multiples of step, none above 1, and differ from role to role. */
static const float *input(int role, size_t count, bool is_wide, int steps) {
    struct array *a = open_array(role, count, is_wide);
    uint32_t state = 12345U + (uint32_t)role;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        a->values[i] = (float)((int)(state >> 8) % (2 * steps + 1) - steps) / (float)steps;
        if (!wide(a))
            a->values[i] = widen(narrow(a->values[i]));
    }
    upload(a);
    return a->values;
}

static struct array *output(int role, size_t count, bool is_wide, double terms) {
    struct array *a = open_array(role, count, is_wide);
    a->expected = calloc(count, sizeof *a->expected);
    a->size = calloc(count, sizeof *a->size);
    a->terms = terms;
    return a;
}

static void add(struct array *a, size_t at, double term) {
    a->expected[at] += term;
    a->size[at] += fabs(term);
}

static void compare(int role, const struct array *a) {
    double unit = wide(a) ? 0x1p-24 : spec.precision == CUDNN_GRAPH_BF16 ? 0x1p-8 : 0x1p-11;
    for (size_t i = 0; i < a->count; i++) {
        double sum = (a->terms + 2) * 0x1p-24 * a->size[i];
        double bound = sum + unit * (fabs(a->expected[i]) + sum) + (wide(a) ? 0 : 0x1p-25);
        if (!(fabs((double)a->values[i] - a->expected[i]) <= bound)) {
            char text[CUDNN_GRAPH_TEXT];
            cudnn_graph_describe(&spec, text);
            fail_msg("%s: tensor %d, element %zu: %.9g, expected %.9g ± %.3g", text, role, i,
                     (double)a->values[i], a->expected[i], bound);
        }
    }
}

static void relu(struct array *a) {
    for (size_t i = 0; i < a->count && spec.relu; i++)
        a->expected[i] = fmax(a->expected[i], 0);
}

static size_t size_of(struct shape s) {
    return (size_t)(s.n * s.c * s.h * s.w);
}

/* Runs every plan of the graph; each must write all outputs anew (dx aside, where it adds). */
static void run_plans(void) {
    struct cudnn_graph g;
    void *pointers[CUDNN_GRAPH_ROLES];
    assert_int_equal(cudnn_graph_open(&g, &spec, &device, 1 << 21, CUDNN_GRAPH_PLANS_MAX), 0);
    assert_int_equal(g.plan_count, spec.precision == CUDNN_GRAPH_FP32 && spec.kernel ? 2 : 3);
    for (g.chosen = 0; g.chosen < g.plan_count; g.chosen++) {
        void *workspace = NULL;
        size_t bytes = (size_t)g.plans[g.chosen].workspace_bytes;
        assert_int_equal(cudaMalloc(&workspace, bytes), cudaSuccess);
        for (int role = 0; role < CUDNN_GRAPH_ROLES; role++) {
            struct array *a = &arrays[role];
            pointers[role] = a->memory;
            for (size_t i = 0; i < a->count && a->expected; i++)
                a->values[i] = 1;
            if (a->expected)
                upload(a);
        }
        assert_int_equal(cudnn_graph_run(handle, &g, pointers, workspace), 0);
        finish();
        for (int role = 0; role < CUDNN_GRAPH_ROLES; role++)
            if (arrays[role].expected) {
                download(&arrays[role]);
                compare(role, &arrays[role]);
            }
        assert_int_equal(cudaFree(workspace), cudaSuccess);
    }
    cudnn_graph_close(&g);
}

static void close_arrays(void) {
    for (int role = 0; role < CUDNN_GRAPH_ROLES; role++) {
        struct array *a = &arrays[role];
        assert_int_equal(cudaFree(a->memory), cudaSuccess);
        free(a->values), free(a->expected), free(a->size);
        *a = (struct array){0};
    }
}

/* Adds, for every pair of pixels that a tap of the kernel connects, one product of two of x, w, y
 * to the third. */
static void convolve(struct array *out, const float *x, const float *w, const float *y) {
    struct shape i = spec.in, o = spec.out;
    int k = spec.kernel;
    for (int at = 0; at < o.n * o.h * o.w * k * k; at++) {
        int kx = at % k, ky = at / k % k, px = at / (k * k) % o.w, py = at / (k * k * o.w) % o.h;
        int n = at / (k * k * o.w * o.h), sy = py + ky - spec.pad, sx = px + kx - spec.pad;
        if (sy < 0 || sx < 0 || sy >= i.h || sx >= i.w)
            continue;
        for (int oc = 0; oc < o.c; oc++)
            for (int ic = 0; ic < i.c; ic++) {
                size_t in_x = (size_t)(((n * i.h + sy) * i.w + sx) * i.c + ic);
                size_t in_y = (size_t)(((n * o.h + py) * o.w + px) * o.c + oc);
                size_t in_w = (size_t)(((oc * k + ky) * k + kx) * i.c + ic);
                if (!y)
                    add(out, in_y, (double)x[in_x] * (double)w[in_w]);
                else if (!x)
                    add(out, in_x, (double)y[in_y] * (double)w[in_w]);
                else
                    add(out, in_w, (double)x[in_x] * (double)y[in_y]);
            }
    }
}

static void check_conv_forward(void) {
    size_t area = (size_t)(spec.kernel * spec.kernel * spec.in.c);
    const float *x = input(CUDNN_GRAPH_X, size_of(spec.in), false, 1000);
    const float *w = input(CUDNN_GRAPH_W, (size_t)spec.out.c * area, false, 999);
    const float *b = input(CUDNN_GRAPH_B, (size_t)spec.out.c, false, 998);
    struct array *y = output(CUDNN_GRAPH_Y, size_of(spec.out), false, (double)area + 1);
    convolve(y, x, w, NULL);
    for (size_t i = 0; i < y->count && spec.bias; i++)
        add(y, i, (double)b[i % (size_t)spec.out.c]);
    relu(y);
    run_plans();
    close_arrays();
}

static void check_conv_data(void) {
    size_t area = (size_t)(spec.kernel * spec.kernel * spec.out.c);
    const float *dy = input(CUDNN_GRAPH_DY, size_of(spec.out), false, 1000);
    const float *w = input(CUDNN_GRAPH_W, (size_t)spec.in.c * area, false, 999);
    struct array *dx = output(CUDNN_GRAPH_DX, size_of(spec.in), false, (double)area + 1);
    convolve(dx, NULL, w, dy);
    for (size_t i = 0; i < dx->count && spec.accumulate; i++)
        add(dx, i, 1);
    run_plans();
    close_arrays();
}

static void check_conv_weight(void) {
    size_t area = (size_t)(spec.kernel * spec.kernel * spec.in.c);
    const float *x = input(CUDNN_GRAPH_X, size_of(spec.in), false, 1000);
    const float *dy = input(CUDNN_GRAPH_DY, size_of(spec.out), false, 999);
    struct array *dw = output(CUDNN_GRAPH_DW, (size_t)spec.out.c * area, false,
                              spec.out.n * spec.out.h * spec.out.w);
    convolve(dw, x, NULL, dy);
    run_plans();
    close_arrays();
}

static void test_conv(void **state) {
    (void)state;
    static const struct shape ins[] = {{2, 8, 5, 5}, {3, 24, 5, 7}, {1, 3, 4, 1}};
    static const int outs[] = {16, 24, 1}, pads[] = {0, 0, 1}, kernels[] = {1, 3, 3};
    static void (*const checks[])(void) = {
        [CUDNN_GRAPH_CONV_FORWARD] = check_conv_forward,
        [CUDNN_GRAPH_CONV_DATA] = check_conv_data,
        [CUDNN_GRAPH_CONV_WEIGHT] = check_conv_weight,
    };
    for (int at = 0; at < 3 * 3 * 4 * 3 * 4; at++) {
        int s = at % 3, k = at / 3 % 3, shrink = kernels[k] - 1 - 2 * pads[k], c = outs[s];
        struct shape in = ins[s], out = {in.n, c, in.h - shrink, in.w - shrink};
        bool first = at / 108 % 2, second = at / 216;
        spec = (struct cudnn_graph_spec){.kind = at / 36 % 3,
                                         .precision = at / 9 % 4,
                                         .layer = "conv",
                                         .in = in,
                                         .out = out,
                                         .channels = c,
                                         .kernel = kernels[k],
                                         .pad = pads[k]};
        spec.bias = spec.kind == CUDNN_GRAPH_CONV_FORWARD && first;
        spec.relu = spec.kind == CUDNN_GRAPH_CONV_FORWARD && second;
        spec.accumulate = spec.kind == CUDNN_GRAPH_CONV_DATA && first;
        if (out.w > 0)
            checks[spec.kind]();
    }
}

static void check_norm_forward(void) {
    size_t c = (size_t)spec.channels, count = size_of(spec.in);
    double m = (double)(count / c);
    const float *x = input(CUDNN_GRAPH_X, count, false, 1000);
    const float *scale = input(CUDNN_GRAPH_SCALE, c, true, 999);
    const float *shift = input(CUDNN_GRAPH_SHIFT, c, true, 998);
    struct array *y = output(CUDNN_GRAPH_Y, count, false, 4);
    struct array *mean = output(CUDNN_GRAPH_MEAN, c, true, 1);
    struct array *inv_std = output(CUDNN_GRAPH_INV_STD, c, true, 1);
    for (size_t i = 0; i < count; i++)
        add(mean, i % c, (double)x[i] / m);
    for (size_t i = 0; i < count; i++)
        inv_std->expected[i % c] += pow((double)x[i] - mean->expected[i % c], 2) / m;
    for (size_t i = 0; i < c; i++) {
        inv_std->expected[i] = 1 / sqrt(inv_std->expected[i] + (double)spec.eps);
        inv_std->size[i] = inv_std->expected[i];
    }
    for (size_t i = 0; i < count; i++) {
        double factor = inv_std->expected[i % c] * (double)scale[i % c];
        add(y, i, (double)x[i] * factor);
        add(y, i, -mean->expected[i % c] * factor);
        add(y, i, (double)shift[i % c]);
    }
    relu(y);
    run_plans();
    close_arrays();
}

static void check_norm_inference(void) {
    size_t c = (size_t)spec.channels, count = size_of(spec.in);
    const float *x = input(CUDNN_GRAPH_X, count, false, 1000);
    const float *scale = input(CUDNN_GRAPH_SCALE, c, true, 999);
    const float *shift = input(CUDNN_GRAPH_SHIFT, c, true, 998);
    struct array *y = output(CUDNN_GRAPH_Y, count, false, 2);
    for (size_t i = 0; i < count; i++) {
        add(y, i, (double)x[i] * (double)scale[i % c]);
        add(y, i, (double)shift[i % c]);
    }
    relu(y);
    run_plans();
    close_arrays();
}

/* Values of few digits: y is exact and never 0, so that no rounding decides whether the ReLU was
 * open. */
static void check_norm_backward(void) {
    size_t c = (size_t)spec.channels, count = size_of(spec.in);
    const float *x = input(CUDNN_GRAPH_X, count, false, 8), *dy;
    const float *mean = input(CUDNN_GRAPH_MEAN, c, true, 8);
    const float *scale = input(CUDNN_GRAPH_SCALE, c, true, 4);
    struct array *inv_std = open_array(CUDNN_GRAPH_INV_STD, c, true);
    struct array *shift = open_array(CUDNN_GRAPH_SHIFT, c, true);
    struct array *dx = output(CUDNN_GRAPH_DX, count, false, 4);
    struct array *dscale = output(CUDNN_GRAPH_DSCALE, c, true, 4);
    struct array *dshift = output(CUDNN_GRAPH_DSHIFT, c, true, 4);
    double m = (double)(count / c);
    dy = input(CUDNN_GRAPH_DY, count, false, 1000);
    for (size_t i = 0; i < c; i++) {
        inv_std->values[i] = i % 3 ? 2 : 0.5f;
        shift->values[i] = (float)((int)i % 5 - 2) / 8 + 0x1p-7f;
    }
    upload(inv_std), upload(shift);
    double *masked = calloc(count, sizeof *masked), *hat = calloc(count, sizeof *hat);
    for (size_t i = 0; i < count; i++) {
        hat[i] = ((double)x[i] - (double)mean[i % c]) * (double)inv_std->values[i % c];
        double y = hat[i] * (double)scale[i % c] + (double)shift->values[i % c];
        masked[i] = spec.relu && y <= 0 ? 0 : (double)dy[i];
        add(dscale, i % c, masked[i] * hat[i]);
        add(dshift, i % c, masked[i]);
    }
    for (size_t i = 0; i < count; i++) {
        double factor = (double)scale[i % c] * (double)inv_std->values[i % c];
        add(dx, i, factor * masked[i]);
        add(dx, i, -factor * dshift->expected[i % c] / m);
        add(dx, i, -factor * hat[i] * dscale->expected[i % c] / m);
    }
    free(masked), free(hat);
    run_plans();
    close_arrays();
}

static void test_norm(void **state) {
    (void)state;
    static const struct shape shapes[] = {{2, 8, 5, 5}, {3, 24, 5, 7}};
    static void (*const checks[])(void) = {
        [CUDNN_GRAPH_NORM_FORWARD] = check_norm_forward,
        [CUDNN_GRAPH_NORM_BACKWARD] = check_norm_backward,
        [CUDNN_GRAPH_NORM_INFERENCE] = check_norm_inference,
    };
    for (int at = 0; at < 2 * 2 * 3 * 3; at++) {
        static const enum cudnn_graph_precision precisions[] = {CUDNN_GRAPH_FP32, CUDNN_GRAPH_BF16,
                                                                CUDNN_GRAPH_FP16};
        struct shape s = shapes[at % 2];
        spec = (struct cudnn_graph_spec){.kind = CUDNN_GRAPH_NORM_FORWARD + at / 4 % 3,
                                         .precision = precisions[at / 12],
                                         .layer = "norm",
                                         .in = s,
                                         .out = s,
                                         .channels = s.c,
                                         .relu = at / 2 % 2,
                                         .eps = 1e-3f};
        checks[spec.kind]();
    }
}
static int open_device(void **state) {
    (void)state;
    return cudnnCreate(&handle) ||
           cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) ||
           cudnnSetStream(handle, stream) || cudnn_graph_device_open(&device, handle, NULL);
}

static int close_device(void **state) {
    (void)state;
    cudnn_desc_close(&device);
    return cudaStreamDestroy(stream) || cudnnDestroy(handle);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_norm),
    };
    setenv("DDPIPE_STANDIN_LEAKS", "1", 1);
    log_open("test_cudnn", -1);
    return cmocka_run_group_tests(tests, open_device, close_device);
}
