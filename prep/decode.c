/* decode: tells which format a directory holds, and opens it with that format's decoder.
 *
 * A manifest names the format. A directory without one is recognised by the files that only one
 * format has; two formats in one directory are refused rather than one of them picked. */
#include "prep/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/log.h"

static const struct decode_format *const decoders[] = {
    [DATASET_CIFAR_BINARY] = &decode_cifar,
    [DATASET_CIFAR100_BINARY] = &decode_cifar100,
    [DATASET_PNG_SPRITES] = &decode_sprite,
    [DATASET_PNG_FOLDERS] = &decode_folder,
    [DATASET_IDX] = &decode_idx,
};

/* A format is there if any of these is; they are also what the refusal lists. */
static const struct sign {
    enum dataset_format format;
    const char *file;
} signs[] = {
    {DATASET_CIFAR_BINARY, "data_batch_1.bin"}, {DATASET_CIFAR100_BINARY, "train.bin"},
    {DATASET_PNG_SPRITES, "data_batch_1.png"},  {DATASET_PNG_FOLDERS, "train"},
    {DATASET_IDX, "train-images-idx3-ubyte"},   {DATASET_IDX, "train-images-idx3-ubyte.gz"},
};
enum { SIGN_COUNT = sizeof signs / sizeof signs[0] };

static int recognise_by_files(const char *dir, enum dataset_format *format) {
    const struct sign *found = NULL;
    for (int i = 0; i < SIGN_COUNT; i++) {
        char path[1024];
        int r = file_join(path, sizeof path, dir, signs[i].file);
        if (r)
            return r;
        if (access(path, F_OK) < 0)
            continue;
        if (found)
            return fail(BAD_INPUT,
                        "%s is ambiguous: it holds %s (%s) and %s (%s): leave one of "
                        "them",
                        dir, found->file, dataset_format_name(found->format), signs[i].file,
                        dataset_format_name(signs[i].format));
        found = &signs[i];
    }
    if (found) {
        *format = found->format;
        return 0;
    }
    char list[512] = "";
    for (int i = 0; i < SIGN_COUNT; i++) {
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s (%s)", i ? ", " : "", signs[i].file,
                 dataset_format_name(signs[i].format));
    }
    return fail(BAD_INPUT, "%s holds no data set that prep knows; looked for %s, and one of: %s",
                dir, DATASET_MANIFEST, list);
}

int decode_recognise(const char *dir, enum dataset_format *format) {
    struct dataset_manifest manifest;
    bool found;
    int r = dataset_manifest_read(dir, false, &manifest, &found);
    if (r)
        return r;
    if (!found)
        return recognise_by_files(dir, format);
    *format = manifest.format;
    dataset_manifest_close(&manifest);
    if (*format == DATASET_CIFAR_BINARY || *format == DATASET_PNG_SPRITES)
        return 0;
    r = dataset_manifest_read(dir, true, &manifest, &found);
    if (!r && found)
        dataset_manifest_close(&manifest);
    return r;
}

int decode_open(struct decode **out, const struct decode_options *options) {
    *out = NULL;
    enum dataset_format format;
    if (access(options->dir, R_OK | X_OK) < 0)
        return fail(BAD_INPUT, "cannot read the folder %s (--data): %m", options->dir);
    int r = decode_recognise(options->dir, &format);
    if (r)
        return r;
    if (options->resize_h && format != DATASET_PNG_FOLDERS)
        return fail(BAD_USAGE, "--resize is for PNG folders; %s is %s", options->dir,
                    dataset_format_name(format));
    struct decode *d = calloc(1, sizeof *d);
    if (!d)
        return fail(SYSTEM_FAILED, "out of memory");
    d->options = *options;
    d->format = format;
    d->with = decoders[format];
    r = d->with->open(d);
    if (r) {
        decode_close(&d);
        return r;
    }
    *out = d;
    return 0;
}

void decode_close(struct decode **decode) {
    struct decode *d = *decode;
    if (!d)
        return;
    d->with->close(d);
    free(d->pieces);
    free(d);
    *decode = NULL;
}

int decode_add_piece(struct decode *d, struct decode_piece piece) {
    struct decode_piece *pieces = realloc(d->pieces, (d->piece_count + 1) * sizeof *pieces);
    if (!pieces)
        return fail(SYSTEM_FAILED, "out of memory for %zu pieces of work", d->piece_count + 1);
    d->pieces = pieces;
    uint32_t *n = piece.split == DECODE_TRAIN ? &d->geometry.n_train : &d->geometry.n_val;
    if (piece.count > UINT32_MAX - *n)
        return fail(BAD_INPUT, "%s: more than %u images", d->options.dir, UINT32_MAX);
    piece.first = *n;
    *n += piece.count;
    pieces[d->piece_count++] = piece;
    return 0;
}

int decode_name_class(struct decode *d, uint32_t k, const char *name) {
    if (k >= STORE_CLASSES_MAX)
        return fail(BAD_INPUT, "%s: more than %d classes (the next is \"%s\")", d->options.dir,
                    STORE_CLASSES_MAX, name);
    if (!name[0] || strlen(name) >= STORE_NAME_MAX)
        return fail(BAD_INPUT, "%s: class name \"%s\": 1 to %d bytes are possible", d->options.dir,
                    name, STORE_NAME_MAX - 1);
    snprintf(d->geometry.class_names[k], STORE_NAME_MAX, "%s", name);
    if (d->geometry.classes <= k)
        d->geometry.classes = k + 1;
    return 0;
}
