/* net: runs a model's table on a backend. Owns the arenas.
 *
 * Parameters and gradients are two flat arenas laid out in backward order (last layer first), the
 * frozen parameters behind all trained ones: a range of layers is a range of the gradient arena. */
#ifndef DDPIPE_NET_H
#define DDPIPE_NET_H

#include "trainer/backend.h"
#include "trainer/model.h"

enum param_kind { PARAM_WEIGHT, PARAM_BIAS, PARAM_BN_SCALE, PARAM_BN_SHIFT };

struct param {
    char name[64]; /* PyTorch's: "layers.0.weight" */
    enum param_kind kind;
    int layer;
    int dims[4], rank;    /* plain dimensions: 1, 2 or 4 of them */
    size_t count;         /* floats in plain order */
    struct weight weight; /* PARAM_WEIGHT; for others weight.count = count */
    size_t offset;        /* in the arenas, floats; weight.count of them */
    bool trained;
};

struct net_stat {  /* BatchNorm's running statistics */
    char name[64]; /* "layers.1": running_mean, running_var, num_batches_tracked */
    int layer, channels;
    size_t offset; /* in stats: mean (C), then variance (C) */
};

/* One batch shape: its tensors and operations. */
struct plan {
    struct shape input;
    bool training;
    struct op ops[MODEL_LAYERS_MAX];
    struct tensor tensors[MODEL_LAYERS_MAX]; /* output of each layer */
    struct tensor images;
};

enum { NET_PARAMS_MAX = 2 * MODEL_LAYERS_MAX, NET_PLANS_MAX = 12 };

struct net {
    struct backend *backend;
    struct model model;
    int param_count, stat_count, plan_count;
    struct param params[NET_PARAMS_MAX]; /* in forward order, as PyTorch lists them */
    struct net_stat stat[MODEL_LAYERS_MAX];
    struct plan *plans[NET_PLANS_MAX];
    float *weights, *grads; /* arenas: arena_count floats, the backend's memory */
    size_t arena_count;
    size_t trained_count; /* the first so many are trained */
    float *stats;         /* running means and variances: stat_floats, the backend's memory */
    size_t stat_floats;
    float *scratch;           /* on the host: holds any parameter or BatchNorm's statistics */
    int64_t batches_tracked;  /* training passes so far */
    float scale[4], shift[4]; /* of the input: (pixel/255 - mean)/std */
    uint64_t seed;            /* of dropout */
    void (*sum)(void *arg, double *x, size_t count); /* op.sum of BatchNorms, for plans to come */
    void *sum_arg;
    int64_t layer_ns[MODEL_LAYERS_MAX][2]; /* forward, backward; summed when profile is set */
    bool profile;
};

/* Lays out the arenas for inputs of about this shape. Weights are zero, running statistics 0 and 1:
 * init.h or checkpoint.h fills them. */
int net_open(struct net **net, const struct model *model, struct backend *backend,
             struct shape input);
void net_close(struct net **net);

/* (pixel/255 - mean[c]) / std[c] from now on. */
void net_normalise(struct net *net, const double *mean, const double *std);

/* The plan for this shape, made on its first use. NULL after a report. */
struct plan *net_plan(struct net *net, struct shape input, bool training);

/* pixels (N,H,W,C). Afterwards plan's last tensor holds the logits. step seeds dropout. */
void net_forward(struct net *net, struct plan *plan, const uint8_t *pixels, uint64_t step);
/* Adds the batch's loss to the backend's sums; net_totals tells these since it was last called. */
void net_loss(struct net *net, struct plan *plan, const int32_t *labels, float smoothing);
struct backend_loss net_totals(struct net *net);

/* Fills the gradient arena. ready(arg, begin): all of grads from 0 to begin, exclusive, is final;
 * called after each layer that has parameters, in backward order. NULL: not called. */
void net_backward(struct net *net, struct plan *plan, void (*ready)(void *arg, size_t end),
                  void *arg);

/* Plain values of a parameter out of (or into) an arena. */
void net_get(struct net *net, const struct param *p, const float *arena, float *plain);
void net_put(struct net *net, const struct param *p, const float *plain, float *arena);

/* The same for a BatchNorm's running mean and variance (2·channels), into net->scratch. */
const float *net_get_stat(struct net *net, const struct net_stat *s);

/* The name of a parameter or statistic that holds a value which is not finite, or NULL. */
const char *net_not_finite(struct net *net);

/* Time per layer since profile was set, as a table on stderr. */
void net_print_profile(const struct net *net, int64_t steps);

#endif
