/* twin.c: see twin.h. */
#include "tests/gpu/twin.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *floats(size_t count) {
    return bounds_take(count, sizeof(float));
}

/* slack NULL: 0. stored: in the type; else in float. */
void twin_compare(struct twin *two, const char *what, const char *of, const float *got,
                  const float *exact, const double *slack, size_t count, bool stored) {
    double u = (stored ? two->type->u : 0x1p-24) + 0x1p-24,
           d = stored ? two->type->half_smallest : FLT_MIN;
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - (double)exact[i]);
        double bound = u * fabs((double)exact[i]) + (slack ? (1 + u) * slack[i] : 0) + d;
        bool over = !(error <= bound);
        if (over && two->over++ < 5)
            printf("  %s of %s, value %zu of %zu: %.9g, not %.9g; allowed %.3g\n", what, of, i,
                   count, (double)got[i], (double)exact[i], bound);
        if (over || !two->values || error * two->bound > two->error * bound) {
            two->error = error;
            two->bound = bound;
            snprintf(two->what, sizeof two->what, "%s of %s", what, of);
        }
        two->values++;
    }
}

void twin_wrong(struct twin *two, const char *what, const char *of) {
    two->over++;
    printf("  %s of %s: not as it must be\n", what, of);
}

static size_t volume(struct shape s) {
    return (size_t)s.n * (size_t)(s.c * s.h * s.w);
}

float *twin_fetch(struct twin *two, const struct tensor *t, const float *native) {
    float *x = floats(volume(t->shape));
    two->gpu->call->tensor_get(two->gpu, t, native, x);
    return x;
}

/* Of values (x or dy), by what the forward pass shows to be dropped. */
static void check_dropout(struct twin *two, const char *what, const struct op *r,
                          const float *values, const float *y, const float *got) {
    size_t count = volume(r->out->shape), zeros = 0, dropped = 0;
    float *exact = floats(count);
    double *slack = bounds_take(count, sizeof *slack), p = (double)r->layer->p;
    for (size_t i = 0; i < count; i++) {
        bool zero = fabsf(r->in->data[i]) <= two->type->half_smallest;
        bool drop = fabsf(y[i]) <= 0 && !(zero && fabsf(got[i]) > 0); /* 0 shows nothing */
        exact[i] = drop ? 0 : (float)((double)values[i] / (1 - p));
        slack[i] = 0x1p-23 * fabs((double)exact[i]);
        zeros += zero;
        dropped += !zero && fabsf(y[i]) <= 0;
    }
    twin_compare(two, what, r->layer->name, got, exact, slack, count, true);
    double n = (double)(count - zeros); /* five standard deviations of a binomial count */
    if (fabs((double)dropped - n * p) > 5 * sqrt(n * p * (1 - p)))
        twin_wrong(two, "share of what is dropped", r->layer->name);
    free(exact);
    free(slack);
}

/* g's operation, and the reference's on what g's reads; r's tensor gets g's output. */
void twin_forward(struct twin *two, struct op *g, struct op *r) {
    size_t count = volume(g->out->shape);
    struct bounds s;
    bounds_open(&s, r);
    bounds_forward(two->ref, two->type, r, &s);
    two->gpu->call->forward(two->gpu, g);
    two->ref->call->forward(two->ref, r);
    float *y = twin_fetch(two, g->out, g->out->data);
    if (r->layer->kind == LAYER_DROPOUT && r->training)
        check_dropout(two, "output", r, r->in->data, y, y);
    else
        twin_compare(two, "output", r->layer->name, y, r->out->data, s.out, count, true);
    memcpy(r->out->data, y, count * sizeof *y);
    bounds_close(&s);
    free(y);
}

static void check_param_grads(struct twin *two, struct net *g, struct net *r, int layer,
                              const struct bounds *s) {
    for (int i = 0; i < g->param_count; i++) {
        struct param *p = &g->params[i];
        if (p->layer != layer || !p->trained)
            continue;
        bool scale = p->kind == PARAM_WEIGHT || p->kind == PARAM_BN_SCALE;
        float *x = floats(p->count), *y = floats(p->count);
        net_get(g, p, g->grads, x);
        net_get(r, &r->params[i], r->grads, y);
        twin_compare(two, "gradient", p->name, x, y, scale ? s->dw : s->db, p->count,
                     p->kind == PARAM_WEIGHT);
        free(x);
        free(y);
    }
}

void twin_backward(struct twin *two, struct net *g, struct net *r, struct op *gop, struct op *rop,
                   int layer) {
    size_t in = volume(gop->in->shape), out = volume(gop->out->shape);
    float *dy = twin_fetch(two, gop->out, gop->out->grad), *before = NULL, *dx = NULL;
    memcpy(rop->out->grad, dy, out * sizeof *dy);
    if (gop->accumulate) {
        before = twin_fetch(two, gop->in, gop->in->grad);
        memcpy(rop->in->grad, before, in * sizeof *before);
    }
    two->gpu->call->backward(two->gpu, gop);
    two->ref->call->backward(two->ref, rop);
    struct bounds s;
    bounds_open(&s, rop);
    bounds_backward(two->ref, two->type, rop, before, &s);
    if (gop->in_grad)
        dx = twin_fetch(two, gop->in, gop->in->grad);
    if (dx && rop->layer->kind == LAYER_DROPOUT)
        check_dropout(two, "gradient of the input", rop, dy, rop->out->data, dx);
    else if (dx)
        twin_compare(two, "gradient of the input", rop->layer->name, dx, rop->in->grad, s.dx, in,
                     true);
    check_param_grads(two, g, r, layer, &s);
    bounds_close(&s);
    free(dy);
    free(dx);
    free(before);
}

/* A logit is within D of its row's largest. expf of it: D + 4 roundings; the sum of K of them: K
 * more, which the logarithm makes absolute, and its own; a probability sees the error of its
 * argument; the loss takes five more operations (tests/cuda/test_kernels_reduce.c). Returns the
 * scale of the gradients. */
double twin_loss(struct twin *two, struct net *g, struct plan *gp, struct plan *rp,
                 const int32_t *labels) {
    struct tensor *t = &gp->tensors[g->model.count - 1], *q = &rp->tensors[g->model.count - 1];
    size_t count = volume(t->shape);
    double largest = 0, sum = 0, sums = 0, *slack = bounds_take(count, sizeof *slack);
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, 2 * fabs((double)q->data[i]));
    double of_log = 0x1p-24 * (largest + t->shape.c + 4 + 2 * (log(t->shape.c) + largest));
    two->gpu->call->loss(two->gpu, t, labels, .2f);
    two->ref->call->loss(two->ref, q, labels, .2f);
    struct backend_loss x = two->gpu->call->totals(two->gpu), y = two->ref->call->totals(two->ref);
    if (!(fabs(x.loss_sum - y.loss_sum) <=
          t->shape.n * (of_log + 5 * 0x1p-24 * (log(t->shape.c) + largest))))
        twin_wrong(two, "sum", "loss");
    if (x.correct != y.correct)
        twin_wrong(two, "count of the correct", "loss");
    float *dy = twin_fetch(two, t, t->grad);
    for (size_t i = 0; i < count; i++) {
        sum += fabs((double)dy[i]);
        sums += fabs((double)q->grad[i]);
        slack[i] = (of_log + 9 * 0x1p-24) / t->shape.n;
    }
    double scale = exp2(round(log2(sum / sums)));
    if (strcmp(two->type->name, "fp16") != 0 && fabs(scale - 1) > 0)
        twin_wrong(two, "scale", "loss");
    for (size_t i = 0; i < count; i++)
        dy[i] = (float)((double)dy[i] / scale);
    twin_compare(two, "gradient", "loss", dy, q->grad, slack, count, true);
    free(slack);
    free(dy);
    return scale;
}
