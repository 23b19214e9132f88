/* layers.c: every layer of every network on the GPU, against the reference backend.
 *
 * usage: layers [fp32|tf32|bf16|fp16]…   (all four without an argument)
 *
 * A network runs on the GPU operation by operation. What an operation read is fetched, the
 * reference computes the same operation in double from exactly these values, and what the GPU wrote
 * is held against it: so an error is one layer's own, no ReLU or maximum falls the other way
 * upstream, and the bound is derived (bounds.h), not tuned. After it an update, whose weights the
 * next passes read; a pass outside training; and whole steps, of which the later ones are recorded
 * and run again, bit for bit those that run call by call. Networks of the models are compared from
 * images to logits, too, in fp32.
 *
 * Prints a line for each network: of the quantity that came nearest to its bound, error and bound;
 * before it, what is over. Exits 1 where anything is. */
#include "lib/log.h"
#include "lib/rng.h"
#include "tests/gpu/twin.h"
#include "trainer/backend_cuda.h"
#include "trainer/net.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bounds_type types[] = {{"fp32", 0x1p-24, FLT_MIN, 0},
                                           {"tf32", 0x1p-24, FLT_MIN, 0x1p-10},
                                           {"bf16", 0x1p-8, FLT_MIN, 0},
                                           {"fp16", 0x1p-11, 0x1p-25, 0}};

static size_t volume(struct shape s) {
    return (size_t)s.n * (size_t)(s.c * s.h * s.w);
}

static float *floats(size_t count) {
    return bounds_take(count, sizeof(float));
}

struct batch {
    uint8_t *pixels;
    int32_t *labels;
};

static void fill(struct net *net) {
    struct rng rng = rng_at(1, RNG_TEST, 0, 0);
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        float *x = floats(p->count), by = sqrtf(12 * (float)p->dims[0] / (float)p->count);
        for (size_t k = 0; k < p->count; k++)
            x[k] = p->kind == PARAM_BN_SCALE
                       ? .5f + rng_uniform(&rng)
                       : (rng_uniform(&rng) - .5f) * (p->kind == PARAM_WEIGHT ? by : 1);
        net_put(net, p, x, net->weights);
        free(x);
    }
}

/* As cuDNN reads weights and biases of products. */
static float rounded(const struct bounds_type *type, double x) {
    if (!strcmp(type->name, "fp16"))
        return (float)(_Float16)x;
    int exponent;
    double fraction = frexp(x, &exponent);
    return strcmp(type->name, "bf16") ? (float)x
                                      : (float)ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

/* The reference gets the GPU's weights and running statistics. */
static void take_over(struct twin *two, struct net *g, struct net *r) {
    for (int i = 0; i < g->param_count; i++) {
        const struct param *p = &g->params[i];
        float *x = floats(p->count);
        net_get(g, p, g->weights, x);
        for (size_t k = 0; k < p->count; k++)
            if (g->model.layers[p->layer].kind != LAYER_BATCHNORM)
                x[k] = rounded(two->type, (double)x[k]);
        net_put(r, &r->params[i], x, r->weights);
        free(x);
    }
    two->gpu->call->read(two->gpu, r->stats, g->stats, g->stat_floats);
}

static void check_stats(struct twin *two, struct net *g, struct net *r, struct plan *rp) {
    for (int i = 0; i < g->stat_count; i++) {
        const struct net_stat *t = &g->stat[i];
        size_t n = (size_t)t->channels;
        double *of_mean = bounds_take(n, sizeof(double)), *of_var = bounds_take(n, sizeof(double));
        bounds_running(&rp->ops[t->layer], of_mean, of_var);
        const float *got = net_get_stat(g, t), *exact = r->stats + t->offset;
        twin_compare(two, "running mean", t->name, got, exact, of_mean, n, false);
        twin_compare(two, "running variance", t->name, got + n, exact + n, of_var, n, false);
        free(of_mean);
        free(of_var);
    }
}

/* From images to logits, each backend by itself: as in tests/unit/test_backend.c, 8·L·√K·eps of the
 * largest, K the longest sum, L layers. logits: the reference's. */
static void check_logits(struct twin *two, const struct net *r, struct plan *gp,
                         const float *logits) {
    struct tensor *t = &gp->tensors[r->model.count - 1];
    size_t count = volume(t->shape);
    double longest = 1, largest = 0, *slack = bounds_take(count, sizeof *slack);
    for (int i = 0; i < r->param_count; i++)
        longest = fmax(longest, (double)r->params[i].count / r->params[i].dims[0]);
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)logits[i]));
    for (size_t i = 0; i < count; i++)
        slack[i] = 8 * r->model.count * sqrt(longest * t->shape.n) * 0x1p-23 * largest;
    float *got = twin_fetch(two, t, t->data);
    twin_compare(two, "all", "logits", got, logits, slack, count, true);
    free(got);
    free(slack);
}

static double check_pass(struct twin *two, struct net *g, struct net *r, struct shape in,
                         const struct batch *b, bool training, bool whole) {
    struct plan *gp = net_plan(g, in, training), *rp = net_plan(r, in, training);
    if (!gp || !rp)
        exit(SYSTEM_FAILED);
    float *logits = NULL;
    size_t classes = (size_t)g->model.classes;
    take_over(two, g, r);
    if (whole && !strcmp(two->type->name, "fp32")) {
        net_forward(r, rp, b->pixels, 0);
        logits = bounds_copy(rp->tensors[g->model.count - 1].data, (size_t)in.n * classes);
        take_over(two, g, r);
    }
    two->gpu->call->input(two->gpu, &gp->images, b->pixels, g->scale, g->shift);
    two->ref->call->input(two->ref, &rp->images, b->pixels, g->scale, g->shift);
    float *x = twin_fetch(two, &gp->images, gp->images.data);
    double *slack = bounds_take(volume(in), sizeof *slack);
    for (size_t i = 0; i < volume(in); i++) /* up to 255·scale, and the shift */
        slack[i] = 3 * 0x1p-24 * (255 * (double)g->scale[0] + fabs((double)g->shift[0]));
    twin_compare(two, "values", "images", x, rp->images.data, slack, volume(in), true);
    memcpy(rp->images.data, x, volume(in) * sizeof *x);
    free(slack);
    free(x);
    for (int i = 0; i < g->model.count; i++) {
        gp->ops[i].seed = 77 + (uint64_t)i;
        twin_forward(two, &gp->ops[i], &rp->ops[i]);
    }
    if (logits)
        check_logits(two, r, gp, logits);
    free(logits);
    if (!training)
        return 1;
    check_stats(two, g, r, rp);
    double scale = twin_loss(two, g, gp, rp, b->labels);
    for (int i = g->model.count - 1; i >= 0; i--)
        if (gp->ops[i].out->grad && gp->ops[i].layer->kind != LAYER_ADD)
            twin_backward(two, g, r, &gp->ops[i], &rp->ops[i], i);
    return scale;
}

static const float rate = .02f, decay = .05f, momentum = .9f;

static void update(struct twin *two, struct net *g, float *velocity, float by) {
    struct backend_group all = {.end = g->trained_count, .rate = rate * by, .decay = decay};
    two->gpu->call->sgd(two->gpu, g->weights, g->grads, velocity, &all, 1, 1, momentum, true);
}

/* w - rate·(1 + momentum)·(grad/scale + decay·w): the first step of Nesterov's form. */
static void check_update(struct twin *two, struct net *g, float *velocity, double scale) {
    float *before[NET_PARAMS_MAX];
    for (int i = 0; i < g->param_count; i++)
        net_get(g, &g->params[i], g->weights, before[i] = floats(g->params[i].count));
    update(two, g, velocity, 1);
    for (int i = 0; i < g->param_count; i++) {
        const struct param *p = &g->params[i];
        float *w = floats(p->count), *grad = floats(p->count);
        double *slack = bounds_take(p->count, sizeof *slack);
        net_get(g, p, g->weights, w);
        net_get(g, p, g->grads, grad);
        for (size_t k = 0; k < p->count && p->trained; k++) {
            double was = (double)before[i][k], by = (double)rate * (1 + (double)momentum);
            double step = (double)grad[k] / scale, kept = (double)decay * was;
            before[i][k] = (float)(was - by * (step + kept));
            slack[k] = 0x1p-24 * (8 * by * (fabs(step) + fabs(kept)) + 2 * fabs(was));
        }
        twin_compare(two, "updated value", p->name, w, before[i], slack, p->count, false);
        free(before[i]);
        free(w);
        free(grad);
        free(slack);
    }
}

/* FP16 scales the loss by 65536 at first, which is much for a batch that is not normalised as
 * training's: eight updates that overflow make it 256. */
static void lower_scale(struct twin *two, struct net *g, float *velocity) {
    float *grads = floats(g->arena_count);
    for (size_t i = 0; i < g->trained_count; i++)
        grads[i] = INFINITY;
    two->gpu->call->write(two->gpu, g->grads, grads, g->arena_count);
    for (int i = 0; i < 8; i++)
        update(two, g, velocity, 0);
    memset(grads, 0, g->arena_count * sizeof *grads);
    two->gpu->call->write(two->gpu, g->grads, grads, g->arena_count);
    free(grads);
}

enum { STEPS = 4 };

/* Weights, gradients, statistics, velocities, one behind the other, after some steps from state;
 * state becomes them. */
static struct backend_loss run_steps(struct twin *two, struct net *g, struct plan *plan,
                                     const struct batch *b, float *velocity, float *state,
                                     bool recorded) {
    const size_t n = g->arena_count;
    float *const arenas[] = {g->weights, g->grads, velocity, g->stats};
    for (size_t i = 0; i < 4; i++)
        two->gpu->call->write(two->gpu, arenas[i], state + i * n, i < 3 ? n : g->stat_floats);
    for (int step = 0; step < STEPS; step++) {
        if (recorded)
            two->gpu->call->step_begin(two->gpu, plan, 0);
        net_forward(g, plan, b->pixels, (uint64_t)step);
        net_loss(g, plan, b->labels, .1f);
        net_backward(g, plan, NULL, NULL);
        update(two, g, velocity, 1 / (float)(1 + step));
        if (recorded)
            two->gpu->call->step_end(two->gpu);
    }
    for (size_t i = 0; i < 4; i++)
        two->gpu->call->read(two->gpu, state + i * n, arenas[i], i < 3 ? n : g->stat_floats);
    return net_totals(g);
}

static void check_steps(struct twin *two, struct net *g, struct shape in, const struct batch *b,
                        float *velocity) {
    const size_t count = 3 * g->arena_count + g->stat_floats;
    float *calls = floats(count);
    two->gpu->call->read(two->gpu, calls, g->weights, g->arena_count);
    two->gpu->call->read(two->gpu, calls + 3 * g->arena_count, g->stats, g->stat_floats);
    float *recorded = bounds_copy(calls, count);
    struct plan *plan = net_plan(g, in, true);
    struct backend_loss x = run_steps(two, g, plan, b, velocity, calls, false);
    struct backend_loss y = run_steps(two, g, plan, b, velocity, recorded, true);
    if (memcmp(calls, recorded, count * sizeof *calls) != 0)
        twin_wrong(two, "weights, gradients or statistics", "recorded steps");
    if (x.correct != y.correct || fabs(x.loss_sum - y.loss_sum) > 0 || !isfinite(x.loss_sum))
        twin_wrong(two, "sums", "recorded steps");
    free(calls);
    free(recorded);
}

static struct net *open_net(struct backend *b, const struct model *m, struct shape in) {
    struct net *net;
    double mean[4] = {.5, .4, .45, .3}, std[4] = {.2, .25, .3, .35};
    if (net_open(&net, m, b, in))
        exit(SYSTEM_FAILED);
    net_normalise(net, mean, std);
    return net;
}

/* whole: a network of the models. Returns whether anything was wrong. */
static bool check(const struct bounds_type *type, const char *name, const struct model *m,
                  struct shape in, bool whole) {
    struct rng rng = rng_at(2, RNG_TEST, 0, 0);
    struct backend_cuda_options o = {
        .precision = type->name, .local_world_size = 1, .timeout_seconds = 60};
    struct twin two = {.type = type};
    if (backend_cuda_open(&two.gpu, &o) || backend_ref_open(&two.ref))
        exit(SYSTEM_FAILED);
    struct net *g = open_net(two.gpu, m, in), *r = open_net(two.ref, m, in);
    struct batch b = {bounds_take(volume(in), 1), bounds_take((size_t)in.n, sizeof(int32_t))};
    for (size_t i = 0; i < volume(in); i++)
        b.pixels[i] = (uint8_t)rng_u32(&rng);
    for (int i = 0; i < in.n; i++)
        b.labels[i] = (int32_t)rng_below(&rng, (uint32_t)m->classes);
    float *velocity = two.gpu->call->alloc(two.gpu, g->arena_count);
    fill(g);
    if (!strcmp(type->name, "fp16"))
        lower_scale(&two, g, velocity);
    double scale = check_pass(&two, g, r, in, &b, true, whole);
    check_update(&two, g, velocity, scale);
    check_pass(&two, g, r, in, &b, false, whole);
    check_steps(&two, g, in, &b, velocity);
    printf("%s  %-30s %9ld values  nearest: %-36s error %8.2e  bound %8.2e  %s\n", type->name, name,
           two.values, two.what, two.error, two.bound, two.over ? "OVER" : "ok");
    fflush(stdout);
    net_close(&g);
    net_close(&r);
    two.gpu->call->close(&two.gpu);
    two.ref->call->close(&two.ref);
    free(b.pixels);
    free(b.labels);
    return two.over > 0;
}

/* ---- the networks -------------------------------------------------------------------------- */

/* One layer, behind a convolution from 3 channels to `from` (0: it reads the images), before one of
 * 1×1 with a ReLU (so that gradients differ from place to place), an average and a linear layer. */
static const struct single {
    const char *name;
    enum layer_kind kind;
    struct shape in; /* images */
    int from, channels, kernel, pad;
    const char *flags; /* b: bias, r: ReLU, w: not in 16 bits */
    float number;      /* p, eps */
} singles[] = {
    {"conv3 3-16", LAYER_CONV, {4, 3, 32, 32}, 0, 16, 3, 1, "", 0},
    {"conv3 3-64 bias", LAYER_CONV, {2, 3, 32, 32}, 0, 64, 3, 1, "b", 0},
    {"conv2 3-24 bias", LAYER_CONV, {3, 3, 32, 32}, 0, 24, 2, 0, "b", 0},
    {"conv3 16-160", LAYER_CONV, {1, 3, 32, 32}, 16, 160, 3, 1, "", 0},
    {"conv1 16-160 bias", LAYER_CONV, {2, 3, 32, 32}, 16, 160, 1, 0, "b", 0},
    {"conv3 160-160", LAYER_CONV, {1, 3, 32, 32}, 160, 160, 3, 1, "", 0},
    {"conv3 160-320", LAYER_CONV, {1, 3, 16, 16}, 160, 320, 3, 1, "", 0},
    {"conv3 320-640", LAYER_CONV, {1, 3, 8, 8}, 320, 640, 3, 1, "", 0},
    {"conv1 320-640 bias", LAYER_CONV, {2, 3, 8, 8}, 320, 640, 1, 0, "b", 0},
    {"conv3 640-640", LAYER_CONV, {1, 3, 8, 8}, 640, 640, 3, 1, "", 0},
    {"conv3 64-128 bias relu", LAYER_CONV, {2, 3, 16, 16}, 64, 128, 3, 1, "br", 0},
    {"conv3 512-512 on 2x2 bias", LAYER_CONV, {4, 3, 2, 2}, 512, 512, 3, 1, "b", 0},
    {"conv3 256-256 on 7x7", LAYER_CONV, {2, 3, 7, 7}, 256, 256, 3, 1, "", 0},
    {"conv3 24-64 on 31x31", LAYER_CONV, {2, 3, 31, 31}, 24, 64, 3, 1, "", 0},
    {"conv3 24-40 on 5x7 bias relu", LAYER_CONV, {3, 3, 5, 7}, 24, 40, 3, 1, "br", 0},
    {"conv2 8-8 on 6x13 relu", LAYER_CONV, {2, 3, 6, 13}, 8, 8, 2, 0, "r", 0},
    {"conv5 8-16 on 9x9", LAYER_CONV, {2, 3, 9, 9}, 8, 16, 5, 2, "", 0},
    {"conv3 21-13 on 6x13 bias", LAYER_CONV, {2, 3, 6, 13}, 21, 13, 3, 1, "bw", 0},
    {"batchnorm 16 relu", LAYER_BATCHNORM, {4, 3, 32, 32}, 16, 16, 0, 0, "r", 1e-5f},
    {"batchnorm 640", LAYER_BATCHNORM, {2, 3, 8, 8}, 640, 640, 0, 0, "", 1e-5f},
    {"batchnorm 64 eps 1e-12", LAYER_BATCHNORM, {3, 3, 15, 15}, 64, 64, 0, 0, "", 1e-12f},
    {"batchnorm 24 on 5x7 relu", LAYER_BATCHNORM, {3, 3, 5, 7}, 24, 24, 0, 0, "r", 1e-5f},
    {"batchnorm 21 on 5x7", LAYER_BATCHNORM, {3, 3, 5, 7}, 21, 21, 0, 0, "w", 1e-5f},
    {"maxpool2 on 15x15", LAYER_MAXPOOL, {2, 3, 15, 15}, 64, 64, 2, 0, "", 0},
    {"maxpool3 on 7x10", LAYER_MAXPOOL, {2, 3, 7, 10}, 24, 24, 3, 0, "", 0},
    {"maxpool of the map", LAYER_MAXPOOL, {2, 3, 3, 3}, 256, 256, 0, 0, "", 0},
    {"avgpool2 on 5x7", LAYER_AVGPOOL, {2, 3, 5, 7}, 24, 24, 2, 0, "", 0},
    {"avgpool7 on 8x8", LAYER_AVGPOOL, {2, 3, 8, 8}, 640, 640, 7, 0, "", 0},
    {"gelu", LAYER_GELU, {3, 3, 15, 15}, 24, 24, 0, 0, "", 0},
    {"dropout 0.01", LAYER_DROPOUT, {4, 3, 16, 16}, 160, 160, 0, 0, "", .01f},
    {"dropout 0.5 on 5x7", LAYER_DROPOUT, {3, 3, 5, 7}, 24, 24, 0, 0, "", .5f},
    {"scale", LAYER_SCALE, {2, 3, 7, 9}, 24, 24, 0, 0, "", 1 / 9.f},
    {"add", LAYER_ADD, {2, 3, 8, 8}, 160, 160, 0, 0, "", 0},
    {"linear 640-10 bias", LAYER_LINEAR, {8, 3, 2, 2}, 640, 10, 0, 0, "b", 0},
    {"linear 256-10", LAYER_LINEAR, {7, 3, 3, 3}, 256, 10, 0, 0, "", 0},
};

static void add_layer(struct model *m, struct layer l) {
    l.name[0] = (char)('a' + m->count);
    m->layers[m->count++] = l;
}

static bool check_single(const struct bounds_type *type, const struct single *s) {
    struct model m = {.name = "single", .channels = 3, .classes = 10};
    struct layer l = {.kind = s->kind,
                      .in = LAYER_INPUT,
                      .channels = s->channels,
                      .kernel = s->kernel,
                      .pad = s->pad,
                      .bias = strchr(s->flags, 'b'),
                      .relu = strchr(s->flags, 'r'),
                      .p = s->number,
                      .eps = s->number,
                      .momentum = .3f};
    struct layer conv = {.kind = LAYER_CONV,
                         .in = LAYER_INPUT,
                         .channels = s->from,
                         .kernel = 3,
                         .pad = 1,
                         .bias = true};
    struct layer mean = {.kind = LAYER_AVGPOOL};
    struct layer last = {.kind = LAYER_LINEAR, .channels = 10, .bias = true};
    if (s->from) {
        add_layer(&m, conv);
        l.in = 0;
    }
    if (s->kind == LAYER_LINEAR) {
        mean.channels = s->from;
        add_layer(&m, mean);
        l.in = 1;
        add_layer(&m, l);
    } else {
        if (s->kind == LAYER_ADD) { /* a shortcut: its gradient is added to */
            conv.in = 0;
            add_layer(&m, conv);
            add_layer(&m, (struct layer){.kind = LAYER_BATCHNORM,
                                         .in = 1,
                                         .channels = s->channels,
                                         .relu = true,
                                         .eps = 1e-5f,
                                         .momentum = .1f});
            l.in = 2;
            l.in2 = 0;
        }
        add_layer(&m, l);
        conv = (struct layer){.kind = LAYER_CONV,
                              .in = m.count - 1,
                              .channels = 16,
                              .kernel = 1,
                              .bias = true,
                              .relu = true};
        add_layer(&m, conv);
        mean.in = m.count - 1;
        mean.channels = 16;
        add_layer(&m, mean);
        last.in = m.count - 1;
        add_layer(&m, last);
    }
    return check(type, s->name, &m, s->in, false);
}

static bool check_whole(const struct bounds_type *type, const char *name,
                        const struct model_options *o, int size) {
    struct model m;
    if (model_build(&m, o))
        exit(BAD_INPUT);
    return check(type, name, &m, (struct shape){2, 3, size, size}, true);
}

static const struct {
    const char *name;
    struct model_options o;
    int size;
} networks[] = {
    {"speednet 64,256,256 gelu", {"speednet", 1, "64,256,256", "gelu", true, 0, 3, 10}, 32},
    {"speednet 16,64,128 relu 24x24", {"speednet", 1, "16,64,128", "relu", false, 0, 3, 10}, 24},
    {"wideresnet 1", {"wideresnet", 1, "", "relu", false, 0, 3, 10}, 32},
    {"vgg11", {"vgg11", 1, "", "relu", false, 0, 3, 10}, 32},
};

int main(int argc, char **argv) {
    int over = 0;
    log_open("layers", -1);
    for (int k = 1; k < argc; k++) {
        bool known = false;
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            known |= !strcmp(argv[k], types[t].name);
        if (!known)
            return fail(BAD_USAGE, "usage: layers [fp32|tf32|bf16|fp16]...");
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        bool wanted = argc == 1;
        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], types[t].name);
        for (size_t i = 0; wanted && i < sizeof singles / sizeof *singles; i++)
            if (!strchr(singles[i].flags, 'w') || t < 2)
                over += check_single(&types[t], &singles[i]);
        for (size_t i = 0; wanted && i < sizeof networks / sizeof *networks; i++)
            over += check_whole(&types[t], networks[i].name, &networks[i].o, networks[i].size);
    }
    return over ? fail(BAD_INPUT, "%d networks are over their bounds", over) : 0;
}
