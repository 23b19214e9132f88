/* build: open the directory, reserve the store, let threads fill it piece by piece, publish. Each
 * piece is checked by the thread that decoded it, while its pixels are still in the cache. */
#include "prep/build.h"

#include <stdio.h>

#include "lib/log.h"
#include "lib/parallel.h"
#include "prep/check.h"
#include "prep/stats.h"

struct work {
    const struct decode *decode;
    struct store *store;
};

static int fill_piece(void *context, size_t index) {
    struct work *work = context;
    const struct decode *d = work->decode;
    const struct decode_piece *piece = &d->pieces[index];
    const struct store_geometry *g = &d->geometry;
    size_t image = (size_t)g->h * g->w * g->c;
    bool train = piece->split == DECODE_TRAIN;
    uint8_t *pixels = train ? work->store->train_images : work->store->val_images;
    uint16_t *labels = train ? work->store->train_labels : work->store->val_labels;
    pixels += piece->first * image;
    labels += piece->first;
    int r = d->with->fill(d, piece, pixels, labels);
    if (r || !piece->md5)
        return r;
    const struct dataset_part *part = &dataset_cifar10[piece->file];
    const char *name = d->format == DATASET_CIFAR_BINARY ? part->binary : part->sprite;
    char what[1200];
    snprintf(what, sizeof what, "%s/%s", d->options.dir, name);
    return check_cifar10(what, piece->count, pixels, labels, piece->md5);
}

int build_store(struct store **out, const struct decode_options *options, const char *store_dir,
                int threads, pid_t owner) {
    *out = NULL;
    struct decode *decode;
    int r = decode_open(&decode, options);
    if (r)
        return r;
    struct store *store;
    r = store_create(&store, store_dir, &decode->geometry);
    struct work work = {.decode = decode, .store = store};
    if (!r)
        r = parallel_for(decode->piece_count, threads, fill_piece, &work);
    if (!r)
        r = stats_compute(store, threads);
    if (!r)
        r = store_publish(store, owner);
    decode_close(&decode);
    if (r)
        store_close(&store);
    else
        *out = store;
    return r;
}
