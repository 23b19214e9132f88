/* parity: runs training steps of one network from files, for comparison with PyTorch.
 *
 * usage: parity IN.safetensors OUT.safetensors STEPS OPTIMIZER trainer's-model-options…
 * IN: "x" U8 (STEPS·N,H,W,3), "y" I32 (STEPS·N), "mean" and "std" F64 (3), "hyper" F64 (lr,
 * momentum, nesterov, weight decay, shift scale, smoothing). INIT: weights, by checkpoint.h from
 * IN.init. OUT: of the first step "out.NAME" of each convolution, BatchNorm (after its ReLU where
 * fused) and linear layer, and "grad.NAME" of each trained parameter; "loss" of each step; then the
 * state_dict is saved as OUT.weights. */
#include "lib/log.h"
#include "trainer/checkpoint.h"
#include "trainer/optim.h"
#include "trainer/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_MAX = 512 };
static struct safetensor out[TENSORS_MAX];
static size_t out_count;

static float *emit(const char *prefix, const char *name, int rank, const int *dims) {
    struct safetensor *t = &out[out_count++];
    size_t count = 1;
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    strcpy(t->dtype, "F32");
    t->rank = rank;
    for (int i = 0; i < rank; i++) {
        t->dims[i] = dims[i];
        count *= (size_t)dims[i];
    }
    t->bytes = count * sizeof(float);
    float *values = calloc(count, sizeof *values);
    if (!values)
        exit(fail(SYSTEM_FAILED, "out of memory"));
    t->data = values;
    return values;
}

static void emit_first_step(struct net *net, struct plan *plan) {
    for (int i = 0; i < net->model.count; i++) {
        const struct layer *l = &net->model.layers[i];
        struct tensor *t = &plan->tensors[i];
        if (l->kind != LAYER_CONV && l->kind != LAYER_BATCHNORM && l->kind != LAYER_LINEAR)
            continue;
        int dims[4] = {t->shape.n, t->shape.c, t->shape.h, t->shape.w};
        float *x = emit(l->relu ? "relu." : "out.", l->name, l->kind == LAYER_LINEAR ? 2 : 4, dims);
        net->backend->call->tensor_get(net->backend, t, t->data, x);
    }
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        if (p->trained)
            net_get(net, p, net->grads, emit("grad.", p->name, p->rank, p->dims));
    }
}

static const struct safetensor *need(const struct safetensors *s, const char *name) {
    const struct safetensor *t = safetensors_find(s, name);
    if (!t)
        exit(fail(BAD_INPUT, "tensor \"%s\" is missing", name));
    return t;
}

int main(int argc, char **argv) {
    log_open("parity", -1);
    if (argc != 9)
        return fail(BAD_USAGE, "usage: parity IN OUT STEPS sgd|adam MODEL WIDTH WIDTHS ACTIVATION");
    int steps = atoi(argv[3]);
    struct safetensors in;
    struct backend *b;
    struct model model;
    struct net *net;
    struct optim *optim;
    double hyper[6], mean[4], std[4];
    struct model_options mo = {.name = argv[5],
                               .width = atoi(argv[6]),
                               .widths = argv[7],
                               .activation = argv[8],
                               .stem_bias = !strcmp(argv[8], "gelu"),
                               .channels = 3,
                               .classes = 10};
    if (safetensors_open(&in, argv[1]) || model_build(&model, &mo) || backend_cpu_open(&b, 2))
        return BAD_INPUT;
    const struct safetensor *x = need(&in, "x"), *y = need(&in, "y");
    memcpy(hyper, need(&in, "hyper")->data, sizeof hyper);
    memcpy(mean, need(&in, "mean")->data, 3 * sizeof *mean);
    memcpy(std, need(&in, "std")->data, 3 * sizeof *std);
    struct shape shape = {(int)x->dims[0] / steps, 3, (int)x->dims[1], (int)x->dims[2]};
    struct optim_options oo = {.name = argv[4],
                               .momentum = hyper[1],
                               .nesterov = hyper[2] > 0,
                               .beta1 = .9,
                               .beta2 = .999,
                               .eps = 1e-8,
                               .weight_decay = hyper[3],
                               .shift_rate_scale = hyper[4]};
    char path[4096];
    snprintf(path, sizeof path, "%s.init", argv[1]);
    if (net_open(&net, &model, b, shape) || checkpoint_load(net, path) ||
        optim_open(&optim, net, &oo))
        return BAD_INPUT;
    net_normalise(net, mean, std);
    struct plan *plan = net_plan(net, shape, true);
    if (!plan)
        return BAD_INPUT;
    int32_t *labels = malloc((size_t)shape.n * sizeof *labels);
    float *losses = emit("", "loss", 1, &steps);
    for (int s = 0; s < steps; s++) {
        memcpy(labels, (const char *)y->data + (size_t)(s * shape.n) * sizeof *labels,
               (size_t)shape.n * sizeof *labels);
        net_forward(net, plan, (const uint8_t *)x->data + (size_t)s * (x->bytes / (size_t)steps),
                    (uint64_t)s);
        net_loss(net, plan, labels, (float)hyper[5]);
        losses[s] = (float)(net_totals(net).loss_sum / shape.n);
        net_backward(net, plan, NULL, NULL);
        if (s == 0)
            emit_first_step(net, plan);
        optim_step(optim, net, hyper[0], 1);
    }
    snprintf(path, sizeof path, "%s.weights", argv[2]);
    int rc = safetensors_write(argv[2], out, out_count);
    rc = rc ? rc : checkpoint_save(net, path);
    while (out_count)
        free((void *)(uintptr_t)out[--out_count].data);
    free(labels);
    optim_close(&optim);
    net_close(&net);
    b->call->close(&b);
    safetensors_close(&in);
    return rc;
}
