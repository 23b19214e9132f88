/* loader: maps a store, orders its images for one rank, augments them, and streams batches to that
 * rank's trainer, which asks for them by credits. Ends when the trainer says STOP. */
#include <malloc.h>

#include "lib/log.h"
#include "lib/opts.h"
#include "lib/sock.h"
#include "lib/stop.h"
#include "lib/store.h"
#include "loader/bench.h"
#include "loader/feed.h"
#include "loader/stream.h"

enum { LINGER_MS = 1000, BENCH_EPOCHS = 3, HEAP_BYTES = 1 << 30 };

static struct settings {
    const char *store, *endpoint, *augment;
    int64_t rank, world_size, batch_size, val_batch_size, cutout, seed, limit_train, limit_val;
    int64_t max_steps, resize, resize_epochs, threads;
    double timeout;
    bool no_shuffle, drop_last, evaluate, bench, print_config;
} set;

#define INT(lowest, highest) .type = OPT_INT, .min = lowest, .max = highest, .arg = "N"
#define IMAGES_MAX 4294967295.0
#define SEED_MAX 9007199254740991.0 /* 2^53 - 1: exact in the table's double */

static const struct opt table[] = {
    {.name = "store",
     .type = OPT_STRING,
     .value = &set.store,
     .arg = "STORE",
     .help = "store made by prep: its path, or its name in " STORE_DIR},
    {.name = "endpoint",
     .type = OPT_STRING,
     .value = &set.endpoint,
     .arg = "ipc://PATH",
     .help = "socket to serve the trainer at; removed at the end"},
    {.name = "rank",
     INT(0, 1048575),
     .value = &set.rank,
     .fallback = "0",
     .help = "of the trainer that is served"},
    {.name = "world-size",
     INT(1, 1048576),
     .value = &set.world_size,
     .fallback = "1",
     .help = "ranks that share the data"},
    {.name = "batch-size",
     INT(1, 1048576),
     .value = &set.batch_size,
     .fallback = "128",
     .help = "training images in a batch, of this rank"},
    {.name = "val-batch-size",
     INT(0, 1048576),
     .value = &set.val_batch_size,
     .fallback = "0",
     .help = "validation images in a batch; 0: as --batch-size"},
    {.name = "augment",
     .type = OPT_CHOICE,
     .value = &set.augment,
     .choices = AUGMENT_CHOICES,
     .fallback = "standard",
     .arg = "A",
     .help = "of training images. standard: crop out of 4 padded zeros, flip;\n"
             "course: flip, rotation, shear, scale, colours;\n"
             "speed: shift by up to 2 reflected pixels, flip in every other epoch"},
    {.name = "cutout",
     INT(0, STORE_SIDE_MAX),
     .value = &set.cutout,
     .fallback = "0",
     .help = "side of a square hole of the mean colour in training images; 0: none"},
    {.name = "seed",
     INT(0, SEED_MAX),
     .value = &set.seed,
     .fallback = "1",
     .help = "of order and augmentation; the same on all ranks"},
    {.name = "no-shuffle",
     .type = OPT_FLAG,
     .value = &set.no_shuffle,
     .help = "take the training images in the store's order"},
    {.name = "drop-last",
     .type = OPT_FLAG,
     .value = &set.drop_last,
     .help = "drop the training images that do not divide over the ranks, and a\n"
             "last batch that is not full; without it, the first ones fill up"},
    {.name = "limit-train",
     INT(0, IMAGES_MAX),
     .value = &set.limit_train,
     .fallback = "0",
     .help = "use at most the first N training images; 0: all"},
    {.name = "limit-val",
     INT(0, IMAGES_MAX),
     .value = &set.limit_val,
     .fallback = "0",
     .help = "use at most the first N validation images; 0: all"},
    {.name = "max-steps",
     INT(0, 1e12),
     .value = &set.max_steps,
     .fallback = "0",
     .help = "training batches over all epochs, then one validation; 0: no end"},
    {.name = "evaluate",
     .type = OPT_FLAG,
     .value = &set.evaluate,
     .help = "validation images only, once"},
    {.name = "small",
     INT(0, STORE_SIDE_MAX),
     .value = &set.resize,
     .fallback = "0",
     .help = "side that training images have in the first --small-epochs"},
    {.name = "small-epochs",
     INT(0, 1000000),
     .value = &set.resize_epochs,
     .fallback = "0",
     .help = "epochs with small training images"},
    {.name = "timeout",
     .type = OPT_REAL,
     .value = &set.timeout,
     .min = 0.1,
     .max = 86400,
     .fallback = "600",
     .arg = "S",
     .help = "seconds that the trainer may be silent while it is waited for"},
    {.name = "threads",
     INT(1, 256),
     .value = &set.threads,
     .fallback = "1",
     .help = "that make a batch; changes no pixel"},
    {.name = "bench",
     .type = OPT_FLAG,
     .value = &set.bench,
     .help = "take the batches of 3 epochs (or --max-steps) itself and print\n"
             "images per second, a JSON object a line"},
    {.name = "print-config",
     .type = OPT_FLAG,
     .value = &set.print_config,
     .help = "print the settings as JSON and exit"},
};

static const struct opts opts = {
    .program = "loader",
    .summary = "Streams the augmented batches of one rank from a store to its trainer.",
    .table = table,
    .count = sizeof table / sizeof table[0],
};

static int check(void) {
    if (!set.store)
        return fail(BAD_USAGE, "--store is wanted: the path that prep printed");
    if (!set.endpoint)
        return fail(BAD_USAGE, "--endpoint is wanted, as in ipc:///run/user/0/loader.0");
    if (set.rank >= set.world_size)
        return fail(BAD_USAGE, "--rank %lld: must be below --world-size %lld", (long long)set.rank,
                    (long long)set.world_size);
    if (set.evaluate && set.bench)
        return fail(BAD_USAGE, "--evaluate with --bench: that one measures training batches");
    return 0;
}

static struct feed_settings feed_settings(void) {
    return (struct feed_settings){
        .rank = (uint32_t)set.rank,
        .world_size = (uint32_t)set.world_size,
        .batch_size = (uint32_t)set.batch_size,
        .val_batch_size = (uint32_t)(set.val_batch_size ? set.val_batch_size : set.batch_size),
        .limit_train = (uint32_t)set.limit_train,
        .limit_val = (uint32_t)set.limit_val,
        .shuffle = !set.no_shuffle,
        .drop_last = set.drop_last,
        .evaluate = set.evaluate,
        .augment = augment_kind_of(set.augment),
        .cutout = (uint32_t)set.cutout,
        .seed = (uint64_t)set.seed,
        .resize = (uint32_t)set.resize,
        .resize_epochs = (uint32_t)set.resize_epochs,
        .threads = (int)set.threads,
    };
}

static int serve(void) {
    struct store *store;
    struct feed *feed = NULL;
    struct sock *sock = NULL;
    struct feed_settings feeding = feed_settings();
    struct stream_settings streaming = {.timeout_seconds = set.timeout,
                                        .max_steps = (uint64_t)set.max_steps};
    int r = store_open(&store, set.store);
    if (!r)
        r = feed_open(&feed, store, &feeding);
    if (!r)
        r = sock_bind(&sock, SOCK_DUPLEX, set.endpoint);
    if (!r)
        r = set.bench ? bench_run(sock, feed, &streaming, BENCH_EPOCHS)
                      : stream_serve(sock, feed, &streaming);
    sock_close(&sock, LINGER_MS);
    feed_close(&feed);
    store_close(&store);
    return r;
}

int main(int argc, char **argv) {
    log_open("loader", -1);
    int r = opts_parse(&opts, argc, argv, NULL);
    if (r)
        return r;
    log_open("loader", (int)set.rank);
    /* Each batch is a block of its own, freed once it is sent. Kept in the heap, its pages need
     * not be mapped and cleared by the system anew every time. */
    mallopt(M_MMAP_THRESHOLD, HEAP_BYTES);
    mallopt(M_TRIM_THRESHOLD, HEAP_BYTES);
    if (set.print_config) {
        opts_print_json(&opts);
        return 0;
    }
    r = check();
    if (r)
        return r;
    stop_install();
    r = serve();
    stop_finish();
    return r;
}
