/* feed: asks the sampler which images a batch has and writes them, augmented, straight into the
 * message that will carry them. Validation images go as they are stored. Each thread makes a run
 * of neighbouring images with scratch memory of its own. */
#include "loader/feed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "lib/parallel.h"
#include "loader/rescale.h"
#include "loader/sampler.h"

struct scratch {
    uint8_t *resized, *image;
    float *lines;
};

struct feed {
    const struct store *store;
    struct feed_settings set;
    struct sampler samplers[2]; /* by phase */
    struct batch_hello hello;
    struct augment augment, augment_resized;
    struct rescale *rescale; /* NULL: none */
    uint32_t *indices;
    struct scratch *scratch; /* (threads) */
};

/* One batch in the making. */
struct making {
    struct feed *feed;
    struct batch header;
    uint8_t *pixels, *labels;
};

static uint32_t limited(uint32_t n, uint32_t limit) {
    return limit > 0 && limit < n ? limit : n;
}

static int open_samplers(struct feed *f) {
    const struct store_geometry *g = &f->store->geometry;
    const struct feed_settings *set = &f->set;
    struct sampler *train = &f->samplers[BATCH_TRAIN], *val = &f->samplers[BATCH_VAL];
    *train = (struct sampler){.n = limited(g->n_train, set->limit_train),
                              .rank = set->rank,
                              .world_size = set->world_size,
                              .batch_size = set->batch_size,
                              .rest = set->drop_last ? SAMPLER_DROP : SAMPLER_PAD,
                              .shuffle = set->shuffle,
                              .seed = set->seed};
    *val = (struct sampler){.n = limited(g->n_val, set->limit_val),
                            .rank = set->rank,
                            .world_size = set->world_size,
                            .batch_size = set->val_batch_size,
                            .rest = SAMPLER_EXACT};
    int r = sampler_open(train);
    if (!r)
        r = sampler_open(val);
    if (!r && !set->evaluate && train->count < set->batch_size)
        r = fail(BAD_USAGE,
                 "--batch-size %u: a rank's shard has %u images (%u over %u ranks): choose a "
                 "smaller batch",
                 set->batch_size, train->count, train->n, set->world_size);
    return r;
}

static int open_augment(struct feed *f) {
    const struct store_geometry *g = &f->store->geometry;
    const struct feed_settings *set = &f->set;
    f->augment = (struct augment){.kind = set->augment,
                                  .cutout = set->cutout,
                                  .seed = set->seed,
                                  .size = {.c = g->c, .h = g->h, .w = g->w}};
    for (int i = 0; i < 4; i++)
        f->augment.fill[i] = (uint8_t)lrint(f->store->mean[i] * 255);
    f->augment_resized = f->augment;
    if ((set->resize > 0) != (set->resize_epochs > 0))
        return fail(BAD_USAGE, "--small %u with --small-epochs %u: both are wanted, or none",
                    set->resize, set->resize_epochs);
    int r = augment_check(&f->augment);
    if (r || set->resize == 0)
        return r;
    f->augment_resized.size.h = f->augment_resized.size.w = set->resize;
    r = augment_check(&f->augment_resized);
    return r ? r : rescale_open(&f->rescale, &f->augment.size, set->resize, set->resize);
}

static int open_scratch(struct feed *f) {
    const struct feed_settings *set = &f->set;
    uint32_t most = set->batch_size > set->val_batch_size ? set->batch_size : set->val_batch_size;
    size_t stored = geometry_bytes(&f->augment.size);
    size_t resized = geometry_bytes(&f->augment_resized.size);
    f->indices = malloc(most * sizeof *f->indices);
    f->scratch = calloc((size_t)set->threads, sizeof *f->scratch);
    bool all = f->indices && f->scratch;
    for (int i = 0; all && i < set->threads; i++) {
        struct scratch *s = &f->scratch[i];
        s->image = malloc(stored > resized ? stored : resized);
        s->resized = malloc(resized);
        s->lines = malloc((f->rescale ? rescale_scratch(f->rescale) : 1) * sizeof(float));
        all = s->image && s->resized && s->lines;
    }
    return all ? 0 : fail(SYSTEM_FAILED, "out of memory for batches of %u images", most);
}

static void describe(struct feed *f) {
    const struct store *s = f->store;
    const struct feed_settings *set = &f->set;
    struct batch_hello *h = &f->hello;
    *h = (struct batch_hello){
        .n_train = f->samplers[BATCH_TRAIN].n,
        .n_val = f->samplers[BATCH_VAL].n,
        .c = s->geometry.c,
        .h = set->resize > s->geometry.h ? set->resize : s->geometry.h,
        .w = set->resize > s->geometry.w ? set->resize : s->geometry.w,
        .classes = s->geometry.classes,
        .rank = set->rank,
        .world_size = set->world_size,
        .batch_size = set->batch_size,
        .val_batch_size = set->val_batch_size,
        .train_steps = set->evaluate ? 0 : f->samplers[BATCH_TRAIN].steps,
        .val_steps = f->samplers[BATCH_VAL].steps,
        .seed = set->seed,
    };
    snprintf(h->digest, sizeof h->digest, "%s", s->digest);
    snprintf(h->augment, sizeof h->augment,
             "augment=%s cutout=%u shuffle=%s drop_last=%s small=%u small_epochs=%u",
             augment_name(set->augment), set->cutout, set->shuffle ? "yes" : "no",
             set->drop_last ? "yes" : "no", set->resize, set->resize_epochs);
    memcpy(h->mean, s->mean, sizeof h->mean);
    memcpy(h->std, s->std, sizeof h->std);
    memcpy(h->patch_mean, s->patch_mean, sizeof h->patch_mean);
    memcpy(h->patch_moment, s->patch_moment, sizeof h->patch_moment);
}

int feed_open(struct feed **out, const struct store *store, const struct feed_settings *settings) {
    struct feed *f = calloc(1, sizeof *f);
    *out = f;
    if (!f)
        return fail(SYSTEM_FAILED, "out of memory");
    f->store = store;
    f->set = *settings;
    int r = open_samplers(f);
    if (!r)
        r = open_augment(f);
    if (!r)
        r = open_scratch(f);
    if (r)
        feed_close(out);
    else
        describe(f);
    return r;
}

const struct batch_hello *feed_hello(const struct feed *f) {
    return &f->hello;
}

static bool is_resized(const struct feed *f, const struct batch *b) {
    return f->rescale && b->phase == BATCH_TRAIN && b->epoch <= f->set.resize_epochs;
}

static void make_image(const struct making *m, uint32_t i, const struct scratch *s) {
    const struct feed *f = m->feed;
    const struct store *store = f->store;
    bool train = m->header.phase == BATCH_TRAIN;
    uint32_t index = f->indices[i];
    size_t stored = geometry_bytes(&f->augment.size);
    const uint8_t *in = (train ? store->train_images : store->val_images) + index * stored;
    bool resized = is_resized(f, &m->header);
    const struct augment *a = resized ? &f->augment_resized : &f->augment;
    uint8_t *out = m->pixels + i * geometry_bytes(&a->size);
    if (resized) {
        rescale_image(f->rescale, in, s->resized, s->lines);
        in = s->resized;
    }
    if (train)
        augment_image(a, m->header.epoch, index, in, out, s->image);
    else
        memcpy(out, in, stored);
    batch_set_label(m->labels, i, (train ? store->train_labels : store->val_labels)[index]);
}

/* Thread t's share of the images. */
static int make_share(void *context, size_t t) {
    const struct making *m = context;
    size_t threads = (size_t)m->feed->set.threads, count = m->header.count;
    for (size_t i = count * t / threads; i < count * (t + 1) / threads; i++)
        make_image(m, (uint32_t)i, &m->feed->scratch[t]);
    return 0;
}

int feed_batch(struct feed *f, enum batch_phase phase, uint32_t epoch, uint32_t step,
               zmq_msg_t *message) {
    struct making m = {.feed = f, .header = {.phase = phase, .epoch = epoch, .step = step}};
    m.header.count = sampler_batch(&f->samplers[phase], epoch, step, f->indices);
    const struct geometry *size =
        is_resized(f, &m.header) ? &f->augment_resized.size : &f->augment.size;
    m.header.c = size->c;
    m.header.h = size->h;
    m.header.w = size->w;
    int r = batch_write(message, &m.header, &m.pixels, &m.labels);
    if (r)
        return r;
    r = parallel_for((size_t)f->set.threads, f->set.threads, make_share, &m);
    if (r)
        zmq_msg_close(message);
    return r;
}

void feed_close(struct feed **feed) {
    struct feed *f = *feed;
    if (!f)
        return;
    for (int i = 0; f->scratch && i < f->set.threads; i++) {
        free(f->scratch[i].image);
        free(f->scratch[i].resized);
        free(f->scratch[i].lines);
    }
    free(f->scratch);
    free(f->indices);
    rescale_close(&f->rescale);
    sampler_close(&f->samplers[BATCH_TRAIN]);
    sampler_close(&f->samplers[BATCH_VAL]);
    free(f);
    *feed = NULL;
}
