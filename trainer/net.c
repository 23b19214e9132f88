/* net.c: from a table of layers to arenas, plans, and passes over them. */
#include "trainer/net.h"
#include "lib/clock.h"
#include "lib/log.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Output shape of a layer; false where the input is too small for it. */
static bool layer_shape(const struct layer *l, struct shape in, struct shape *out) {
    *out = (struct shape){in.n, l->channels, in.h, in.w};
    if (l->kind == LAYER_CONV) {
        out->h = in.h + 2 * l->pad - l->kernel + 1;
        out->w = in.w + 2 * l->pad - l->kernel + 1;
    } else if (l->kind == LAYER_MAXPOOL || l->kind == LAYER_AVGPOOL) {
        out->h = l->kernel ? in.h / l->kernel : 1;
        out->w = l->kernel ? in.w / l->kernel : 1;
    }
    return out->h > 0 && out->w > 0 && (l->kind != LAYER_LINEAR || (in.h == 1 && in.w == 1));
}

static int shapes(const struct model *m, struct shape input, struct shape out[MODEL_LAYERS_MAX]) {
    for (int i = 0; i < m->count; i++) {
        const struct layer *l = &m->layers[i];
        struct shape in = l->in == LAYER_INPUT ? input : out[l->in];
        if (!layer_shape(l, in, &out[i]))
            return fail(BAD_INPUT, "%s cannot take images of %dx%d: layer \"%s\" would see %dx%d",
                        m->name, input.h, input.w, l->name, in.h, in.w);
    }
    return 0;
}

static struct param *add_param(struct net *net, int layer, enum param_kind kind, const char *suffix,
                               bool trained) {
    struct param *p = &net->params[net->param_count++];
    const struct layer *l = &net->model.layers[layer];
    *p = (struct param){.kind = kind,
                        .layer = layer,
                        .trained = trained,
                        .rank = 1,
                        .dims = {l->channels, 1, 1, 1},
                        .count = (size_t)l->channels};
    snprintf(p->name, sizeof p->name, "%s.%s", l->name, suffix);
    p->weight.count = p->count;
    return p;
}

static int list_params(struct net *net, struct shape input, const struct shape *out) {
    for (int i = 0; i < net->model.count; i++) {
        const struct layer *l = &net->model.layers[i];
        struct shape in = l->in == LAYER_INPUT ? input : out[l->in];
        if (l->kind == LAYER_CONV || l->kind == LAYER_LINEAR) {
            struct param *p = add_param(net, i, PARAM_WEIGHT, "weight", !l->frozen);
            int k = l->kind == LAYER_CONV ? l->kernel : 1;
            p->rank = l->kind == LAYER_CONV ? 4 : 2;
            p->dims[1] = in.c;
            p->dims[2] = p->dims[3] = k;
            p->count = (size_t)l->channels * (size_t)(in.c * k * k);
            int rc = net->backend->call->weight_open(net->backend, l, in, &p->weight);
            if (rc)
                return rc;
            if (l->bias)
                add_param(net, i, PARAM_BIAS, "bias", !l->bias_frozen);
        } else if (l->kind == LAYER_BATCHNORM) {
            add_param(net, i, PARAM_BN_SCALE, "weight", !l->frozen);
            add_param(net, i, PARAM_BN_SHIFT, "bias", true);
            struct net_stat *s = &net->stat[net->stat_count++];
            *s = (struct net_stat){.layer = i, .channels = l->channels, .offset = net->stat_floats};
            snprintf(s->name, sizeof s->name, "%s", l->name);
            net->stat_floats += 2 * (size_t)l->channels;
        }
    }
    return 0;
}

/* Offsets in backward order, trained ones first, each at a multiple of 16 floats (64 bytes). */
static void lay_out(struct net *net) {
    for (int trained = 1; trained >= 0; trained--) {
        for (int i = net->param_count - 1; i >= 0; i--) {
            struct param *p = &net->params[i];
            if (p->trained != trained)
                continue;
            p->offset = net->arena_count;
            net->arena_count += (p->weight.count + 15) / 16 * 16;
        }
        if (trained)
            net->trained_count = net->arena_count;
    }
}

static int open_scratch(struct net *net) {
    size_t most = 1;
    for (int i = 0; i < net->param_count; i++)
        most = net->params[i].weight.count > most ? net->params[i].weight.count : most;
    for (int i = 0; i < net->stat_count; i++)
        most = 2 * (size_t)net->stat[i].channels > most ? 2 * (size_t)net->stat[i].channels : most;
    net->scratch = malloc(most * sizeof *net->scratch);
    return net->scratch ? 0 : fail(SYSTEM_FAILED, "out of memory for a parameter");
}

static void reset_stat(struct net *net, const struct net_stat *s) {
    size_t channels = (size_t)s->channels;
    for (size_t c = 0; c < channels; c++) {
        net->scratch[c] = 0;
        net->scratch[channels + c] = 1;
    }
    net->backend->call->write(net->backend, net->stats + s->offset, net->scratch, 2 * channels);
}

int net_open(struct net **out, const struct model *model, struct backend *backend,
             struct shape input) {
    struct shape shape[MODEL_LAYERS_MAX];
    int rc = shapes(model, input, shape);
    if (rc)
        return rc;
    struct net *net = calloc(1, sizeof *net);
    if (!net)
        return fail(SYSTEM_FAILED, "out of memory");
    net->backend = backend;
    net->model = *model;
    rc = list_params(net, input, shape);
    if (!rc) {
        lay_out(net);
        net->weights = backend->call->alloc(backend, net->arena_count);
        net->grads = backend->call->alloc(backend, net->arena_count);
        net->stats = backend->call->alloc(backend, net->stat_floats + 1);
        if (!net->weights || !net->grads || !net->stats)
            rc = SYSTEM_FAILED;
        else
            rc = open_scratch(net);
    }
    if (rc) {
        net_close(&net);
        return rc;
    }
    for (int i = 0; i < net->stat_count; i++)
        reset_stat(net, &net->stat[i]);
    double mean[4] = {0}, std[4] = {1, 1, 1, 1};
    net_normalise(net, mean, std);
    *out = net;
    return 0;
}

void net_close(struct net **net) {
    if (!*net)
        return;
    for (int i = 0; i < (*net)->plan_count; i++) {
        struct plan *plan = (*net)->plans[i];
        for (int k = 0; k < (*net)->model.count; k++)
            (*net)->backend->call->op_close((*net)->backend, &plan->ops[k]);
        free(plan);
    }
    free((*net)->scratch);
    free(*net);
    *net = NULL;
}

void net_normalise(struct net *net, const double *mean, const double *std) {
    for (int c = 0; c < net->model.channels; c++) {
        net->scale[c] = (float)(1 / (255 * std[c]));
        net->shift[c] = (float)(-mean[c] / std[c]);
    }
}

static void bind(struct net *net, struct op *op, int layer) {
    for (int i = 0; i < net->param_count; i++) {
        struct param *p = &net->params[i];
        if (p->layer != layer)
            continue;
        if (p->kind == PARAM_WEIGHT || p->kind == PARAM_BN_SCALE) {
            op->weight = net->weights + p->offset;
            op->weight_grad = net->grads + p->offset;
            op->weight_wanted = op->training && p->trained;
            op->shape = &p->weight;
        } else {
            op->bias = net->weights + p->offset;
            op->bias_grad = net->grads + p->offset;
            op->bias_wanted = op->training && p->trained;
        }
    }
    for (int i = 0; i < net->stat_count; i++)
        if (net->stat[i].layer == layer) {
            op->running_mean = net->stats + net->stat[i].offset;
            op->running_variance = op->running_mean + net->stat[i].channels;
        }
}

/* Which tensors need a gradient: those that a trained parameter lies before. */
static void mark_gradients(struct plan *plan, const struct model *m) {
    bool wanted[MODEL_LAYERS_MAX];
    for (int i = 0; i < m->count; i++) {
        const struct layer *l = &m->layers[i];
        struct op *op = &plan->ops[i];
        bool in = l->in != LAYER_INPUT && wanted[l->in];
        bool in2 = l->kind == LAYER_ADD && wanted[l->in2];
        op->in_grad = in;
        wanted[i] = plan->training && (in || in2 || op->weight_wanted || op->bias_wanted);
    }
}

/* In backward order: the first to write a gradient opens it, a later one adds to it. An addition
 * passes its own gradient on: both inputs share it (nothing reads it after they have written). */
static int open_backward(struct net *net, struct plan *plan) {
    struct backend *b = net->backend;
    int last = net->model.count - 1;
    int rc = b->call->grad_open(b, &plan->tensors[last]);
    for (int i = last; i >= 0 && !rc; i--) {
        struct op *op = &plan->ops[i];
        if (!op->out->grad)
            continue;
        if (op->layer->kind == LAYER_ADD) {
            if (op->in->grad || op->in2->grad)
                return fail(SYSTEM_FAILED, "layer \"%s\": an input is used again later",
                            op->layer->name);
            op->in->grad = op->in2->grad = op->out->grad;
            continue;
        }
        if (op->in_grad && op->in->grad == op->out->grad)
            return fail(SYSTEM_FAILED, "layer \"%s\": would overwrite the gradient it reads",
                        op->layer->name);
        if (op->in_grad && op->in->grad)
            op->accumulate = true;
        else if (op->in_grad)
            rc = b->call->grad_open(b, op->in);
        if (!rc)
            rc = b->call->backward_open(b, op);
    }
    return rc;
}

static int open_plan(struct net *net, struct plan *plan) {
    struct backend *b = net->backend;
    struct shape shape[MODEL_LAYERS_MAX];
    int rc = shapes(&net->model, plan->input, shape);
    if (!rc)
        rc = b->call->plan_begin(b);
    plan->images.shape = plan->input;
    if (!rc)
        rc = b->call->input_open(b, &plan->images);
    for (int i = 0; i < net->model.count && !rc; i++) {
        struct op *op = &plan->ops[i];
        const struct layer *l = &net->model.layers[i];
        op->layer = l;
        op->in = l->in == LAYER_INPUT ? &plan->images : &plan->tensors[l->in];
        op->in2 = l->kind == LAYER_ADD ? &plan->tensors[l->in2] : NULL;
        op->out = &plan->tensors[i];
        op->out->shape = shape[i];
        op->training = plan->training;
        if (op->training && op->layer->kind == LAYER_BATCHNORM) {
            op->sum = net->sum;
            op->sum_arg = net->sum_arg;
        }
        bind(net, op, i);
        rc = b->call->op_open(b, op);
    }
    if (!rc && plan->training) {
        mark_gradients(plan, &net->model);
        rc = open_backward(net, plan);
    }
    return rc;
}

struct plan *net_plan(struct net *net, struct shape in, bool training) {
    for (int i = 0; i < net->plan_count; i++) {
        struct plan *p = net->plans[i];
        if (p->training == training && !memcmp(&p->input, &in, sizeof in))
            return p;
    }
    if (net->plan_count == NET_PLANS_MAX) {
        fail(BAD_INPUT, "more than %d batch shapes in one run", NET_PLANS_MAX);
        return NULL;
    }
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        fail(SYSTEM_FAILED, "out of memory");
        return NULL;
    }
    plan->input = in;
    plan->training = training;
    net->plans[net->plan_count++] = plan;
    return open_plan(net, plan) ? NULL : plan;
}

void net_forward(struct net *net, struct plan *plan, const uint8_t *pixels, uint64_t step) {
    struct backend *b = net->backend;
    b->call->input(b, &plan->images, pixels, net->scale, net->shift);
    for (int i = 0; i < net->model.count; i++) {
        int64_t began = net->profile ? clock_ns() : 0;
        plan->ops[i].seed = net->seed + step * MODEL_LAYERS_MAX + (uint64_t)i;
        b->call->forward(b, &plan->ops[i]);
        if (net->profile)
            net->layer_ns[i][0] += clock_ns() - began;
    }
    if (plan->training)
        net->batches_tracked++;
}

void net_loss(struct net *net, struct plan *plan, const int32_t *labels, float smoothing) {
    struct tensor *logits = &plan->tensors[net->model.count - 1];
    net->backend->call->loss(net->backend, logits, labels, smoothing);
}

struct backend_loss net_totals(struct net *net) {
    return net->backend->call->totals(net->backend);
}

static size_t final_grads(const struct net *net, int layer) {
    size_t end = 0;
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        if (p->layer == layer && p->trained) {
            size_t after = p->offset + (p->weight.count + 15) / 16 * 16;
            end = after > end ? after : end;
        }
    }
    return end;
}

void net_backward(struct net *net, struct plan *plan, void (*ready)(void *arg, size_t end),
                  void *arg) {
    struct backend *b = net->backend;
    for (int i = net->model.count - 1; i >= 0; i--) {
        struct op *op = &plan->ops[i];
        if (!op->out->grad)
            continue;
        int64_t began = net->profile ? clock_ns() : 0;
        if (op->layer->kind != LAYER_ADD)
            b->call->backward(b, op);
        if (net->profile)
            net->layer_ns[i][1] += clock_ns() - began;
        size_t end = ready ? final_grads(net, i) : 0;
        if (end)
            ready(arg, end);
    }
}

void net_get(struct net *net, const struct param *p, const float *arena, float *plain) {
    struct backend *b = net->backend;
    if (p->kind != PARAM_WEIGHT) {
        b->call->read(b, plain, arena + p->offset, p->count);
        return;
    }
    b->call->read(b, net->scratch, arena + p->offset, p->weight.count);
    b->call->weight_get(b, &p->weight, net->scratch, plain);
}

void net_put(struct net *net, const struct param *p, const float *plain, float *arena) {
    struct backend *b = net->backend;
    if (p->kind != PARAM_WEIGHT) {
        b->call->write(b, arena + p->offset, plain, p->count);
        return;
    }
    b->call->weight_put(b, &p->weight, plain, net->scratch);
    b->call->write(b, arena + p->offset, net->scratch, p->weight.count);
}

const float *net_get_stat(struct net *net, const struct net_stat *s) {
    net->backend->call->read(net->backend, net->scratch, net->stats + s->offset,
                             2 * (size_t)s->channels);
    return net->scratch;
}

static bool all_finite(const float *x, size_t count) {
    float sum = 0; /* x·0 is 0 where x is finite, else nan, which stays */
    for (size_t i = 0; i < count; i++)
        sum += x[i] * 0;
    return !isnan(sum);
}

const char *net_not_finite(struct net *net) {
    struct backend *b = net->backend;
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        b->call->read(b, net->scratch, net->weights + p->offset, p->weight.count);
        if (!all_finite(net->scratch, p->weight.count))
            return p->name;
    }
    for (int i = 0; i < net->stat_count; i++)
        if (!all_finite(net_get_stat(net, &net->stat[i]), 2 * (size_t)net->stat[i].channels))
            return net->stat[i].name;
    return NULL;
}

void net_print_profile(const struct net *net, int64_t steps) {
    if (steps < 1)
        return;
    log_note("%-24s %12s %12s  (ms per step)", "layer", "forward", "backward");
    for (int i = 0; i < net->model.count; i++)
        log_note("%-24s %12.3f %12.3f", net->model.layers[i].name,
                 (double)net->layer_ns[i][0] / 1e6 / (double)steps,
                 (double)net->layer_ns[i][1] / 1e6 / (double)steps);
}
