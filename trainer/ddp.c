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
    const struct backend_collectives *device; /* NULL: gradients are in the host's memory, and */
    struct peers *peers;                      /* NULL: all goes through the comm */
    float *gathered; /* GATHER_SCATTER, rank 0: the largest tensor of every rank */
    float *kept;     /* sum of the passes since the last finish; NULL: never any */
    bool has_kept;   /* kept counts */
    bool passed;     /* a pass since the last ddp_accumulate */
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

/* Floats of a parameter in the arena, with those between it and the next. */
static size_t padded(const struct param *p) {
    return (p->weight.count + 15) / 16 * 16;
}

/* Buckets end where a parameter ends, so that each is final at one moment of backward. */
static void cut_buckets(struct ddp *d) {
    const struct net *net = d->net;
    size_t begin = 0, wanted = d->options.first_bucket_bytes / sizeof(float);
    for (int i = net->param_count - 1; i >= 0; i--) {
        const struct param *p = &net->params[i];
        if (!p->trained)
            continue;
        size_t end = p->offset + padded(p);
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
    if (d->device) {
        d->device->sum(d->net->backend, d->net->grads + begin, end - begin);
        return 0;
    }
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

static int open_gathered(struct ddp *d) {
    struct backend *b = d->net->backend;
    size_t largest = 0, world = (size_t)comm_world_size(d->comm);
    for (int i = 0; i < d->net->param_count; i++)
        largest = padded(&d->net->params[i]) > largest ? padded(&d->net->params[i]) : largest;
    d->gathered =
        d->device ? b->call->alloc(b, largest * world) : malloc(largest * world * sizeof(float));
    return d->gathered ? 0 : fail(SYSTEM_FAILED, "out of memory for all ranks' gradients");
}

int ddp_open(struct ddp **out, struct comm *comm, struct net *net,
             const struct ddp_options *options) {
    struct ddp *d = calloc(1, sizeof *d);
    if (!d)
        return fail(SYSTEM_FAILED, "out of memory");
    d->comm = comm;
    d->net = net;
    d->options = *options;
    d->device = net->backend->call->collectives;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    cut_buckets(d);
    bool alone = comm_world_size(comm) == 1;
    int rc = options->by_memory && !alone && !d->device
                 ? peers_open(&d->peers, comm, net->grads, net->arena_count)
                 : 0;
    if (!rc && options->sync == DDP_GATHER_SCATTER && comm_rank(comm) == 0)
        rc = open_gathered(d);
    if (!rc && options->sync == DDP_DDP && !alone && !d->device) {
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

static int broadcast(struct ddp *d, float *x, size_t count) {
    if (count == 0 || comm_world_size(d->comm) == 1)
        return 0;
    if (!d->device)
        return comm_broadcast(d->comm, x, count * sizeof *x, 0);
    d->device->broadcast(d->net->backend, x, count, 0);
    return 0;
}

int ddp_broadcast(struct ddp *d) {
    int rc = broadcast(d, d->net->weights, d->net->arena_count);
    return rc ? rc : ddp_broadcast_stats(d);
}

int ddp_broadcast_stats(struct ddp *d) {
    return broadcast(d, d->net->stats, d->net->stat_floats);
}

void ddp_accumulate(struct ddp *d) {
    struct net *net = d->net;
    struct backend *b = net->backend;
    add_kept(d, 0, net->trained_count);
    b->call->swap(b, d->kept, net->grads, net->trained_count);
    d->has_kept = true;
    d->passed = false;
}

/* On a device a collective is work among other work: it needs no thread to be started. */
static bool by_device(const struct ddp *d) {
    return d->device && d->options.sync == DDP_DDP && comm_world_size(d->comm) > 1;
}

static void start_buckets(struct ddp *d, size_t end) {
    for (; d->ready < d->bucket_count && d->ends[d->ready] <= end; d->ready++) {
        size_t begin = d->ready ? d->ends[d->ready - 1] : 0;
        add_kept(d, begin, d->ends[d->ready]);
        sum(d, begin, d->ends[d->ready]);
    }
}

void ddp_ready(void *arg, size_t end) {
    struct ddp *d = arg;
    d->passed = true;
    if (by_device(d))
        start_buckets(d, end);
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

static void gather_scatter_device(struct ddp *d, size_t begin, size_t count) {
    struct backend *b = d->net->backend;
    size_t world = (size_t)comm_world_size(d->comm);
    bool root = comm_rank(d->comm) == 0;
    d->device->gather(b, d->net->grads + begin, d->gathered, count, 0);
    for (size_t r = 1; r < world && root; r++)
        b->call->add(b, d->gathered, d->gathered + r * count, count);
    for (size_t r = 1; r < world && root; r++)
        b->call->copy(b, d->gathered + r * count, d->gathered, count);
    d->device->scatter(b, d->gathered, d->net->grads + begin, count, 0);
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
        if (p->trained && d->options.sync == DDP_ALLREDUCE)
            rc = sum(d, p->offset, p->offset + p->weight.count);
        else if (p->trained && d->device)
            gather_scatter_device(d, p->offset, padded(p));
        else if (p->trained)
            rc = gather_scatter(d, p->offset, p->weight.count);
    }
    return rc;
}

int ddp_finish(struct ddp *d, int64_t *busy_ns, int64_t *exposed_ns) {
    struct net *net = d->net;
    if (!d->passed) { /* the last pass was kept */
        net->backend->call->swap(net->backend, net->grads, d->kept, net->trained_count);
        d->has_kept = false;
    }
    if (!d->threaded && !by_device(d))
        add_kept(d, 0, net->trained_count);
    int64_t began = clock_ns();
    int rc = 0;
    if (d->threaded)
        rc = finish_buckets(d, busy_ns);
    else if (by_device(d))
        start_buckets(d, net->trained_count);
    else if (comm_world_size(d->comm) > 1)
        rc = reduce_after(d);
    if (d->device && comm_world_size(d->comm) > 1) {
        d->device->sums_wait(net->backend);
        d->ready = 0;
    }
    /* A device's collectives are only started here: their time is not this thread's to see. */
    int64_t took = comm_world_size(d->comm) > 1 && !d->device ? clock_ns() - began : 0;
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
    if (!d->device)
        free(d->gathered);
    free(d);
    *out = NULL;
}
