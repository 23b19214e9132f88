/* trainer: takes batches from one loader, trains in step with the other ranks, reports.
 *
 * Order of opening: the loader's stream (what is the data?), the rendezvous (is everybody there and
 * of one mind?), the collectives, the net, its first weights (rank 0's, on every rank). */
#include "lib/address.h"
#include "lib/log.h"
#include "lib/sock.h"
#include "lib/stop.h"
#include "trainer/backend_cuda.h"
#include "trainer/checkpoint.h"
#include "trainer/cores.h"
#include "trainer/init.h"
#include "trainer/rendezvous.h"
#include "trainer/replicas.h"
#include "trainer/settings.h"
#include "trainer/train.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trainer {
    struct settings settings;
    struct backend *backend;
    struct rendezvous *rendezvous;
    struct comm *norm_comm; /* --sync-batchnorm: its own, since buckets are under way meanwhile */
    bool has_key, has_spare;
    cpu_set_t spare; /* a core for communication alone */
    struct train train;
};

static int open_source(struct trainer *t) {
    const struct settings *s = &t->settings;
    if (s->synthetic) {
        struct batch_hello hello;
        settings_synthetic(s, &hello);
        return source_open_synthetic(&t->train.source, &hello);
    }
    int rc =
        source_open_loader(&t->train.source, s->endpoint, (uint32_t)s->prefetch, s->data_timeout);
    if (rc)
        return rc;
    const struct batch_hello *hello = source_hello(t->train.source);
    if (hello->rank != (uint32_t)s->me.rank || hello->world_size != (uint32_t)s->me.world_size)
        return fail(BAD_USAGE, "the loader at %s is rank %u of %u, this trainer %lld of %lld",
                    s->endpoint, hello->rank, hello->world_size, (long long)s->me.rank,
                    (long long)s->me.world_size);
    if (s->evaluate != (hello->train_steps == 0))
        return fail(BAD_USAGE, "the loader at %s was started %s --evaluate, this trainer %s",
                    s->endpoint, s->evaluate ? "without" : "with",
                    s->evaluate ? "with" : "without");
    return 0;
}

/* Rank 0's address, and this rank's own on the same network. */
static int find_addresses(const struct settings *s, char master[ADDRESS_SIZE],
                          char own[ADDRESS_SIZE]) {
    const struct identity *me = &s->me;
    bool nodes = me->local_world_size < me->world_size;
    int rc = address_resolve(me->master_addr, master);
    if (rc)
        return rc;
    if (nodes && address_is_loopback(master))
        return fail(BAD_USAGE,
                    "--master-addr %s is %s here, which no other node can reach: give rank 0's "
                    "address on the network of the nodes",
                    me->master_addr, master);
    if (me->rank == 0 && !address_is_here(master))
        return fail(BAD_USAGE,
                    "--master-addr %s is %s, which is no address of this host: rank 0 "
                    "belongs on that one",
                    me->master_addr, master);
    rc = s->interface ? address_of_interface(s->interface, own) : address_towards(master, own);
    if (!rc && nodes && address_is_loopback(own))
        rc = fail(BAD_USAGE, "--interface %s is %s, which no other node can reach", s->interface,
                  own);
    return rc;
}

static int open_ranks(struct trainer *t) {
    const struct settings *s = &t->settings;
    const struct identity *me = &s->me;
    char text[8192], master[ADDRESS_SIZE], own[ADDRESS_SIZE], gpu[BACKEND_CUDA_NAME] = "cpu";
    settings_text(s, source_hello(t->train.source), text, sizeof text);
    struct rendezvous_options o = {.rank = (int)me->rank,
                                   .world_size = (int)me->world_size,
                                   .address = master,
                                   .port = (int)me->master_port,
                                   .device = gpu,
                                   .timeout_seconds = s->join_timeout,
                                   .settings = text};
    int rc = me->world_size > 1 ? find_addresses(s, master, own) : 0;
    if (!rc && !strcmp(s->device, "cuda"))
        rc = backend_cuda_find((int)me->local_rank, (int)me->local_world_size, gpu);
    if (rc)
        return rc;
    if (!t->has_key && me->rank == 0 && me->local_world_size < me->world_size)
        log_note("DDPIPE_RUN_KEY is not set: whoever reaches %s:%lld can join this run or end it",
                 master, (long long)me->master_port);
    rc = rendezvous_open(&t->rendezvous, &o);
    rc = rc ? rc
            : comm_open(&t->train.comm, o.rank, o.world_size, own, s->comm_timeout,
                        rendezvous_exchange, t->rendezvous);
    if (!rc && s->sync_batchnorm && o.world_size > 1)
        rc = comm_open(&t->norm_comm, o.rank, o.world_size, own, s->comm_timeout,
                       rendezvous_exchange, t->rendezvous);
    return rc;
}

/* A BatchNorm in the middle of a pass: there is nothing to go back to. */
static void sum_norms(void *comm, double *x, size_t count) {
    int rc = comm_sum_f64(comm, x, count);
    if (rc)
        exit(rc);
}

static int open_weights(struct trainer *t) {
    const struct settings *s = &t->settings;
    const struct batch_hello *hello = source_hello(t->train.source);
    struct init_patches patches;
    memcpy(patches.mean, hello->patch_mean, sizeof patches.mean);
    memcpy(patches.moment, hello->patch_moment, sizeof patches.moment);
    int rc = init_weights(t->train.net, (uint64_t)s->seed, &patches);
    if (!rc && s->init)
        rc = checkpoint_load(t->train.net, s->init);
    struct ddp_options o = {.cores = t->has_spare ? &t->spare : NULL,
                            .accumulate = s->accumulate > 1,
                            .by_memory = !strcmp(s->local_transport, "memory"),
                            .first_bucket_bytes = (size_t)(s->first_bucket_mb * 1048576),
                            .bucket_bytes = (size_t)(s->bucket_mb * 1048576),
                            .sync = !strcmp(s->sync, "ddp")         ? DDP_DDP
                                    : !strcmp(s->sync, "allreduce") ? DDP_ALLREDUCE
                                                                    : DDP_GATHER_SCATTER};
    rc = rc ? rc : replicas_check_layout(t->train.comm, t->train.net);
    rc = rc ? rc : ddp_open(&t->train.ddp, t->train.comm, t->train.net, &o);
    return rc ? rc : ddp_broadcast(t->train.ddp);
}

static int open_backend(struct trainer *t, int threads) {
    const struct settings *s = &t->settings;
    const struct identity *me = &s->me;
    if (!strcmp(s->device, "ref"))
        return backend_ref_open(&t->backend);
    if (!strcmp(s->device, "cpu"))
        return backend_cpu_open(&t->backend, threads);
    struct backend_cuda_options o = {.precision = s->precision,
                                     .local_rank = (int)me->local_rank,
                                     .local_world_size = (int)me->local_world_size,
                                     .autotune = s->autotune,
                                     .profile = s->profile,
                                     .timeout_seconds = s->comm_timeout};
    struct backend_ranks ranks = {.rank = (int)me->rank,
                                  .world_size = (int)me->world_size,
                                  .timeout_seconds = s->comm_timeout,
                                  .exchange = rendezvous_exchange,
                                  .arg = t->rendezvous};
    int rc = backend_cuda_open(&t->backend, &o);
    if (!rc && ranks.world_size > 1)
        rc = t->backend->call->collectives->join(t->backend, &ranks);
    return rc;
}

static int open_net(struct trainer *t) {
    struct settings *s = &t->settings;
    int threads = s->threads ? (int)s->threads : cores_threads(&s->me);
    t->has_spare = cores_spare(&s->me, threads, &t->spare); /* before there are threads */
    const struct batch_hello *hello = source_hello(t->train.source);
    struct model model;
    double mean[4], std[4];
    s->model.channels = (int)hello->c;
    s->model.classes = (int)hello->classes;
    int rc = model_build(&model, &s->model);
    if (!rc)
        rc = settings_normalisation(s, hello, mean, std);
    rc = rc ? rc : open_backend(t, threads);
    struct shape shape = {(int)hello->batch_size, (int)hello->c, (int)hello->h, (int)hello->w};
    if (!rc)
        rc = net_open(&t->train.net, &model, t->backend, shape);
    if (rc)
        return rc;
    net_normalise(t->train.net, mean, std);
    if (t->norm_comm) {
        t->train.net->sum = sum_norms;
        t->train.net->sum_arg = t->norm_comm;
    }
    t->train.net->seed = (uint64_t)s->seed * 0x9E3779B97F4A7C15U + (uint64_t)s->me.rank;
    t->train.net->profile = s->profile;
    rc = open_weights(t);
    if (!rc)
        rc = optim_open(&t->train.optim, t->train.net, &s->optim);
    if (!rc && s->ema_every)
        rc = average_open(&t->train.average, t->train.net, s->ema_every, s->ema_decay);
    return rc;
}

/* Makes the plans of all batches' shapes, the last and smaller ones among them, while the loader
 * fills its queue: on a GPU that takes seconds. (Images that grow meanwhile get theirs later.) */
static int open_plans(struct trainer *t) {
    const struct batch_hello *h = source_hello(t->train.source);
    uint32_t world = h->world_size, rank = h->rank;
    uint32_t validated = h->n_val / world + (rank < h->n_val % world);
    uint32_t trained = (h->n_train + world - 1) / world;
    struct {
        uint32_t count, full;
        bool training;
    } batches[] = {
        {h->train_steps ? trained : 0, h->batch_size, true},
        {h->val_steps ? validated : 0, h->val_batch_size, false},
    };
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        if (batches[i].full == 0)
            continue;
        uint32_t rest = batches[i].count % batches[i].full;
        bool dropped = batches[i].training && batches[i].count / batches[i].full == h->train_steps;
        struct shape shape = {(int)batches[i].full, (int)h->c, (int)h->h, (int)h->w};
        if (batches[i].count >= batches[i].full &&
            !net_plan(t->train.net, shape, batches[i].training))
            return SYSTEM_FAILED;
        shape.n = (int)rest;
        if (rest && !dropped && !net_plan(t->train.net, shape, batches[i].training))
            return SYSTEM_FAILED;
    }
    return 0;
}

static int run(struct trainer *t) {
    const struct settings *s = &t->settings;
    const struct batch_hello *hello = source_hello(t->train.source);
    t->train.schedule = s->schedule;
    int64_t updates = (hello->train_steps + s->accumulate - 1) / s->accumulate;
    t->train.schedule.steps_per_epoch = updates;
    t->train.schedule.total_steps = s->epochs * updates;
    if (s->max_steps && s->max_steps < s->epochs * hello->train_steps)
        t->train.schedule.total_steps =
            s->max_steps / hello->train_steps * updates +
            (s->max_steps % hello->train_steps + s->accumulate - 1) / s->accumulate;
    t->train.accumulate = s->accumulate;
    t->train.check_replicas = !strcmp(s->check_replicas, "epoch");
    t->train.smoothing = s->smoothing;
    t->train.epochs = s->epochs;
    t->train.max_steps = s->max_steps;
    t->train.stem_bias_epochs = s->stem_bias_epochs;
    t->train.target = s->target;
    t->train.patience = s->patience;
    int rc = open_plans(t);
    rc = rc ? rc : train_run(&t->train);
    if (s->profile)
        net_print_profile(t->train.net, t->train.steps);
    if (!rc && s->save) {
        if (t->train.average)
            average_swap(t->train.average, t->train.net);
        rc = checkpoint_save(t->train.net, s->save);
    }
    if (!rc && t->train.reason == METRIC_LIMIT)
        log_note("ended by its limit: %lld steps, %g was not reached on %lld consecutive epochs",
                 (long long)t->train.steps, s->target, (long long)s->patience);
    return rc;
}

static void close_all(struct trainer *t) {
    source_close(&t->train.source);
    ddp_close(&t->train.ddp);
    if (t->norm_comm)
        comm_close(&t->norm_comm);
    if (t->train.comm)
        comm_close(&t->train.comm);
    rendezvous_close(&t->rendezvous);
    average_close(&t->train.average);
    optim_close(&t->train.optim);
    net_close(&t->train.net);
    if (t->backend)
        t->backend->call->close(&t->backend);
}

int main(int argc, char **argv) {
    static struct trainer t;
    struct settings *s = &t.settings;
    log_open("trainer", -1);
    int rc = settings_parse(s, argc, argv);
    if (rc)
        return rc;
    if (s->print_config) {
        settings_print();
        return 0;
    }
    log_open("trainer", (int)s->me.rank);
    stop_install();
    signal(SIGPIPE, SIG_IGN); /* Gloo's sockets: a peer's end is an error among others */
    rc = sock_use_run_key(&t.has_key);
    rc = rc ? rc
            : report_open(&t.train.report, s->metrics, (int)s->me.rank, (int)s->me.world_size,
                          s->epochs, s->data_timeout);
    rc = rc ? rc : open_source(&t);
    rc = rc ? rc : open_ranks(&t);
    rc = rc ? rc : open_net(&t);
    t.train.reason = METRIC_FAILED;
    rc = rc ? rc : run(&t);
    int reported = report_close(&t.train.report, rc ? METRIC_FAILED : t.train.reason);
    rc = rc ? rc : reported;
    close_all(&t);
    stop_finish();
    if (!rc && s->require_target && t.train.reason == METRIC_LIMIT)
        return BAD_INPUT;
    return rc;
}
