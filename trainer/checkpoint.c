/* checkpoint.c: walks a net's parameters and buffers in PyTorch's order. */
#include "trainer/checkpoint.h"
#include "lib/log.h"
#include "trainer/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES_MAX = NET_PARAMS_MAX + 3 * MODEL_LAYERS_MAX };

/* What the file holds: shapes, and where plain values lie. values holds every float. */
struct listing {
    struct safetensor entries[ENTRIES_MAX];
    size_t count;
    float *values;
    float *at[ENTRIES_MAX]; /* into values; NULL: num_batches_tracked */
};

static struct safetensor *entry(struct listing *l, const char *name, const char *suffix,
                                const char *dtype) {
    struct safetensor *t = &l->entries[l->count++];
    *t = (struct safetensor){.rank = 0};
    snprintf(t->name, sizeof t->name, "%s%s", name, suffix);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    return t;
}

static int list(struct net *net, struct listing *l) {
    size_t floats = net->stat_floats, at = 0;
    l->count = 0;
    for (int i = 0; i < net->param_count; i++)
        floats += net->params[i].count;
    if (!(l->values = calloc(floats + 1, sizeof *l->values)))
        return fail(SYSTEM_FAILED, "out of memory for %zu weights", floats);
    for (int i = 0; i < net->param_count; i++) {
        const struct param *p = &net->params[i];
        l->at[l->count] = l->values + at;
        struct safetensor *t = entry(l, p->name, "", "F32");
        t->rank = p->rank;
        for (int d = 0; d < p->rank; d++)
            t->dims[d] = p->dims[d];
        t->bytes = p->count * sizeof(float);
        t->data = l->values + at;
        at += p->count;
    }
    for (int i = 0; i < net->stat_count; i++) {
        const struct net_stat *s = &net->stat[i];
        for (int k = 0; k < 2; k++) {
            l->at[l->count] = l->values + at;
            struct safetensor *t = entry(l, s->name, k ? ".running_var" : ".running_mean", "F32");
            t->rank = 1;
            t->dims[0] = s->channels;
            t->bytes = (size_t)s->channels * sizeof(float);
            t->data = l->values + at;
            at += (size_t)s->channels;
        }
        l->at[l->count] = NULL;
        struct safetensor *t = entry(l, s->name, ".num_batches_tracked", "I64");
        t->bytes = sizeof net->batches_tracked;
        t->data = &net->batches_tracked;
    }
    return 0;
}

/* The running statistics of listing entry e ≥ param_count, three entries a BatchNorm. */
static float *stat_place(struct net *net, size_t e) {
    size_t k = e - (size_t)net->param_count;
    const struct net_stat *s = &net->stat[k / 3];
    return net->stats + s->offset + (k % 3 ? s->channels : 0);
}

int checkpoint_save(struct net *net, const char *path) {
    struct listing l;
    int rc = list(net, &l);
    if (rc)
        return rc;
    for (size_t e = 0; e < l.count; e++) {
        if (e < (size_t)net->param_count)
            net_get(net, &net->params[e], net->weights, l.at[e]);
        else if (l.at[e])
            net->backend->call->read(net->backend, l.at[e], stat_place(net, e),
                                     l.entries[e].bytes / sizeof(float));
    }
    rc = safetensors_write(path, l.entries, l.count);
    free(l.values);
    return rc;
}

static int check_entry(const struct safetensor *want, const struct safetensor *have,
                       const char *path, const char *model) {
    if (!have)
        return fail(BAD_INPUT, "\"%s\": tensor \"%s\" of %s is missing", path, want->name, model);
    if (strcmp(have->dtype, want->dtype) != 0)
        return fail(BAD_INPUT, "\"%s\": tensor \"%s\" is %s, %s is wanted", path, want->name,
                    have->dtype, want->dtype);
    bool same = have->rank == want->rank;
    for (int d = 0; d < want->rank && same; d++)
        same = have->dims[d] == want->dims[d];
    if (!same)
        return fail(BAD_INPUT,
                    "\"%s\": tensor \"%s\" has another shape than in this %s: %zu "
                    "bytes, %zu are wanted",
                    path, want->name, model, have->bytes, want->bytes);
    return 0;
}

static int load_checked(struct net *net, struct listing *l, const struct safetensors *file,
                        const char *path) {
    for (size_t e = 0; e < l->count; e++) {
        const struct safetensor *have = safetensors_find(file, l->entries[e].name);
        int rc = check_entry(&l->entries[e], have, path, net->model.name);
        if (rc)
            return rc;
    }
    if (file->count != l->count)
        return fail(BAD_INPUT, "\"%s\" holds %zu tensors, %s has %zu", path, file->count,
                    net->model.name, l->count);
    for (size_t e = 0; e < l->count; e++) {
        const struct safetensor *have = safetensors_find(file, l->entries[e].name);
        if (!l->at[e]) {
            memcpy(&net->batches_tracked, have->data, have->bytes);
            continue;
        }
        memcpy(l->at[e], have->data, have->bytes);
        if (e < (size_t)net->param_count)
            net_put(net, &net->params[e], l->at[e], net->weights);
        else
            net->backend->call->write(net->backend, stat_place(net, e), l->at[e],
                                      have->bytes / sizeof(float));
    }
    return 0;
}

int checkpoint_load(struct net *net, const char *path) {
    struct safetensors file;
    struct listing l;
    int rc = safetensors_open(&file, path);
    if (rc)
        return rc;
    rc = list(net, &l);
    if (!rc) {
        rc = load_checked(net, &l, &file, path);
        free(l.values);
    }
    safetensors_close(&file);
    return rc;
}
