/* plans.c: has cuDNN an execution plan for every graph of every network? Needs no GPU.
 *
 * usage: plans [--all] DEVICE.json…   (tests/gpu/devices)
 *
 * Its networks are vgg11, wideresnet of widths 10 and 1, and speednet 64,256,256 with either
 * activation, at batches of 64 to 1024 images of 32×32, in training and in validation. A backend
 * that computes nothing binds them as the trainer does, so that the graphs are those of the
 * trainer. Prints one line a graph and device: device, graph, engine, workspace. Exits 1 where one
 * has no plan, or where a graph that is wrong is not refused.
 *
 * BatchNorm's plans are compiled at run time, about half a second each. --all plans everything.
 * Without it, convolutions are planned for batches of 64, 128 and 1024 on every device, and of
 * BatchNorm the first graph of each kind (with and without ReLU) and precision, each on one of the
 * devices in turn. */
#include "lib/log.h"
#include "trainer/cudnn_graph.h"
#include "trainer/net.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPHS_MAX = 8192 };

/* So much more than activations and weights may be taken on a 24 GB device. */
static const int64_t workspace_limit = 256 << 20;

static struct cudnn_graph_spec graphs[GRAPHS_MAX];
static char texts[GRAPHS_MAX][CUDNN_GRAPH_TEXT];
static int graph_count;
static enum cudnn_graph_precision precision; /* of the net that is being bound */

static int note(const struct op *op, bool backward) {
    struct cudnn_graph_spec specs[CUDNN_GRAPH_LIST_MAX];
    int count, rc = cudnn_graph_list(op, backward, precision, specs, &count);
    for (int i = 0; i < count && !rc; i++) {
        if (graph_count == GRAPHS_MAX)
            return fail(BAD_INPUT, "more than %d graphs", GRAPHS_MAX);
        cudnn_graph_describe(&specs[i], texts[graph_count]);
        int k = 0;
        while (strcmp(texts[k], texts[graph_count]))
            k++;
        if (k == graph_count) {
            graphs[graph_count] = specs[i];
            graphs[graph_count++].layer = strdup(specs[i].layer);
        }
    }
    return rc;
}

/* The backend that only takes note of what it would have to do. */

static float memory; /* what gradients point to: nobody looks */

static float *take(struct backend *b, size_t count) {
    (void)b;
    return calloc(count, sizeof(float));
}

static int weight_open(struct backend *b, const struct layer *layer, struct shape in,
                       struct weight *w) {
    (void)b, (void)layer, (void)in;
    w->count = 1;
    return 0;
}

static int plan_begin(struct backend *b) {
    (void)b;
    return 0;
}

static int input_open(struct backend *b, struct tensor *t) {
    (void)b;
    t->data = &memory;
    return 0;
}

static int op_open(struct backend *b, struct op *op) {
    (void)b;
    op->out->data = &memory;
    return note(op, false);
}

/* Each tensor's own, since net.c compares them. */
static int grad_open(struct backend *b, struct tensor *t) {
    (void)b;
    t->grad = (float *)t;
    return 0;
}

static int backward_open(struct backend *b, struct op *op) {
    (void)b;
    return note(op, true);
}

static void op_close(struct backend *b, struct op *op) {
    (void)b, (void)op;
}

static int walk(const struct model_options *options, int batch) {
    static const struct backend_table table = {.alloc = take,
                                               .write = backend_host_write,
                                               .weight_open = weight_open,
                                               .plan_begin = plan_begin,
                                               .input_open = input_open,
                                               .op_open = op_open,
                                               .grad_open = grad_open,
                                               .backward_open = backward_open,
                                               .op_close = op_close};
    struct backend backend = {.call = &table};
    struct shape input = {batch, 3, 32, 32};
    static struct model model;
    struct net *net = NULL;
    int rc = model_build(&model, options);
    if (!rc)
        rc = net_open(&net, &model, &backend, input);
    if (!rc && (!net_plan(net, input, true) || !net_plan(net, input, false)))
        rc = BAD_INPUT;
    if (net) {
        free(net->weights), free(net->grads), free(net->stats);
        net_close(&net);
    }
    return rc;
}

/* The batch sizes in use; without --all, the first of them. */
static const int batches[] = {128, 64, 1024, 256, 512};
enum { BATCHES = sizeof batches / sizeof *batches, SOME_BATCHES = 3 };

static int walk_all(int batch_count) {
    static const struct model_options networks[] = {
        {.name = "vgg11", .channels = 3, .classes = 10},
        {.name = "wideresnet", .width = 10, .dropout = 0.01, .channels = 3, .classes = 10},
        {.name = "wideresnet", .width = 1, .dropout = 0.01, .channels = 3, .classes = 10},
        {.name = "speednet",
         .widths = "64,256,256",
         .activation = "relu",
         .stem_bias = true,
         .channels = 3,
         .classes = 10},
        {.name = "speednet",
         .widths = "64,256,256",
         .activation = "gelu",
         .stem_bias = true,
         .channels = 3,
         .classes = 10},
    };
    int rc = 0;
    for (size_t n = 0; n < sizeof networks / sizeof *networks; n++)
        for (int b = 0; b < batch_count; b++)
            for (precision = CUDNN_GRAPH_FP32; precision <= CUDNN_GRAPH_FP16 && !rc; precision++)
                rc = walk(&networks[n], batches[b]);
    return rc;
}

static bool is_conv(enum cudnn_graph_kind kind) {
    return kind == CUDNN_GRAPH_CONV_FORWARD || kind == CUDNN_GRAPH_CONV_DATA ||
           kind == CUDNN_GRAPH_CONV_WEIGHT;
}

static bool alike(const struct cudnn_graph_spec *a, const struct cudnn_graph_spec *b) {
    return a->kind == b->kind && a->precision == b->precision && a->relu == b->relu;
}

/* Without --all: leaves the convolutions, and the first of those that are alike to the rest; `turn`
 * numbers these, so that the devices can share them. */
enum { NEVER = -2, ALWAYS = -1 };
static int turn[GRAPHS_MAX];

static void choose(bool all) {
    int turns = 0;
    for (int i = 0; i < graph_count; i++) {
        int first = 0;
        while (!alike(&graphs[first], &graphs[i]))
            first++;
        turn[i] = all || is_conv(graphs[i].kind) ? ALWAYS : first < i ? NEVER : turns++;
    }
}

/* The number of graphs without a plan. */
static int plan_all(const char *name, const struct cudnn_desc *device, int number, int devices) {
    int missing = 0;
    for (int i = 0; i < graph_count; i++) {
        struct cudnn_graph g;
        /* Askew, so that a kind does not meet the same device in each precision. */
        if (turn[i] == NEVER || (turn[i] >= 0 && (turn[i] + turn[i] / devices) % devices != number))
            continue;
        if (cudnn_graph_open(&g, &graphs[i], device, workspace_limit, 1)) {
            missing++;
            continue;
        }
        printf("%-5s %-50s engine %" PRId64 "%s%s, workspace %" PRId64 "\n", name, texts[i],
               g.plans[0].engine, g.plans[0].tensor_core ? " tensor-core" : "",
               g.plans[0].compiled ? " compiled" : "", g.plans[0].workspace_bytes);
        fflush(stdout);
        cudnn_graph_close(&g);
    }
    return missing;
}

/* Graphs that are wrong, each in one thing; the number of those that got a plan all the same. */
static int plan_wrong(const struct cudnn_desc *device) {
    struct cudnn_graph_spec conv = {.kind = CUDNN_GRAPH_CONV_FORWARD,
                                    .precision = CUDNN_GRAPH_BF16,
                                    .layer = "wrong-map",
                                    .in = {128, 64, 32, 32},
                                    .out = {128, 64, 33, 33},
                                    .channels = 64,
                                    .kernel = 3,
                                    .pad = 1};
    struct cudnn_graph_spec bias = {.kind = CUDNN_GRAPH_CONV_FORWARD,
                                    .precision = CUDNN_GRAPH_BF16,
                                    .layer = "wrong-bias",
                                    .in = {128, 64, 32, 32},
                                    .out = {128, 64, 32, 32},
                                    .channels = 1,
                                    .kernel = 3,
                                    .pad = 1,
                                    .bias = true};
    struct cudnn_graph_spec norm = {.kind = CUDNN_GRAPH_NORM_FORWARD,
                                    .precision = CUDNN_GRAPH_BF16,
                                    .layer = "wrong-statistics",
                                    .in = {128, 64, 32, 32},
                                    .out = {128, 64, 32, 32},
                                    .channels = 32,
                                    .eps = 1e-5f};
    const struct cudnn_graph_spec *wrong[] = {&conv, &bias, &norm};
    struct cudnn_graph g;
    int accepted = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (cudnn_graph_open(&g, wrong[i], device, workspace_limit, 1) != BAD_INPUT) {
            fail(BAD_INPUT, "%s was not refused", wrong[i]->layer);
            accepted++;
        }
    conv.out = conv.in;
    conv.layer = "no-workspace";
    if (cudnn_graph_open(&g, &conv, device, -1, 1) != BAD_INPUT) {
        fail(BAD_INPUT, "a plan took more workspace than its limit");
        accepted++;
    }
    return accepted;
}

/* The list to choose from by timing: several plans, none over the limit. */
static int plan_several(const struct cudnn_desc *device) {
    struct cudnn_graph g;
    int rc = cudnn_graph_open(&g, &graphs[0], device, workspace_limit, CUDNN_GRAPH_PLANS_MAX);
    if (rc)
        return rc;
    if (g.plan_count < 2)
        rc = fail(BAD_INPUT, "%s: only %d plan to choose from", texts[0], g.plan_count);
    for (int i = 0; i < g.plan_count; i++)
        if (g.plans[i].workspace_bytes > workspace_limit)
            rc = fail(BAD_INPUT, "%s: plan %d exceeds the limit of workspace", texts[0], i);
    cudnn_graph_close(&g);
    return rc;
}

static int device_open(struct cudnn_desc *device, const char *path) {
    char json[8192] = "";
    FILE *f = fopen(path, "r");
    if (!f)
        return fail(BAD_INPUT, "cannot open \"%s\"", path);
    size_t size = fread(json, 1, sizeof json - 1, f);
    fclose(f);
    json[size] = '\0';
    return cudnn_graph_device_open(device, NULL, json);
}

/* "a30" of "tests/gpu/devices/dp_a30.json". */
static void device_name(const char *path, char name[16]) {
    const char *from = strrchr(path, '_') ? strrchr(path, '_') + 1 : path;
    snprintf(name, 16, "%.*s", (int)strcspn(from, "."), from);
}

int main(int argc, char **argv) {
    log_open("plans", -1);
    bool all = argc > 1 && !strcmp(argv[1], "--all");
    char **paths = argv + (all ? 2 : 1);
    int devices = argc - (all ? 2 : 1), missing = 0, accepted = 0;
    if (devices < 1 || paths[0][0] == '-')
        return fail(BAD_USAGE, "usage: plans [--all] DEVICE.json...");
    if (walk_all(all ? BATCHES : SOME_BATCHES))
        return BAD_INPUT;
    choose(all);
    for (int i = 0; i < devices; i++) {
        struct cudnn_desc device;
        char name[16];
        device_name(paths[i], name);
        int rc = device_open(&device, paths[i]);
        if (!rc)
            rc = plan_several(&device);
        if (rc)
            return rc;
        missing += plan_all(name, &device, i, devices);
        accepted += plan_wrong(&device);
        cudnn_desc_close(&device);
    }
    for (int i = 0; i < graph_count; i++)
        free((char *)graphs[i].layer);
    if (missing + accepted > 0)
        return fail(BAD_INPUT, "%d graphs have no plan, %d wrong ones have one", missing, accepted);
    return 0;
}
