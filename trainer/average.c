/* average.c: see average.h. */
#include "trainer/average.h"
#include "lib/log.h"
#include <math.h>
#include <stdlib.h>

int average_open(struct average **out, struct net *net, int64_t every, double decay) {
    struct average *a = calloc(1, sizeof *a);
    struct backend *b = net->backend;
    if (!a)
        return fail(SYSTEM_FAILED, "out of memory");
    a->every = every;
    a->decay = decay;
    a->weights = b->call->alloc(b, net->arena_count);
    a->stats = b->call->alloc(b, net->stat_floats + 1);
    if (!a->weights || !a->stats) {
        average_close(&a);
        return SYSTEM_FAILED;
    }
    b->call->copy(b, a->weights, net->weights, net->arena_count);
    b->call->copy(b, a->stats, net->stats, net->stat_floats);
    *out = a;
    return 0;
}

void average_step(struct average *a, struct net *net, int64_t steps_done) {
    if (steps_done % a->every)
        return;
    double t = (double)steps_done;
    double d = fmin(pow(a->decay, (double)a->every), (1 + t) / (50 + t));
    struct backend *b = net->backend;
    b->call->lerp(b, a->weights, net->weights, (float)(1 - d), net->trained_count);
    b->call->lerp(b, a->stats, net->stats, (float)(1 - d), net->stat_floats);
}

void average_swap(struct average *a, struct net *net) {
    struct backend *b = net->backend;
    b->call->swap(b, a->weights, net->weights, net->arena_count);
    b->call->swap(b, a->stats, net->stats, net->stat_floats);
}

void average_close(struct average **a) {
    free(*a);
    *a = NULL;
}
