/* settings: the trainer's options as a table, and what follows from them. */
#ifndef DDPIPE_SETTINGS_H
#define DDPIPE_SETTINGS_H

#include "lib/batch.h"
#include "lib/opts.h"
#include "trainer/identity.h"
#include "trainer/model.h"
#include "trainer/optim.h"
#include "trainer/schedule.h"

struct settings {
    struct model_options model;
    struct optim_options optim;
    struct schedule schedule;
    const char *device, *precision, *endpoint, *metrics, *interface, *save, *init, *mean, *std,
        *sync, *check_replicas, *local_transport;
    struct identity me;
    int64_t threads, accumulate;
    int64_t epochs, max_steps, patience, stem_bias_epochs, ema_every, prefetch, seed;
    double bucket_mb, first_bucket_mb;
    double target, smoothing, ema_decay, join_timeout, comm_timeout, data_timeout;
    bool sync_batchnorm, scale_lr, require_target, evaluate, synthetic, profile, print_config,
        autotune;
    int64_t batch_size, synthetic_steps; /* --synthetic */
};

/* Reads the command line. May exit (opts.h). BAD_USAGE where options
 * contradict each other, or the environment (identity.h). */
int settings_parse(struct settings *s, int argc, char **argv);

/* --print-config. */
void settings_print(void);

/* The stream that --synthetic stands for. */
void settings_synthetic(const struct settings *s, struct batch_hello *hello);

/* mean and std of the input: --mean and --std, or the store's. */
int settings_normalisation(const struct settings *s, const struct batch_hello *hello,
                           double mean[4], double std[4]);

/* Lines "name=value" of everything that must be equal on all ranks. */
void settings_text(const struct settings *s, const struct batch_hello *hello, char *out,
                   size_t size);

#endif
