/* The oneDNN backend computes what the reference backend computes: every activation, every
 * gradient, every statistic and the optimizer steps on single layers of odd shapes; activations,
 * losses and statistics on whole networks. (A whole network's gradient jumps where one ReLU or
 * maximum falls the other way by rounding: tests/parity compares those, where float64 tells such a
 * jump from a mistake.)
 *
 * Tolerance: both sum the same products in another order. A float sum of K terms differs from the
 * exact one by at most K·eps·Σ|terms| (Higham, Accuracy and Stability, 4.2), in practice by about
 * √K·eps of it; a chain of L layers adds up L of them, and normalising multiplies by the ratio of a
 * map's largest value to its deviation. Measured against the largest value of a tensor, the bound
 * is 8·L·√K·eps with K the longest sum of the network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/rng.h"
#include "trainer/init.h"
#include "trainer/optim.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct backend *ref, *cpu;

static int open_backends(void **state) {
    (void)state;
    return backend_ref_open(&ref) || backend_cpu_open(&cpu, 2);
}

static int close_backends(void **state) {
    (void)state;
    ref->call->close(&ref);
    cpu->call->close(&cpu);
    return 0;
}

static double bound(const struct net *net) {
    double longest = 1;
    for (int i = 0; i < net->param_count; i++)
        longest = fmax(longest, (double)net->params[i].count / net->params[i].dims[0]);
    return 8 * net->model.count * sqrt(longest * net->plans[0]->input.n) * (double)FLT_EPSILON;
}

/* floor: differences are measured against at least this. */
static void compare(const char *what, const char *name, const float *a, const float *b,
                    size_t count, double floor, double tolerance) {
    double largest = floor, worst = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(b[i]));
        largest = fmax(largest, fabs((double)a[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    }
    if (worst > tolerance * largest)
        fail_msg("%s of %s: %g of %g, allowed %g", what, name, worst, largest, tolerance * largest);
}

static float *plain_tensor(struct net *net, const struct tensor *t, const float *native) {
    struct shape s = t->shape;
    float *x = malloc((size_t)s.n * (size_t)(s.c * s.h * s.w) * sizeof *x);
    assert_non_null(x);
    net->backend->call->tensor_get(net->backend, t, native, x);
    return x;
}

static void compare_tensors(struct net *a, struct net *b, struct plan *p, struct plan *q) {
    for (int i = 0; i < a->model.count; i++) {
        struct tensor *s = &p->tensors[i], *t = &q->tensors[i];
        size_t count = (size_t)s->shape.n * (size_t)(s->shape.c * s->shape.h * s->shape.w);
        float *x = plain_tensor(a, s, s->data), *y = plain_tensor(b, t, t->data);
        compare("output", a->model.layers[i].name, x, y, count, 1e-30, bound(a));
        free(x);
        free(y);
    }
}

/* A bias before a BatchNorm has no effect: its gradient is what rounding leaves of a sum that is
 * zero, so a bias is measured against its layer's weights. */
static void compare_params(struct net *a, struct net *b, const float *x, const float *y,
                           const char *what, double tolerance) {
    double of_weights = 1e-30;
    for (int i = 0; i < a->param_count; i++) {
        struct param *p = &a->params[i];
        if (!p->trained)
            continue;
        float *s = malloc(p->count * sizeof *s), *t = malloc(p->count * sizeof *t);
        net_get(a, p, x, s);
        net_get(b, &b->params[i], y, t);
        compare(what, p->name, s, t, p->count, p->kind == PARAM_BIAS ? of_weights : 1e-30,
                tolerance);
        for (size_t k = 0; k < p->count && p->kind == PARAM_WEIGHT; k++)
            of_weights = k ? fmax(of_weights, fabs((double)s[k])) : fabs((double)s[k]);
        free(s);
        free(t);
    }
}

/* As if the same batch counted two and a half times: not one sum or count may miss the call. */
static void two_ranks(void *arg, double *x, size_t count) {
    (void)arg;
    for (size_t i = 0; i < count; i++)
        x[i] *= 2.5;
}

static bool synchronised; /* BatchNorms of nets to come */

static struct net *open_net(struct backend *b, const struct model *m, struct shape in) {
    struct net *net;
    double mean[4] = {.5, .4, .3, .2}, std[4] = {.2, .25, .3, .35};
    struct init_patches patches = {.moment = {{0}}};
    assert_int_equal(net_open(&net, m, b, in), 0);
    net_normalise(net, mean, std);
    net->sum = synchronised ? two_ranks : NULL;
    for (int i = 0; i < INIT_PATCH; i++) {
        patches.mean[i] = .5;
        for (int j = 0; j < INIT_PATCH; j++)
            patches.moment[i][j] = i == j ? 1. / 3 : .25;
    }
    assert_int_equal(init_weights(net, 7, &patches), 0);
    /* scales and shifts that do something: 1 and 0 would hide a mistake, and make averages cancel
     */
    struct rng r = rng_at(3, RNG_TEST, 0, 0);
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        for (size_t k = 0; k < p->count && p->trained; k++)
            if (p->kind == PARAM_BN_SCALE || p->kind == PARAM_BN_SHIFT)
                net->weights[p->offset + k] = .5f + rng_uniform(&r);
    }
    return net;
}

/* Two steps in both backends: the second sees what the first did to weights and statistics. With
 * optimizer NULL one forward pass in training. Then one outside training. */
static void same(const struct model *m, struct shape in, const char *optimizer) {
    struct net *a = open_net(ref, m, in), *b = open_net(cpu, m, in);
    struct optim_options o = {.name = optimizer ? optimizer : "sgd",
                              .momentum = .9,
                              .beta1 = .9,
                              .beta2 = .999,
                              .eps = 1e-3,
                              .weight_decay = .1,
                              .nesterov = in.n % 2,
                              .shift_rate_scale = 4};
    struct optim *oa, *ob;
    assert_int_equal(optim_open(&oa, a, &o) || optim_open(&ob, b, &o), 0);
    size_t bytes = (size_t)in.n * (size_t)(in.c * in.h * in.w);
    uint8_t *pixels = malloc(bytes);
    int32_t *labels = malloc((size_t)in.n * sizeof *labels);
    struct rng r = rng_at(1, RNG_TEST, 0, 0);
    for (size_t i = 0; i < bytes; i++)
        pixels[i] = (uint8_t)rng_u32(&r);
    for (int i = 0; i < in.n; i++)
        labels[i] = (int32_t)rng_below(&r, (uint32_t)m->classes);
    for (int step = 0; step < 2; step++) {
        struct plan *p = net_plan(a, in, true), *q = net_plan(b, in, true);
        assert_non_null(p);
        assert_non_null(q);
        net_forward(a, p, pixels, 0);
        net_forward(b, q, pixels, 0);
        compare_tensors(a, b, p, q);
        net_loss(a, p, labels, .2f);
        net_loss(b, q, labels, .2f);
        struct backend_loss x = net_totals(a), y = net_totals(b);
        assert_true(fabs(x.loss_sum - y.loss_sum) <= bound(a) * fabs(x.loss_sum) * 4);
        compare("statistics", m->name, a->stats, b->stats, a->stat_floats, 1e-30, bound(a));
        if (!optimizer)
            break;
        net_backward(a, p, NULL, NULL);
        net_backward(b, q, NULL, NULL);
        compare_params(a, b, a->grads, b->grads, "gradient", bound(a) * 8);
        optim_step(oa, a, 1e-3, .5);
        optim_step(ob, b, 1e-3, .5);
        compare_params(a, b, a->weights, b->weights, "weight", bound(a) * 8);
    }
    struct plan *p = net_plan(a, in, false), *q = net_plan(b, in, false);
    net_forward(a, p, pixels, 0);
    net_forward(b, q, pixels, 0);
    compare_tensors(a, b, p, q);
    optim_close(&oa);
    optim_close(&ob);
    net_close(&a);
    net_close(&b);
    free(pixels);
    free(labels);
}

static struct model build(const char *name, int width, const char *widths, const char *activation) {
    struct model m;
    struct model_options o = {.name = name,
                              .width = width,
                              .widths = widths,
                              .activation = activation,
                              .stem_bias = !strcmp(activation, "gelu"),
                              .channels = 3,
                              .classes = 10};
    assert_int_equal(model_build(&m, &o), 0);
    return m;
}

static void networks(void **state) {
    (void)state;
    struct model m = build("vgg11", 1, "", "relu");
    same(&m, (struct shape){2, 3, 32, 32}, NULL);
    m = build("wideresnet", 1, "", "relu");
    same(&m, (struct shape){3, 3, 32, 32}, NULL);
    m = build("speednet", 1, "8,24,40", "relu");
    same(&m, (struct shape){3, 3, 24, 24}, NULL);
    m = build("speednet", 1, "5,7,9", "gelu");
    same(&m, (struct shape){2, 3, 32, 32}, NULL);
}

/* conv → batchnorm → the layer in question (with a shortcut around it for an addition) → global
 * maximum → linear (an average of a normalised map would cancel to nothing), over shapes that fill
 * no vector and no block. */
static struct model around(enum layer_kind kind, int channels, int kernel, int pad) {
    struct model m = {.name = "around", .channels = 3, .classes = 7};
    struct layer *l = m.layers;
    l[0] = (struct layer){.kind = LAYER_CONV,
                          .name = "a",
                          .in = LAYER_INPUT,
                          .channels = channels,
                          .kernel = 3,
                          .pad = 1,
                          .bias = true};
    l[1] = (struct layer){.kind = LAYER_BATCHNORM,
                          .name = "b",
                          .in = 0,
                          .channels = channels,
                          .eps = 1e-5f,
                          .momentum = .1f};
    l[2] = (struct layer){.kind = kind,
                          .name = "c",
                          .in = 1,
                          .in2 = 0,
                          .channels = channels,
                          .kernel = kernel,
                          .pad = pad,
                          .p = .5f,
                          .bias = kind == LAYER_CONV,
                          .relu = kind == LAYER_CONV,
                          .eps = 1e-5f,
                          .momentum = .3f};
    l[3] = (struct layer){.kind = LAYER_MAXPOOL, .name = "d", .in = 2, .channels = channels};
    l[4] = (struct layer){.kind = LAYER_LINEAR, .name = "e", .in = 3, .channels = 7, .bias = true};
    m.count = 5;
    if (kind == LAYER_BATCHNORM) /* two in a row would undo each other's scale */
        l[1].kind = LAYER_GELU;
    if (kind == LAYER_ADD) { /* an identity shortcut: relu(batchnorm(conv(b))) + b */
        l[2] = (struct layer){
            .kind = LAYER_CONV, .name = "c", .in = 1, .channels = channels, .kernel = 3, .pad = 1};
        l[5] = l[3];
        l[5].in = 4;
        l[6] = (struct layer){.kind = LAYER_LINEAR, .name = "e", .in = 5, .channels = 7};
        l[3] = l[1];
        l[3].in = 2;
        l[3].relu = true;
        snprintf(l[3].name, sizeof l[3].name, "g");
        l[4] =
            (struct layer){.kind = LAYER_ADD, .name = "f", .in = 3, .in2 = 1, .channels = channels};
        m.count = 7;
    }
    return m;
}

static void single_layers(void **state) {
    (void)state;
    static const struct shape shapes[] = {{2, 3, 8, 8}, {3, 3, 5, 7}, {2, 1, 6, 13}};
    static const int channels[] = {1, 16, 21};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t c = 0; c < sizeof channels / sizeof *channels; c++) {
            struct model m;
            const struct {
                enum layer_kind kind;
                int kernel, pad;
            } layers[] = {{LAYER_CONV, 3, 1},      {LAYER_CONV, 1, 0},    {LAYER_CONV, 2, 0},
                          {LAYER_BATCHNORM, 0, 0}, {LAYER_GELU, 0, 0},    {LAYER_MAXPOOL, 2, 0},
                          {LAYER_MAXPOOL, 3, 0},   {LAYER_AVGPOOL, 2, 0}, {LAYER_SCALE, 0, 0},
                          {LAYER_ADD, 0, 0}};
            for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
                m = around(layers[l].kind, channels[c], layers[l].kernel, layers[l].pad);
                m.channels = shapes[s].c;
                same(&m, shapes[s], l % 2 ? "adam" : "sgd");
            }
        }
}

/* BatchNorm's sums go through the ranks' sum, forward and backward. */
static void synchronised_norms(void **state) {
    synchronised = true;
    single_layers(state);
    struct model m = build("wideresnet", 1, "", "relu");
    same(&m, (struct shape){3, 3, 32, 32}, NULL);
    synchronised = false;
}

/* Dropout passes on the right share, scaled, and backward through the same mask; other seeds give
 * other masks, none outside training. */
static void dropout(void **state) {
    (void)state;
    struct model m = around(LAYER_DROPOUT, 16, 0, 0);
    m.layers[2].p = .25f;
    struct shape in = {8, 3, 16, 16};
    struct net *net = open_net(cpu, &m, in);
    struct plan *p = net_plan(net, in, true);
    uint8_t *pixels = calloc(1, 8 * 3 * 16 * 16);
    int32_t labels[8] = {0};
    struct rng r = rng_at(2, RNG_TEST, 0, 0);
    for (int i = 0; i < 8 * 3 * 16 * 16; i++)
        pixels[i] = (uint8_t)rng_u32(&r);
    float *first = NULL;
    for (int step = 0; step < 2; step++) {
        net_forward(net, p, pixels, (uint64_t)step);
        net_loss(net, p, labels, 0);
        net_backward(net, p, NULL, NULL);
        float *x = plain_tensor(net, &p->tensors[1], p->tensors[1].data);
        float *y = plain_tensor(net, &p->tensors[2], p->tensors[2].data);
        float *dx = plain_tensor(net, &p->tensors[1], p->tensors[1].grad);
        float *dy = plain_tensor(net, &p->tensors[2], p->tensors[2].grad);
        double n = 8 * 16 * 16 * 16, zeros = 0;
        for (int i = 0; i < (int)n; i++) {
            bool dropped = fabsf(y[i]) <= 0;
            zeros += dropped;
            assert_true(dropped || fabsf(y[i] * .75f - x[i]) <= 1e-6f * fabsf(x[i]));
            assert_true(fabsf(dx[i] - (dropped ? 0 : dy[i] / .75f)) <= 1e-6f * fabsf(dx[i]));
        }
        /* five standard deviations of a binomial count */
        assert_true(fabs(zeros - n / 4) < 5 * sqrt(n * 3 / 16));
        if (first)
            assert_memory_not_equal(first, y, (size_t)n * sizeof *y);
        free(first);
        first = y;
        free(x);
        free(dx);
        free(dy);
    }
    free(first);
    free(pixels);
    net_close(&net);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_layers),
        cmocka_unit_test(networks),
        cmocka_unit_test(synchronised_norms),
        cmocka_unit_test(dropout),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
