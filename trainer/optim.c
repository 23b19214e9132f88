/* optim.c: turns parameters into stretches of equal hyperparameters and steps over them. */
#include "trainer/optim.h"
#include "lib/log.h"
#include <stdlib.h>
#include <string.h>

static void group(struct optim *o, const struct net *net) {
    const struct optim_options *opt = &o->options;
    for (int i = net->param_count - 1; i >= 0; i--) { /* the order of the arena */
        const struct param *p = &net->params[i];
        if (!p->trained)
            continue;
        double by = p->kind == PARAM_BN_SHIFT ? opt->shift_rate_scale : 1;
        struct backend_group g = {.begin = p->offset,
                                  .end = p->offset + p->weight.count,
                                  .rate = (float)by,
                                  .decay = (float)(opt->weight_decay / by)};
        struct backend_group *last = o->count ? &o->base[o->count - 1] : NULL;
        bool stem = net->model.layers[p->layer].init == INIT_WHITEN;
        if (last && !stem && last->rate >= g.rate && last->rate <= g.rate)
            last->end = g.end; /* the few floats between are zero and stay so */
        else
            o->base[o->count++] = g;
    }
}

int optim_open(struct optim **out, struct net *net, const struct optim_options *options) {
    struct optim *o = calloc(1, sizeof *o);
    if (!o)
        return fail(SYSTEM_FAILED, "out of memory");
    o->options = *options;
    group(o, net);
    o->moment = net->backend->call->alloc(net->backend, net->trained_count);
    if (!strcmp(options->name, "adam"))
        o->square = net->backend->call->alloc(net->backend, net->trained_count);
    if (!o->moment || (!strcmp(options->name, "adam") && !o->square)) {
        optim_close(&o);
        return SYSTEM_FAILED;
    }
    *out = o;
    return 0;
}

void optim_step(struct optim *o, struct net *net, double rate, double scale) {
    const struct optim_options *opt = &o->options;
    struct backend *b = net->backend;
    struct backend_group groups[NET_PARAMS_MAX];
    memcpy(groups, o->base, sizeof groups);
    for (int i = 0; i < o->count; i++)
        groups[i].rate = (float)(rate * (double)groups[i].rate);
    o->steps++;
    if (o->square)
        b->call->adam(b, net->weights, net->grads, o->moment, o->square, groups, o->count,
                      (float)scale, (float)opt->beta1, (float)opt->beta2, (float)opt->eps,
                      o->steps);
    else
        b->call->sgd(b, net->weights, net->grads, o->moment, groups, o->count, (float)scale,
                     (float)opt->momentum, opt->nesterov);
}

void optim_freeze_stem(struct optim *o, const struct net *net) {
    for (int i = 0; i < net->param_count; i++)
        for (int k = 0; k < o->count; k++)
            if (net->model.layers[net->params[i].layer].init == INIT_WHITEN &&
                o->base[k].begin == net->params[i].offset)
                o->base[k].rate = 0;
}

void optim_close(struct optim **o) {
    free(*o);
    *o = NULL;
}
