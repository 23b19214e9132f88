/* ddp.c: see ddp.h. The thread of DDP owns the comm from the first bucket of a step to its last;
 * the main thread uses it only between steps. */
#include "trainer/ddp.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "trainer/peers.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS_MAX = 1024 };

struct ddp {
    struct comm *comm;
    struct net *net;
    struct ddp_options options;
    size_t ends[BUCKETS_MAX]; /* of the buckets, floats into the arena */
    int bucket_count;
    struct peers *peers; /* NULL: all goes through the comm */
    float *gathered;     /* GATHER_SCATTER, rank 0: the largest tensor of every rank */
    float *kept;         /* sum of the passes since the last finish; NULL: never any */
    bool has_kept;       /* kept counts */
    bool passed;         /* a pass since the last ddp_accumulate */
    pthread_t thread;
    bool threaded;
    /* shared with the thread, under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ready, reduced; /* buckets of this step */
    int64_t busy_ns;
    int rc;
    bool closing;
};

/* Buckets end where a parameter ends, so that each is final at one moment of backward. */
static void cut_buckets(struct ddp *d) {
    const struct net *net = d->net;
    size_t begin = 0, wanted = d->options.first_bucket_bytes / sizeof(float);
    for (int i = net->param_count - 1; i >= 0; i--) {
        const struct param *p = &net->params[i];
        if (!p->trained)
            continue;
        size_t end = p->offset + (p->weight.count + 15) / 16 * 16;
        if (end - begin < wanted && end < net->trained_count)
            continue;
        if (d->bucket_count == BUCKETS_MAX) { /* the rest becomes one */
            d->ends[BUCKETS_MAX - 1] = net->trained_count;
            return;
        }
        d->ends[d->bucket_count++] = end;
        begin = end;
        wanted = d->options.bucket_bytes / sizeof(float);
    }
}

/* What was kept of earlier passes belongs to this range of the gradients. */
static void add_kept(struct ddp *d, size_t begin, size_t end) {
    struct backend *b = d->net->backend;
    if (d->has_kept)
        b->call->add(b, d->net->grads + begin, d->kept + begin, end - begin);
}

static int sum(struct ddp *d, size_t begin, size_t end) {
    return d->peers ? peers_sum(d->peers, begin, end)
                    : comm_sum_f32(d->comm, d->net->grads + begin, end - begin);
}

static void *reduce_buckets(void *arg) {
    struct ddp *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->closing) {
        if (d->reduced == d->ready) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        int i = d->reduced;
        size_t begin = i ? d->ends[i - 1] : 0;
        int rc = d->rc;
        pthread_mutex_unlock(&d->lock);
        add_kept(d, begin, d->ends[i]);
        int64_t began = clock_ns();
        if (!rc)
            rc = sum(d, begin, d->ends[i]);
        int64_t took = clock_ns() - began;
        pthread_mutex_lock(&d->lock);
        d->busy_ns += took;
        d->rc = rc;
        d->reduced++;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int ddp_open(struct ddp **out, struct comm *comm, struct net *net,
             const struct ddp_options *options) {
    struct ddp *d = calloc(1, sizeof *d);
    if (!d)
        return fail(SYSTEM_FAILED, "out of memory");
    d->comm = comm;
    d->net = net;
    d->options = *options;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    cut_buckets(d);
    int rc = options->by_memory && comm_world_size(comm) > 1
                 ? peers_open(&d->peers, comm, net->grads, net->arena_count)
                 : 0;
    size_t largest = 0;
    for (int i = 0; i < net->param_count; i++)
        largest = net->params[i].weight.count > largest ? net->params[i].weight.count : largest;
    if (!rc && options->sync == DDP_GATHER_SCATTER && comm_rank(comm) == 0) {
        d->gathered = malloc(largest * (size_t)comm_world_size(comm) * sizeof(float));
        rc = d->gathered ? 0 : fail(SYSTEM_FAILED, "out of memory for all ranks' gradients");
    }
    if (!rc && options->sync == DDP_DDP && comm_world_size(comm) > 1) {
        rc = pthread_create(&d->thread, NULL, reduce_buckets, d);
        rc = rc ? fail(SYSTEM_FAILED, "cannot start the communication thread: error %d", rc) : 0;
        d->threaded = !rc;
    }
    if (d->threaded && options->cores)
        pthread_setaffinity_np(d->thread, sizeof *options->cores, options->cores);
    if (!rc && options->accumulate) {
        d->kept = net->backend->call->alloc(net->backend, net->arena_count);
        rc = d->kept ? 0 : SYSTEM_FAILED;
    }
    if (rc)
        ddp_close(&d);
    else
        *out = d;
    return rc;
}

int ddp_broadcast(struct ddp *d) {
    int rc = comm_broadcast(d->comm, d->net->weights, d->net->arena_count * sizeof(float), 0);
    return rc ? rc : ddp_broadcast_stats(d);
}

int ddp_broadcast_stats(struct ddp *d) {
    size_t bytes = d->net->stat_floats * sizeof(float);
    return bytes ? comm_broadcast(d->comm, d->net->stats, bytes, 0) : 0;
}

void ddp_accumulate(struct ddp *d) {
    struct net *net = d->net;
    struct backend *b = net->backend;
    add_kept(d, 0, net->trained_count);
    b->call->swap(b, d->kept, net->grads, net->trained_count);
    d->has_kept = true;
    d->passed = false;
}

void ddp_ready(void *arg, size_t end) {
    struct ddp *d = arg;
    d->passed = true;
    if (!d->threaded)
        return;
    pthread_mutex_lock(&d->lock);
    while (d->ready < d->bucket_count && d->ends[d->ready] <= end)
        d->ready++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* The collectives have deadlines of their own, so this wait ends. */
static int finish_buckets(struct ddp *d, int64_t *busy_ns) {
    ddp_ready(d, d->net->trained_count);
    pthread_mutex_lock(&d->lock);
    while (d->reduced < d->bucket_count)
        pthread_cond_wait(&d->changed, &d->lock);
    int rc = d->rc;
    *busy_ns += d->busy_ns;
    d->busy_ns = 0;
    d->ready = d->reduced = 0;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int gather_scatter(struct ddp *d, size_t begin, size_t count) {
    int world = comm_world_size(d->comm);
    float *grad = d->net->grads + begin;
    int rc = d->peers ? peers_gather(d->peers, d->gathered, begin, count, 0)
                      : comm_gather_f32(d->comm, grad, d->gathered, count, 0);
    if (rc)
        return rc;
    if (comm_rank(d->comm) == 0) {
        for (int r = 1; r < world; r++)
            for (size_t i = 0; i < count; i++)
                d->gathered[i] += d->gathered[(size_t)r * count + i];
        if (d->peers)
            memcpy(grad, d->gathered, count * sizeof *grad);
        for (int r = 1; r < world && !d->peers; r++)
            memcpy(d->gathered + (size_t)r * count, d->gathered, count * sizeof *grad);
    }
    if (d->peers)
        return peers_take(d->peers, begin, begin + count, 0);
    return comm_scatter_f32(d->comm, d->gathered, grad, count, 0);
}

static int reduce_after(struct ddp *d) {
    int rc = 0;
    for (int i = d->net->param_count - 1; i >= 0 && !rc; i--) {
        const struct param *p = &d->net->params[i];
        if (p->trained)
            rc = d->options.sync == DDP_ALLREDUCE ? sum(d, p->offset, p->offset + p->weight.count)
                                                  : gather_scatter(d, p->offset, p->weight.count);
    }
    return rc;
}

int ddp_finish(struct ddp *d, int64_t *busy_ns, int64_t *exposed_ns) {
    struct net *net = d->net;
    if (!d->passed) { /* the last pass was kept */
        net->backend->call->swap(net->backend, net->grads, d->kept, net->trained_count);
        d->has_kept = false;
    }
    if (!d->threaded)
        add_kept(d, 0, net->trained_count);
    int64_t began = clock_ns();
    int rc = 0;
    if (d->threaded)
        rc = finish_buckets(d, busy_ns);
    else if (comm_world_size(d->comm) > 1)
        rc = reduce_after(d);
    int64_t took = comm_world_size(d->comm) > 1 ? clock_ns() - began : 0;
    *exposed_ns += took;
    *busy_ns += d->threaded ? 0 : took;
    d->has_kept = d->passed = false;
    return rc;
}

void ddp_close(struct ddp **out) {
    struct ddp *d = *out;
    if (!d)
        return;
    if (d->threaded) {
        pthread_mutex_lock(&d->lock);
        d->closing = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    peers_close(&d->peers);
    free(d->gathered);
    free(d);
    *out = NULL;
}
