/* stats: per-channel mean and standard deviation, and the moments of 2×2 patches from which a
 * whitening layer is made. Each piece of work sums a run of images into its own integers. */
#include "prep/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "lib/parallel.h"

enum { PIECE_IMAGES = 250 };

struct sums {
    uint64_t channel[STORE_CHANNELS_MAX], square[STORE_CHANNELS_MAX];
    uint64_t patch[STORE_PATCH], product[STORE_PATCH][STORE_PATCH]; /* product: j ≤ i */
};

struct work {
    const struct store *store;
    struct sums *pieces;
};

static void sum_channels(struct sums *sums, const uint8_t *pixels, size_t count, uint32_t c) {
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < c; k++) {
            uint32_t v = pixels[i * c + k];
            sums->channel[k] += v;
            sums->square[k] += (uint64_t)v * v;
        }
}

/* A row of patches: lane i holds element i of each, as int16, so that the products below become
 * multiply-add instructions. A row's sum stays under 2^31 for sides up to STORE_SIDE_MAX. */
static void sum_patch_row(struct sums *sums, const uint8_t *image, const struct store_geometry *g,
                          int16_t *lanes) {
    size_t width = g->w - 1;
    for (size_t i = 0; i < STORE_PATCH; i++) {
        const uint8_t *from = image + (i / 2 % 2 * g->w + i % 2) * 3 + i / 4;
        for (size_t x = 0; x < width; x++)
            lanes[i * width + x] = from[3 * x];
    }
    for (size_t i = 0; i < STORE_PATCH; i++) {
        const int16_t *a = lanes + i * width;
        int32_t sum = 0;
        for (size_t x = 0; x < width; x++)
            sum += a[x];
        sums->patch[i] += (uint32_t)sum;
        for (size_t j = 0; j <= i; j++) {
            const int16_t *b = lanes + j * width;
            int32_t product = 0;
            for (size_t x = 0; x < width; x++)
                product += a[x] * b[x];
            sums->product[i][j] += (uint32_t)product;
        }
    }
}

static int has_patches(const struct store_geometry *g) {
    return g->c == 3 && g->h > 1 && g->w > 1;
}

static int sum_piece(void *context, size_t index) {
    struct work *work = context;
    const struct store_geometry *g = &work->store->geometry;
    struct sums *sums = &work->pieces[index];
    size_t image = (size_t)g->h * g->w * g->c;
    size_t first = index * PIECE_IMAGES;
    size_t end = first + PIECE_IMAGES < g->n_train ? first + PIECE_IMAGES : g->n_train;
    const uint8_t *pixels = work->store->train_images;
    sum_channels(sums, pixels + first * image, (end - first) * g->h * g->w, g->c);
    if (!has_patches(g) || first >= STORE_PATCH_IMAGES)
        return 0;
    int16_t *lanes = malloc(STORE_PATCH * (size_t)g->w * sizeof *lanes);
    if (!lanes)
        return fail(SYSTEM_FAILED, "out of memory for the patches of an image");
    for (size_t n = first; n < end && n < STORE_PATCH_IMAGES; n++)
        for (size_t y = 0; y + 1 < g->h; y++)
            sum_patch_row(sums, pixels + n * image + y * g->w * 3, g, lanes);
    free(lanes);
    return 0;
}

static void add(struct sums *total, const struct sums *piece) {
    for (int k = 0; k < STORE_CHANNELS_MAX; k++) {
        total->channel[k] += piece->channel[k];
        total->square[k] += piece->square[k];
    }
    for (int i = 0; i < STORE_PATCH; i++) {
        total->patch[i] += piece->patch[i];
        for (int j = 0; j <= i; j++)
            total->product[i][j] += piece->product[i][j];
    }
}

static void finish(struct store *s, const struct sums *total) {
    const struct store_geometry *g = &s->geometry;
    uint64_t n = (uint64_t)g->n_train * g->h * g->w;
    for (uint32_t k = 0; k < g->c; k++) {
        /* n²·variance as an integer: no difference of two rounded numbers. */
        unsigned __int128 spread = (unsigned __int128)total->square[k] * n -
                                   (unsigned __int128)total->channel[k] * total->channel[k];
        s->mean[k] = (double)total->channel[k] / (double)n / 255;
        s->std[k] = sqrt((double)spread) / (double)n / 255;
    }
    if (!has_patches(g))
        return;
    uint64_t images = g->n_train < STORE_PATCH_IMAGES ? g->n_train : STORE_PATCH_IMAGES;
    double patches = (double)(images * (g->h - 1) * (g->w - 1));
    for (int i = 0; i < STORE_PATCH; i++) {
        s->patch_mean[i] = (double)total->patch[i] / patches / 255;
        for (int j = 0; j <= i; j++)
            s->patch_moment[i][j] = s->patch_moment[j][i] =
                (double)total->product[i][j] / patches / (255 * 255);
    }
}

int stats_compute(struct store *s, int threads) {
    size_t count = (s->geometry.n_train + (size_t)PIECE_IMAGES - 1) / PIECE_IMAGES;
    struct work work = {.store = s, .pieces = calloc(count, sizeof *work.pieces)};
    if (!work.pieces)
        return fail(SYSTEM_FAILED, "out of memory for the sums of %zu pieces", count);
    int r = parallel_for(count, threads, sum_piece, &work);
    struct sums total = {0};
    for (size_t i = 0; i < count; i++)
        add(&total, &work.pieces[i]);
    free(work.pieces);
    if (!r)
        finish(s, &total);
    return r;
}
