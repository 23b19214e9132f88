/* The tables are the published networks: parameter counts (vgg11 9,231,114; wideresnet width 10
 * 17,117,754), arenas in backward order with the frozen parameters last, and a whitening layer that
 * whitens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trainer/init.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct model build(const char *name, int64_t width, const char *widths) {
    struct model m;
    struct model_options o = {.name = name,
                              .width = width,
                              .widths = widths,
                              .activation = "relu",
                              .dropout = .01,
                              .channels = 3,
                              .classes = 10};
    assert_int_equal(model_build(&m, &o), 0);
    return m;
}

static size_t parameters(const char *name, int64_t width, const char *widths, size_t *trained) {
    struct model m = build(name, width, widths);
    struct backend *b;
    struct net *net;
    size_t count = 0;
    assert_int_equal(backend_ref_open(&b), 0);
    assert_int_equal(net_open(&net, &m, b, (struct shape){1, 3, 32, 32}), 0);
    *trained = 0;
    size_t last_trained = 0, first_frozen = net->arena_count;
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        count += p->count;
        *trained += p->trained ? p->count : 0;
        if (p->trained && p->offset > last_trained)
            last_trained = p->offset;
        if (!p->trained && p->offset < first_frozen)
            first_frozen = p->offset;
        /* backward order: a later layer lies before an earlier one */
        if (i && p->trained && net->params[i - 1].trained)
            assert_true(p->offset < net->params[i - 1].offset);
    }
    assert_true(last_trained < first_frozen);
    net_close(&net);
    b->call->close(&b);
    return count;
}

static void counts(void **state) {
    (void)state;
    size_t trained;
    assert_int_equal(parameters("vgg11", 1, "", &trained), 9231114);
    assert_int_equal(trained, 9231114);
    assert_int_equal(parameters("wideresnet", 10, "", &trained), 17117754);
    assert_int_equal(trained, 17117754);
    /* stem 24·12 + 24; 9·(24·16 + 16·16 + 16·64 + 64·64 + 64·128 + 128·128); six norms; 1280 */
    size_t convolutions = 9 * (24 * 16 + 16 * 16 + 16 * 64 + 64 * 64 + 64 * 128 + 128 * 128);
    size_t shifts = 2 * (16 + 64 + 128);
    assert_int_equal(parameters("speednet", 1, "16,64,128", &trained),
                     24 * 12 + 24 + convolutions + 2 * shifts + 1280);
    assert_int_equal(trained, convolutions + shifts + 1280);
}

/* Filters times the moment of normalised patches times filters, transposed, is the identity but for
 * the 5e-4 beside the eigenvalue: eig / (eig + 5e-4) on the diagonal. */
static void whitening(void **state) {
    (void)state;
    struct init_patches p;
    const float scale[3] = {4 / 255.f, 5 / 255.f, 6 / 255.f}, shift[3] = {-2, -2.5f, -1};
    float w[24 * 12];
    for (int i = 0; i < 12; i++)
        p.mean[i] = .4 + .01 * i;
    for (int i = 0; i < 12; i++)
        for (int j = 0; j < 12; j++)
            p.moment[i][j] = p.mean[i] * p.mean[j] + .05 * exp(-.5 * abs(i - j));
    init_whiten(&p, scale, shift, w);
    double largest = INFINITY;
    for (int f = 0; f < 12; f++)
        for (int g = 0; g < 12; g++) {
            double sum = 0, norm = 0;
            for (int i = 0; i < 12; i++) {
                norm += (double)w[f * 12 + i] * (double)w[f * 12 + i];
                for (int j = 0; j < 12; j++) {
                    double a = 255 * (double)scale[i / 4], b = 255 * (double)scale[j / 4];
                    double c = (double)shift[i / 4], d = (double)shift[j / 4];
                    double m =
                        a * b * p.moment[i][j] + a * d * p.mean[i] + b * c * p.mean[j] + c * d;
                    sum += (double)w[f * 12 + i] * m * (double)w[g * 12 + j];
                }
            }
            if (f != g) {
                assert_true(fabs(sum) < 1e-4);
                continue;
            }
            double eigenvalue = 1 / norm - 5e-4;
            assert_true(fabs(sum - eigenvalue / (eigenvalue + 5e-4)) < 1e-4);
            assert_true(eigenvalue <= largest * 1.0001);
            largest = eigenvalue;
            for (int i = 0; i < 12; i++)
                assert_true(fabsf(w[(12 + f) * 12 + i] + w[f * 12 + i]) <= 0);
        }
}

/* PyTorch's bound ±1/√fan_in holds and is used to its ends; the same seed gives the same weights,
 * another one others. */
static void first_weights(void **state) {
    (void)state;
    struct model m = build("vgg11", 1, "");
    struct backend *b;
    struct net *nets[3];
    const uint64_t seeds[3] = {1, 1, 2};
    assert_int_equal(backend_ref_open(&b), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(net_open(&nets[i], &m, b, (struct shape){1, 3, 32, 32}), 0);
        assert_int_equal(init_weights(nets[i], seeds[i], NULL), 0);
    }
    size_t bytes = nets[0]->arena_count * sizeof(float);
    assert_memory_equal(nets[0]->weights, nets[1]->weights, bytes);
    assert_memory_not_equal(nets[0]->weights, nets[2]->weights, bytes);
    for (int i = 0; i < nets[0]->param_count; i++) {
        const struct param *p = &nets[0]->params[i];
        if (p->kind != PARAM_WEIGHT)
            continue;
        float bound = 1 / sqrtf((float)(p->count / (size_t)p->dims[0])), most = 0;
        for (size_t k = 0; k < p->count; k++)
            most = fmaxf(most, fabsf(nets[0]->weights[p->offset + k]));
        assert_true(most <= bound);
        assert_true(most > bound * (1 - 20 / (float)p->count));
    }
    for (int i = 0; i < 3; i++)
        net_close(&nets[i]);
    b->call->close(&b);
}

/* An image too small for a network is refused, before anything is made. */
static void too_small(void **state) {
    (void)state;
    struct model m = build("vgg11", 1, "");
    struct backend *b;
    struct net *net = NULL;
    assert_int_equal(backend_ref_open(&b), 0);
    assert_int_equal(net_open(&net, &m, b, (struct shape){1, 3, 28, 28}), 1);
    assert_null(net);
    b->call->close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(whitening),
        cmocka_unit_test(first_weights),
        cmocka_unit_test(too_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
