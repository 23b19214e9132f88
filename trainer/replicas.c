/* replicas.c: see replicas.h. */
#include "trainer/replicas.h"
#include "lib/digest.h"
#include "lib/log.h"
#include <stdlib.h>
#include <string.h>

enum { DIGITS = REPLICAS_DIGEST_SIZE - 1, TENSORS_MAX = NET_PARAMS_MAX + MODEL_LAYERS_MAX };

struct digests {
    int count;
    char (*mine)[DIGITS]; /* (count) */
    char (*all)[DIGITS];  /* (world_size, count) */
};

static int open_digests(struct digests *d, struct comm *comm, int count) {
    d->count = count;
    d->mine = calloc((size_t)count, DIGITS);
    d->all = calloc((size_t)count * (size_t)comm_world_size(comm), DIGITS);
    return d->mine && d->all ? 0 : fail(SYSTEM_FAILED, "out of memory for digests");
}

static void close_digests(struct digests *d) {
    free(d->mine);
    free(d->all);
}

static int digest_of(const void *bytes, size_t size, char out[DIGITS]) {
    char hex[DIGEST_HEX_SIZE];
    int rc = digest_of_bytes(DIGEST_SHA256, bytes, size, hex);
    memcpy(out, hex, DIGITS);
    return rc;
}

static int votes(const struct digests *d, int world, int rank) {
    size_t bytes = (size_t)d->count * DIGITS;
    int same = 0;
    for (int r = 0; r < world; r++)
        same += !memcmp(d->all + r * d->count, d->all + rank * d->count, bytes);
    return same;
}

/* Most ranks are right; of as many against as many, those with rank 0. *tensor: the first in which
 * the rank differs. False: all are equal. */
static bool find_other(const struct digests *d, int world, int *rank, int *tensor) {
    int right = 0;
    for (int r = 1; r < world; r++)
        right = votes(d, world, r) > votes(d, world, right) ? r : right;
    for (*rank = 0; *rank < world; ++*rank)
        for (*tensor = 0; *tensor < d->count; ++*tensor)
            if (memcmp(d->all[*rank * d->count + *tensor], d->all[right * d->count + *tensor],
                       DIGITS) != 0)
                return true;
    return false;
}

static const char *name_of(const struct net *net, int tensor) {
    return tensor < net->param_count ? net->params[tensor].name
                                     : net->stat[tensor - net->param_count].name;
}

static int digest_values(struct net *net, struct digests *d) {
    size_t largest = 0;
    int rc = 0;
    for (int i = 0; i < net->param_count; i++)
        largest = net->params[i].count > largest ? net->params[i].count : largest;
    float *plain = malloc(largest * sizeof *plain);
    if (!plain)
        return fail(SYSTEM_FAILED, "out of memory for a parameter");
    for (int i = 0; i < net->param_count && !rc; i++) {
        net_get(net, &net->params[i], net->weights, plain);
        rc = digest_of(plain, net->params[i].count * sizeof *plain, d->mine[i]);
    }
    free(plain);
    for (int i = 0; i < net->stat_count && !rc; i++)
        rc = digest_of(net_get_stat(net, &net->stat[i]),
                       2 * (size_t)net->stat[i].channels * sizeof(float),
                       d->mine[net->param_count + i]);
    return rc;
}

int replicas_check(struct comm *comm, struct net *net, char digest[REPLICAS_DIGEST_SIZE]) {
    struct digests d;
    int rank, tensor, count = net->param_count + net->stat_count;
    int rc = open_digests(&d, comm, count);
    rc = rc ? rc : digest_values(net, &d);
    rc = rc ? rc : comm_allgather(comm, d.mine, (size_t)count * DIGITS, d.all);
    rc = rc ? rc : digest_of(d.mine, (size_t)count * DIGITS, digest);
    digest[DIGITS] = 0;
    if (!rc && find_other(&d, comm_world_size(comm), &rank, &tensor))
        rc = fail(BAD_INPUT, "the replicas differ: rank %d has other values of \"%s\" than %s",
                  rank, name_of(net, tensor), comm_world_size(comm) > 2 ? "most ranks" : "rank 0");
    close_digests(&d);
    return rc;
}

/* The order of a weight's values is what becomes of 0, 1, 2 …, which floats hold exactly enough to
 * tell apart. */
static int digest_order(struct net *net, const struct param *p, char out[DIGITS]) {
    float *plain = malloc(p->count * sizeof *plain);
    float *native = calloc(p->weight.count, sizeof *native);
    int rc = plain && native ? 0 : fail(SYSTEM_FAILED, "out of memory for a parameter");
    for (size_t i = 0; i < p->count && !rc; i++)
        plain[i] = (float)(i % 16777213);
    if (!rc) {
        net->backend->call->weight_put(net->backend, &p->weight, plain, native);
        rc = digest_of(native, p->weight.count * sizeof *native, out);
    }
    free(plain);
    free(native);
    return rc;
}

int replicas_check_layout(struct comm *comm, struct net *net) {
    struct digests d;
    if (comm_world_size(comm) == 1)
        return 0;
    int rank, tensor, rc = open_digests(&d, comm, net->param_count);
    for (int i = 0; i < net->param_count && !rc; i++)
        if (net->params[i].kind == PARAM_WEIGHT)
            rc = digest_order(net, &net->params[i], d.mine[i]);
    rc = rc ? rc : comm_allgather(comm, d.mine, (size_t)d.count * DIGITS, d.all);
    if (!rc && find_other(&d, comm_world_size(comm), &rank, &tensor))
        rc = fail(BAD_USAGE,
                  "rank %d keeps \"%s\" in another order: its processor has other vector "
                  "instructions; set ONEDNN_MAX_CPU_ISA=AVX2 (or what all have) on every node",
                  rank, net->params[tensor].name);
    close_digests(&d);
    return rc;
}
