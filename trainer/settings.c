/* settings.c: see settings.h. */
#include "trainer/settings.h"
#include "lib/log.h"
#include "trainer/backend_cuda.h"
#include <stdio.h>
#include <string.h>

static struct settings v;

static const struct opt table[] = {
    {"model", OPT_CHOICE, &v.model.name, .choices = "vgg11|wideresnet|speednet",
     .fallback = "vgg11", .help = "the network"},
    {"width", OPT_INT, &v.model.width, 1, 64, .fallback = "10", .arg = "K",
     .help = "wideresnet: channels 16, 16K, 32K, 64K"},
    {"widths", OPT_STRING, &v.model.widths, .fallback = "64,256,256", .arg = "A,B,C",
     .help = "speednet: channels of its three groups"},
    {"activation", OPT_CHOICE, &v.model.activation, .choices = "gelu|relu", .fallback = "gelu",
     .help = "speednet: activation function"},
    {"stem-bias-epochs", OPT_INT, &v.stem_bias_epochs, 0, 1e6, .fallback = "3", .arg = "N",
     .help = "speednet: train the whitening layer's bias for N epochs"},
    {"dropout", OPT_REAL, &v.model.dropout, 0, 0.9, .fallback = "0.01", .arg = "P",
     .help = "wideresnet: dropout probability"},
    {"device", OPT_CHOICE, &v.device, .choices = "cpu|cuda|ref",
     .help =
         "cpu: oneDNN; cuda: a GPU, cuDNN; ref: plain loops, slow, to compare with; without it:\n"
         "cuda in trainer-cuda, cpu in trainer"},
    {"precision", OPT_CHOICE, &v.precision, .choices = "fp32|tf32|bf16|fp16",
     .help = "of activations and products; weights, their update and BatchNorm are fp32 always;\n"
             "without it: tf32 with cuda (as PyTorch's convolutions), else fp32, all there is"},
    {"autotune", OPT_FLAG, &v.autotune,
     .help = "cuda: time cuDNN's candidates for each shape once, keep what was measured in\n"
             "~/.cache/ddpipe"},
    {"threads", OPT_INT, &v.threads, 0, 1024, .fallback = "0", .env = "OMP_NUM_THREADS", .arg = "N",
     .help = "threads of this rank; 0: cores of this process / ranks of this node"},
    {"endpoint", OPT_STRING, &v.endpoint, .arg = "ipc://…", .help = "this rank's loader"},
    {"prefetch", OPT_INT, &v.prefetch, 1, 1024, .fallback = "8", .arg = "N",
     .help = "batches the loader may be ahead"},
    {"metrics", OPT_STRING, &v.metrics, .arg = "ENDPOINT",
     .help = "the aggregator; none: stderr only"},
    {"rank", OPT_INT, &v.me.rank, -1, 65535, .fallback = "-1", .arg = "R",
     .help = "of this process among all; -1 here and below: what RANK, WORLD_SIZE, LOCAL_RANK,\n"
             "LOCAL_WORLD_SIZE (torchrun's) say, else the Slurm step, else 0 of 1"},
    {"world-size", OPT_INT, &v.me.world_size, -1, 65536, .fallback = "-1", .arg = "W",
     .help = "number of ranks"},
    {"local-rank", OPT_INT, &v.me.local_rank, -1, 1023, .fallback = "-1", .arg = "L",
     .help = "of this process among those of its node"},
    {"local-world-size", OPT_INT, &v.me.local_world_size, -1, 1024, .fallback = "-1", .arg = "N",
     .help = "ranks on this node"},
    {"master-addr", OPT_STRING, &v.me.master_addr, .arg = "HOST",
     .help = "of rank 0; none: MASTER_ADDR, else 127.0.0.1"},
    {"master-port", OPT_INT, &v.me.master_port, -1, 65535, .fallback = "-1", .arg = "PORT",
     .help = "that rank 0 binds; -1: MASTER_PORT, else 29500"},
    {"interface", OPT_STRING, &v.interface, .arg = "NAME",
     .help = "of the network to the other ranks, as in eth0; none: the one that leads to\n"
             "--master-addr"},
    {"sync", OPT_CHOICE, &v.sync, .choices = "ddp|allreduce|gather-scatter", .fallback = "ddp",
     .help = "how gradients are averaged: buckets reduced while backward runs; one all-reduce\n"
             "per tensor after it; or rank 0 gathers, adds up and scatters them"},
    {"bucket-mb", OPT_REAL, &v.bucket_mb, 0.001, 4096, .fallback = "25", .arg = "MB",
     .help = "--sync ddp: size of a bucket …"},
    {"first-bucket-mb", OPT_REAL, &v.first_bucket_mb, 0.001, 4096, .fallback = "1", .arg = "MB",
     .help = "… and of the first, which backward fills first"},
    {"local-transport", OPT_CHOICE, &v.local_transport, .choices = "memory|tcp",
     .fallback = "memory",
     .help =
         "of gradients where all ranks are on one host: each reads the others' memory, or Gloo\n"
         "over TCP as between hosts"},
    {"accumulate", OPT_INT, &v.accumulate, 1, 65536, .fallback = "1", .arg = "N",
     .help = "batches whose gradients are averaged before one update; no communication between"},
    {"sync-batchnorm", OPT_FLAG, &v.sync_batchnorm,
     .help = "BatchNorm by the statistics of all ranks' batches together, not each of its own"},
    {"check-replicas", OPT_CHOICE, &v.check_replicas, .choices = "epoch|off", .fallback = "epoch",
     .help = "compare the ranks' weights after every epoch"},
    {"join-timeout", OPT_REAL, &v.join_timeout, 0.1, 86400, .fallback = "60", .arg = "S",
     .help = "wait for all ranks at most so long"},
    {"comm-timeout", OPT_REAL, &v.comm_timeout, 0.1, 86400, .fallback = "60", .arg = "S",
     .help = "deadline of every collective"},
    {"data-timeout", OPT_REAL, &v.data_timeout, 0.1, 86400, .fallback = "60", .arg = "S",
     .help = "deadline of every wait for loader or aggregator"},
    {"epochs", OPT_INT, &v.epochs, 1, 1e6, .fallback = "20", .arg = "N", .help = "train at most N"},
    {"max-steps", OPT_INT, &v.max_steps, 0, 1e12, .fallback = "0", .arg = "N",
     .help = "end after N batches; 0: no such limit"},
    {"target-accuracy", OPT_REAL, &v.target, 0, 1, .fallback = "0.85", .arg = "A",
     .help = "stop once validation accuracy is at least A …; 0: never"},
    {"patience", OPT_INT, &v.patience, 1, 1e6, .fallback = "2", .arg = "N",
     .help = "… on N consecutive epochs"},
    {"require-target", OPT_FLAG, &v.require_target,
     .help = "exit 1 where the limit came before the target"},
    {"evaluate", OPT_FLAG, &v.evaluate,
     .help = "validate the weights of --init, once; do not train"},
    {"optimizer", OPT_CHOICE, &v.optim.name, .choices = "sgd|adam", .fallback = "sgd",
     .help = "with PyTorch's formulas"},
    {"lr", OPT_REAL, &v.schedule.rate, 0, 1e6, .fallback = "0.01", .arg = "X",
     .help = "learning rate, for the global batch"},
    {"scale-lr", OPT_FLAG, &v.scale_lr,
     .help = "multiply --lr by the number of ranks and by --accumulate"},
    {"momentum", OPT_REAL, &v.optim.momentum, 0, 1, .fallback = "0.9", .arg = "M", .help = "sgd"},
    {"nesterov", OPT_FLAG, &v.optim.nesterov, .help = "sgd: Nesterov's form"},
    {"beta1", OPT_REAL, &v.optim.beta1, 0, 1, .fallback = "0.9", .arg = "B", .help = "adam"},
    {"beta2", OPT_REAL, &v.optim.beta2, 0, 1, .fallback = "0.999", .arg = "B", .help = "adam"},
    {"adam-eps", OPT_REAL, &v.optim.eps, 0, 1, .fallback = "1e-8", .arg = "E", .help = "adam"},
    {"weight-decay", OPT_REAL, &v.optim.weight_decay, 0, 1e6, .fallback = "0", .arg = "D",
     .help = "added to the gradient as D·w"},
    {"bn-bias-lr-scale", OPT_REAL, &v.optim.shift_rate_scale, 1e-6, 1e6, .fallback = "1",
     .arg = "F", .help = "BatchNorm biases: learning rate × F, weight decay / F"},
    {"label-smoothing", OPT_REAL, &v.smoothing, 0, 1, .fallback = "0", .arg = "S",
     .help = "in training; validation loss is without"},
    {"schedule", OPT_CHOICE, &v.schedule.name,
     .choices = "constant|step|cosine|onecycle|triangular", .fallback = "constant",
     .help = "of the learning rate, over --epochs or --max-steps"},
    {"warmup-steps", OPT_INT, &v.schedule.warmup_steps, 0, 1e9, .fallback = "0", .arg = "N",
     .help = "rise linearly over the first N steps"},
    {"lr-start", OPT_REAL, &v.schedule.start, 0, 1, .fallback = "0.2", .arg = "F",
     .help = "triangular: first factor"},
    {"lr-peak-at", OPT_REAL, &v.schedule.peak_at, 0.001, 0.999, .fallback = "0.3", .arg = "U",
     .help = "onecycle, triangular: the part of the run before factor 1"},
    {"lr-end", OPT_REAL, &v.schedule.end, 0, 1, .fallback = "0", .arg = "F",
     .help = "cosine, triangular: last factor"},
    {"lr-gamma", OPT_REAL, &v.schedule.gamma, 0, 1, .fallback = "0.1", .arg = "F",
     .help = "step: factor …"},
    {"lr-step-epochs", OPT_INT, &v.schedule.step_epochs, 1, 1e6, .fallback = "30", .arg = "N",
     .help = "step: … every N epochs"},
    {"ema-every", OPT_INT, &v.ema_every, 0, 1e6, .fallback = "0", .arg = "N",
     .help = "evaluate and save an average of the weights, updated every N steps; 0: the weights"},
    {"ema-decay", OPT_REAL, &v.ema_decay, 0, 1, .fallback = "0.99", .arg = "D",
     .help = "of that average, per step"},
    {"mean", OPT_STRING, &v.mean, .arg = "A,B,C", .help = "normalise pixels/255 by these means …"},
    {"std", OPT_STRING, &v.std, .arg = "A,B,C", .help = "… and deviations; none: the store's own"},
    {"seed", OPT_INT, &v.seed, 0, 9007199254740991, .fallback = "0", .arg = "S",
     .help = "of the first weights and of dropout"},
    {"init", OPT_STRING, &v.init, .arg = "FILE", .help = "start from these weights (safetensors)"},
    {"save", OPT_STRING, &v.save, .arg = "FILE",
     .help = "write this rank's weights there when done (safetensors)"},
    {"synthetic", OPT_FLAG, &v.synthetic, .help = "no loader: made-up images, to measure compute"},
    {"batch-size", OPT_INT, &v.batch_size, 1, 65536, .fallback = "128", .arg = "B",
     .help = "--synthetic: images a step (else the loader's)"},
    {"synthetic-steps", OPT_INT, &v.synthetic_steps, 1, 1e6, .fallback = "20", .arg = "N",
     .help = "--synthetic: steps an epoch"},
    {"profile", OPT_FLAG, &v.profile, .help = "print time per layer at the end"},
    {"print-config", OPT_FLAG, &v.print_config, .help = "print all values as JSON and exit"},
};

static const struct opts opts = {
    .program = "trainer",
    .summary = "Trains a network on the batches of one loader, in step with the other ranks.",
    .table = table,
    .count = sizeof table / sizeof *table,
};

static int check_device(void) {
    if (!v.device)
        v.device = backend_cuda_built ? "cuda" : "cpu";
    bool cuda = !strcmp(v.device, "cuda");
    if (cuda && !backend_cuda_built)
        return fail(BAD_USAGE, "--device cuda: this program was built without CUDA: use "
                               "trainer-cuda");
    if (!v.precision)
        v.precision = cuda ? "tf32" : "fp32";
    if (!cuda && strcmp(v.precision, "fp32"))
        return fail(BAD_USAGE, "--precision %s: --device %s computes in fp32 only", v.precision,
                    v.device);
    if (!cuda && v.autotune)
        return fail(BAD_USAGE, "--autotune: only --device cuda has something to choose from");
    if (cuda && v.sync_batchnorm)
        return fail(BAD_USAGE, "--sync-batchnorm: not with --device cuda yet");
    return 0;
}

int settings_parse(struct settings *s, int argc, char **argv) {
    int rc = opts_parse(&opts, argc, argv, NULL);
    if (rc)
        return rc;
    rc = identity_find(&v.me);
    if (rc)
        return rc;
    if (!v.print_config && !v.synthetic == !v.endpoint)
        return fail(BAD_USAGE, "either --endpoint (a loader) or --synthetic is wanted");
    if (v.evaluate && (!v.init || v.synthetic || v.require_target))
        return fail(BAD_USAGE, "--evaluate %s",
                    !v.init       ? "wants --init: the weights to validate"
                    : v.synthetic ? "with --synthetic: made-up images have no validation"
                                  : "with --require-target: no target is trained for");
    if (!v.mean != !v.std)
        return fail(BAD_USAGE, "--mean and --std come together");
    rc = check_device();
    if (rc)
        return rc;
    v.model.stem_bias = v.stem_bias_epochs > 0;
    v.schedule.steps_per_epoch = 1;
    if (v.scale_lr)
        v.schedule.rate *= (double)(v.me.world_size * v.accumulate);
    if (v.evaluate) {
        v.epochs = 1;
        v.target = 0;
    }
    *s = v;
    return 0;
}

void settings_print(void) {
    opts_print_json(&opts);
}

void settings_synthetic(const struct settings *s, struct batch_hello *hello) {
    *hello = (struct batch_hello){.c = 3,
                                  .h = 32,
                                  .w = 32,
                                  .classes = 10,
                                  .rank = (uint32_t)s->me.rank,
                                  .world_size = (uint32_t)s->me.world_size,
                                  .batch_size = (uint32_t)s->batch_size,
                                  .val_batch_size = (uint32_t)s->batch_size,
                                  .train_steps = (uint32_t)s->synthetic_steps,
                                  .seed = (uint64_t)s->seed,
                                  .digest = "synthetic",
                                  .mean = {0.5, 0.5, 0.5, 0.5},
                                  .std = {0.25, 0.25, 0.25, 0.25}};
    if (s->max_steps && s->max_steps < s->synthetic_steps)
        hello->train_steps = (uint32_t)s->max_steps;
    hello->n_train = hello->train_steps * hello->batch_size * hello->world_size;
    /* patches of independent uniform pixels: E[p] = 1/2, E[p²] = 1/3 */
    for (int i = 0; i < BATCH_PATCH; i++) {
        hello->patch_mean[i] = 0.5;
        for (int j = 0; j < BATCH_PATCH; j++)
            hello->patch_moment[i][j] = i == j ? 1. / 3 : 0.25;
    }
}

static int read_channels(const char *option, const char *text, uint32_t channels, double out[4]) {
    char rest;
    int n = sscanf(text, "%lf,%lf,%lf,%lf%c", &out[0], &out[1], &out[2], &out[3], &rest);
    if (n != (int)channels || (channels < 4 && strchr(text, ',') && text[strlen(text) - 1] == ','))
        return fail(BAD_USAGE, "--%s %s: %u numbers are wanted", option, text, channels);
    return 0;
}

int settings_normalisation(const struct settings *s, const struct batch_hello *hello,
                           double mean[4], double std[4]) {
    memcpy(mean, hello->mean, 4 * sizeof *mean);
    memcpy(std, hello->std, 4 * sizeof *std);
    int rc = s->mean ? read_channels("mean", s->mean, hello->c, mean) : 0;
    rc = rc || !s->std ? rc : read_channels("std", s->std, hello->c, std);
    for (uint32_t c = 0; c < hello->c && !rc; c++)
        if (!(std[c] > 0))
            rc = fail(s->std ? BAD_USAGE : BAD_INPUT,
                      "the deviation of channel %u is %g: pixels "
                      "cannot be divided by it",
                      c, std[c]);
    return rc;
}

void settings_text(const struct settings *s, const struct batch_hello *hello, char *out,
                   size_t size) {
    const struct schedule *h = &s->schedule;
    snprintf(
        out, size,
        "model=%s\nwidth=%lld\nwidths=%s\nactivation=%s\nstem-bias-epochs=%lld\ndropout=%g\n"
        "device=%s\nprecision=%s\noptimizer=%s\nlr=%g\nmomentum=%g\nnesterov=%d\nbeta1=%g\nbeta2=%"
        "g\n"
        "adam-eps=%g\nweight-decay=%g\nbn-bias-lr-scale=%g\nlabel-smoothing=%g\nschedule=%s\n"
        "warmup-steps=%lld\nlr-start=%g\nlr-peak-at=%g\nlr-end=%g\nlr-gamma=%g\n"
        "lr-step-epochs=%lld\nema-every=%lld\nema-decay=%g\nmean=%s\nstd=%s\nseed=%lld\n"
        "epochs=%lld\nmax-steps=%lld\ntarget-accuracy=%g\npatience=%lld\n"
        "sync=%s\nbucket-mb=%g\nfirst-bucket-mb=%g\naccumulate=%lld\nsync-batchnorm=%d\n"
        "check-replicas=%s\nlocal-transport=%s\ndata=%s\nloader seed=%llu\nbatch-size=%u\ntrain "
        "images=%u\nvalidation images=%u\n"
        "steps per epoch=%u\naugment=%s\n",
        s->model.name, (long long)s->model.width, s->model.widths, s->model.activation,
        (long long)s->stem_bias_epochs, s->model.dropout, s->device, s->precision, s->optim.name,
        h->rate, s->optim.momentum, s->optim.nesterov, s->optim.beta1, s->optim.beta2, s->optim.eps,
        s->optim.weight_decay, s->optim.shift_rate_scale, s->smoothing, h->name,
        (long long)h->warmup_steps, h->start, h->peak_at, h->end, h->gamma,
        (long long)h->step_epochs, (long long)s->ema_every, s->ema_decay,
        s->mean ? s->mean : "the store's", s->std ? s->std : "the store's", (long long)s->seed,
        (long long)s->epochs, (long long)s->max_steps, s->target, (long long)s->patience, s->sync,
        s->bucket_mb, s->first_bucket_mb, (long long)s->accumulate, s->sync_batchnorm,
        s->check_replicas, s->local_transport, hello->digest, (unsigned long long)hello->seed,
        hello->batch_size, hello->n_train, hello->n_val, hello->train_steps, hello->augment);
}
