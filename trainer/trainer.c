/* trainer: takes batches from one loader, trains in step with the other ranks, reports.
 *
 * Order of opening: the loader's stream (what is the data?), the rendezvous (is everybody there and
 * of one mind?), the collectives, the net, its first weights (rank 0's, on every rank). */
#include "lib/log.h"
#include "lib/stop.h"
#include "trainer/checkpoint.h"
#include "trainer/init.h"
#include "trainer/rendezvous.h"
#include "trainer/settings.h"
#include "trainer/train.h"
#include <stdio.h>
#include <string.h>

struct trainer {
    struct settings settings;
    struct backend *backend;
    struct rendezvous *rendezvous;
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
    if (hello->rank != (uint32_t)s->rank || hello->world_size != (uint32_t)s->world_size)
        return fail(BAD_USAGE, "the loader at %s is rank %u of %u, this trainer %lld of %lld",
                    s->endpoint, hello->rank, hello->world_size, (long long)s->rank,
                    (long long)s->world_size);
    return 0;
}

static int open_ranks(struct trainer *t) {
    const struct settings *s = &t->settings;
    char text[8192];
    settings_text(s, source_hello(t->train.source), text, sizeof text);
    struct rendezvous_options o = {.rank = (int)s->rank,
                                   .world_size = (int)s->world_size,
                                   .address = s->master_addr,
                                   .port = (int)s->master_port,
                                   .timeout_seconds = s->join_timeout,
                                   .settings = text};
    int rc = rendezvous_open(&t->rendezvous, &o);
    if (rc)
        return rc;
    return comm_open(&t->train.comm, (int)s->rank, (int)s->world_size, s->master_addr,
                     s->comm_timeout, rendezvous_exchange, t->rendezvous);
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
    struct ddp_options o = {.first_bucket_bytes = (size_t)(s->first_bucket_mb * 1048576),
                            .bucket_bytes = (size_t)(s->bucket_mb * 1048576),
                            .sync = !strcmp(s->sync, "ddp")         ? DDP_DDP
                                    : !strcmp(s->sync, "allreduce") ? DDP_ALLREDUCE
                                                                    : DDP_GATHER_SCATTER};
    rc = rc ? rc : ddp_open(&t->train.ddp, t->train.comm, t->train.net, &o);
    return rc ? rc : ddp_broadcast(t->train.ddp);
}

static int open_net(struct trainer *t) {
    struct settings *s = &t->settings;
    const struct batch_hello *hello = source_hello(t->train.source);
    struct model model;
    double mean[4], std[4];
    s->model.channels = (int)hello->c;
    s->model.classes = (int)hello->classes;
    int rc = model_build(&model, &s->model);
    if (!rc)
        rc = settings_normalisation(s, hello, mean, std);
    if (!rc)
        rc = !strcmp(s->device, "ref") ? backend_ref_open(&t->backend)
                                       : backend_cpu_open(&t->backend, settings_threads(s));
    struct shape shape = {(int)hello->batch_size, (int)hello->c, (int)hello->h, (int)hello->w};
    if (!rc)
        rc = net_open(&t->train.net, &model, t->backend, shape);
    if (rc)
        return rc;
    net_normalise(t->train.net, mean, std);
    t->train.net->seed = (uint64_t)s->seed * 0x9E3779B97F4A7C15U + (uint64_t)s->rank;
    t->train.net->profile = s->profile;
    rc = open_weights(t);
    if (!rc)
        rc = optim_open(&t->train.optim, t->train.net, &s->optim);
    if (!rc && s->ema_every)
        rc = average_open(&t->train.average, t->train.net, s->ema_every, s->ema_decay);
    return rc;
}

static int run(struct trainer *t) {
    const struct settings *s = &t->settings;
    const struct batch_hello *hello = source_hello(t->train.source);
    t->train.schedule = s->schedule;
    t->train.schedule.steps_per_epoch = hello->train_steps;
    t->train.schedule.total_steps = s->epochs * hello->train_steps;
    if (s->max_steps && s->max_steps < t->train.schedule.total_steps)
        t->train.schedule.total_steps = s->max_steps;
    t->train.smoothing = s->smoothing;
    t->train.epochs = s->epochs;
    t->train.max_steps = s->max_steps;
    t->train.stem_bias_epochs = s->stem_bias_epochs;
    t->train.target = s->target;
    t->train.patience = s->patience;
    int rc = train_run(&t->train);
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
    log_open("trainer", (int)s->rank);
    stop_install();
    rc = report_open(&t.train.report, s->metrics, (int)s->rank, (int)s->world_size, s->epochs,
                     s->data_timeout);
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
