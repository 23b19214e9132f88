/* decode_idx: the IDX files of the MNIST family, plain or gzipped: {train,t10k}-images-idx3-ubyte
 * and -labels-idx1-ubyte. Big-endian header: 0, 0, type 8 (unsigned byte), dimensions (3 or 1),
 * then each size. Classes are 0 to the largest train label, named by their numbers.
 * Source: the format's description on https://yann.lecun.com/exdb/mnist/, "The IDX file format".
 *
 * A gzipped file can only be read from its beginning, so a split is one piece of work. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "lib/file.h"
#include "lib/log.h"
#include "prep/decode.h"

/* deflate shrinks at most 1032 to 1 (zlib's technical details, "Maximum compression factor"). */
enum { DEFLATE_FACTOR = 1032 };
static const char *const split_names[2] = {"train", "t10k"};

struct idx {
    char images[2][1024]; /* paths, per split */
    uint16_t *labels[2];
};

struct stream {
    const char *path;
    gzFile gz;
    uint64_t at; /* in what the file unpacks to */
};

/* The path of name, plain or with .gz. */
static int find(const char *dir, enum decode_split split, const char *name, char path[1024]) {
    char file[64], packed[1024];
    snprintf(file, sizeof file, "%s-%s", split_names[split], name);
    int r = file_join(path, 1024, dir, file);
    snprintf(file, sizeof file, "%s-%s.gz", split_names[split], name);
    if (!r)
        r = file_join(packed, sizeof packed, dir, file);
    if (r)
        return r;
    bool has_plain = access(path, F_OK) == 0, has_packed = access(packed, F_OK) == 0;
    if (has_plain && has_packed)
        return fail(BAD_INPUT, "%s is there twice, plain and with .gz: leave one", path);
    if (!has_plain && !has_packed)
        return fail(BAD_INPUT, "%s is missing, plain and with .gz", path);
    if (has_packed)
        memcpy(path, packed, sizeof packed);
    return 0;
}

static int stream_open(struct stream *s, const char *path) {
    *s = (struct stream){.path = path, .gz = gzopen(path, "rb")};
    if (!s->gz)
        return fail(BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    gzbuffer(s->gz, 1 << 18);
    return 0;
}

static int stream_read(struct stream *s, void *out, uint64_t size) {
    uint8_t *to = out;
    while (size > 0) {
        int got = gzread(s->gz, to, size < 1 << 24 ? (unsigned)size : 1U << 24);
        int code = Z_OK;
        const char *text = gzerror(s->gz, &code);
        if (got <= 0 || code != Z_OK)
            return fail(BAD_INPUT, "%s: offset %llu%s: %s", s->path,
                        (unsigned long long)s->at + (got > 0 ? (unsigned)got : 0U),
                        gzdirect(s->gz) ? "" : " of the unpacked data",
                        code == Z_OK || code == Z_BUF_ERROR ? "the file is cut short" : text);
        to += got;
        s->at += (unsigned)got;
        size -= (unsigned)got;
    }
    return 0;
}

/* Nothing may follow, and the check value of a gzipped file must fit. */
static int stream_end(struct stream *s) {
    uint8_t byte;
    int code = Z_OK;
    int got = gzread(s->gz, &byte, 1);
    const char *text = gzerror(s->gz, &code);
    if (got > 0)
        return fail(BAD_INPUT, "%s: offset %llu: bytes follow the last record", s->path,
                    (unsigned long long)s->at);
    if (got < 0 || code != Z_OK)
        return fail(BAD_INPUT, "%s: offset %llu of the unpacked data: %s", s->path,
                    (unsigned long long)s->at,
                    code == Z_BUF_ERROR ? "the file is cut short" : text);
    return 0;
}

static int read_header(struct stream *s, uint32_t dims, uint32_t *sizes) {
    uint8_t bytes[16];
    int r = stream_read(s, bytes, 4 + 4 * dims);
    if (r)
        return r;
    uint32_t words[4];
    for (uint32_t i = 0; i <= dims; i++)
        words[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 |
                   (uint32_t)bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    if (words[0] != (8U << 8 | dims))
        return fail(BAD_INPUT,
                    "%s: offset 0: magic number 0x%08x, expected 0x%08x (%u dimensions of "
                    "unsigned bytes)",
                    s->path, words[0], 8U << 8 | dims, dims);
    memcpy(sizes, words + 1, dims * sizeof *sizes);
    return 0;
}

/* Can the file hold so many bytes at all? Asked before anything is reserved for them. */
static int check_size(const char *path, uint64_t bytes) {
    struct stat st;
    if (stat(path, &st) < 0)
        return fail(BAD_INPUT, "cannot look at %s: %s", path, strerror(errno));
    if (bytes / DEFLATE_FACTOR > (uint64_t)st.st_size)
        return fail(BAD_INPUT, "%s: its header speaks of %llu bytes, but the file has %lld", path,
                    (unsigned long long)bytes, (long long)st.st_size);
    return 0;
}

static int open_images(struct decode *d, enum decode_split split, uint32_t *count) {
    struct idx *idx = d->state;
    struct store_geometry *g = &d->geometry;
    struct stream s;
    uint32_t sizes[3];
    int r = find(d->options.dir, split, "images-idx3-ubyte", idx->images[split]);
    if (!r)
        r = stream_open(&s, idx->images[split]);
    if (r)
        return r;
    r = read_header(&s, 3, sizes);
    gzclose(s.gz);
    if (r)
        return r;
    *count = sizes[0];
    if (split == DECODE_VAL && (sizes[1] != g->h || sizes[2] != g->w))
        return fail(BAD_INPUT, "%s: images of %u x %u, but %s has %u x %u", s.path, sizes[1],
                    sizes[2], idx->images[DECODE_TRAIN], g->h, g->w);
    g->c = 1;
    g->h = sizes[1];
    g->w = sizes[2];
    if (g->h < 1 || g->w < 1 || g->h > STORE_SIDE_MAX || g->w > STORE_SIDE_MAX)
        return fail(BAD_INPUT, "%s: images of %u x %u: sides of 1 to %d are possible", s.path, g->h,
                    g->w, STORE_SIDE_MAX);
    return check_size(s.path, (uint64_t)sizes[0] * g->h * g->w);
}

static int check_labels(struct decode *d, enum decode_split split, const char *path,
                        const uint8_t *bytes, uint32_t count) {
    struct idx *idx = d->state;
    for (uint32_t i = 0; i < count; i++) {
        if (split == DECODE_TRAIN && bytes[i] >= d->geometry.classes &&
            bytes[i] < STORE_CLASSES_MAX)
            d->geometry.classes = bytes[i] + 1U;
        if (bytes[i] >= d->geometry.classes)
            return fail(BAD_INPUT, "%s: record %u, offset %u: label %u, but there are %u classes",
                        path, i, i + 8, bytes[i],
                        split == DECODE_TRAIN ? STORE_CLASSES_MAX : d->geometry.classes);
        idx->labels[split][i] = bytes[i];
    }
    return 0;
}

static int open_labels(struct decode *d, enum decode_split split, uint32_t images) {
    struct idx *idx = d->state;
    char path[1024];
    struct stream s;
    uint32_t count = 0;
    uint8_t *bytes = NULL;
    int r = find(d->options.dir, split, "labels-idx1-ubyte", path);
    if (!r)
        r = stream_open(&s, path);
    if (r)
        return r;
    r = read_header(&s, 1, &count);
    if (!r && count != images)
        r = fail(BAD_INPUT, "%s: %u labels, but %s has %u images", path, count, idx->images[split],
                 images);
    if (!r)
        r = check_size(path, count);
    if (!r) {
        bytes = malloc((size_t)count + 1);
        idx->labels[split] = calloc((size_t)count + 1, sizeof(uint16_t));
        if (!bytes || !idx->labels[split])
            r = fail(SYSTEM_FAILED, "out of memory for %u labels", count);
    }
    if (!r)
        r = stream_read(&s, bytes, count);
    if (!r)
        r = stream_end(&s);
    if (!r)
        r = check_labels(d, split, path, bytes, count);
    free(bytes);
    gzclose(s.gz);
    return r;
}

static int open_idx(struct decode *d) {
    d->state = calloc(1, sizeof(struct idx));
    if (!d->state)
        return fail(SYSTEM_FAILED, "out of memory");
    int r = 0;
    for (enum decode_split split = DECODE_TRAIN; split <= DECODE_VAL && !r; split++) {
        uint32_t count;
        r = open_images(d, split, &count);
        if (!r)
            r = open_labels(d, split, count);
        if (!r)
            r = decode_add_piece(d, (struct decode_piece){.split = split, .count = count});
    }
    for (uint32_t k = 0; k < d->geometry.classes && !r; k++) {
        char name[STORE_NAME_MAX];
        snprintf(name, sizeof name, "%u", k);
        r = decode_name_class(d, k, name);
    }
    return r;
}

static int fill(const struct decode *d, const struct decode_piece *piece, uint8_t *pixels,
                uint16_t *labels) {
    const struct idx *idx = d->state;
    struct stream s;
    uint32_t sizes[3];
    int r = stream_open(&s, idx->images[piece->split]);
    if (r)
        return r;
    r = read_header(&s, 3, sizes);
    if (!r)
        r = stream_read(&s, pixels, (uint64_t)piece->count * d->geometry.h * d->geometry.w);
    if (!r)
        r = stream_end(&s);
    gzclose(s.gz);
    memcpy(labels, idx->labels[piece->split], piece->count * sizeof *labels);
    return r;
}

static void close_idx(struct decode *d) {
    struct idx *idx = d->state;
    if (!idx)
        return;
    free(idx->labels[DECODE_TRAIN]);
    free(idx->labels[DECODE_VAL]);
    free(idx);
}

const struct decode_format decode_idx = {open_idx, fill, close_idx};
