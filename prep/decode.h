/* decode: one contract for every format that prep reads.
 *
 * A decoder first looks at a directory (open): how many images, of what shape, which classes. It
 * cuts them into pieces, each a range of one split that one thread decodes in one go (fill). */
#ifndef DDPIPE_DECODE_H
#define DDPIPE_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/dataset.h"
#include "lib/store.h"

enum decode_split { DECODE_TRAIN = 0, DECODE_VAL = 1 };

struct decode_piece {
    enum decode_split split;
    uint32_t first, count; /* images [first, first + count) of the split */
    uint32_t file;         /* the decoder's number of the file it comes from */
    const char *md5;       /* published digest of these images as CIFAR-10 records, or NULL */
};

struct decode_options {
    const char *dir;
    bool any_content;            /* CIFAR-10: accept other data than the published */
    uint32_t resize_h, resize_w; /* PNG folders: 0 = take no image of another size */
};

struct decode {
    struct decode_options options;
    enum dataset_format format;
    struct store_geometry geometry;
    struct decode_piece *pieces; /* in order; freed by decode_close */
    size_t piece_count;
    const struct decode_format *with;
    void *state; /* the decoder's */
};

struct decode_format {
    /* Fills geometry and pieces (by decode_add_piece). Images themselves may stay unread. */
    int (*open)(struct decode *d);
    /* Writes the piece's images (count,H,W,C) and labels (count), each below classes. Called from
     * many threads at once, for different pieces. */
    int (*fill)(const struct decode *d, const struct decode_piece *piece, uint8_t *pixels,
                uint16_t *labels);
    /* Frees state; also after an open that failed. */
    void (*close)(struct decode *d);
};
extern const struct decode_format decode_cifar, decode_cifar100, decode_sprite, decode_folder,
    decode_idx;

/* Which format is in dir: by its manifest (whose sizes, and where prep does not check the content
 * itself digests, are compared), else by its files. None or several is BAD_INPUT, with what was
 * looked for. */
int decode_recognise(const char *dir, enum dataset_format *format);

/* Recognises the format and opens the directory with its decoder. */
int decode_open(struct decode **d, const struct decode_options *options);
void decode_close(struct decode **d);

/* For decoders: appends a piece, and counts its images in the geometry. */
int decode_add_piece(struct decode *d, struct decode_piece piece);

/* For decoders: names class k; BAD_INPUT where the name or the number of classes is too large. */
int decode_name_class(struct decode *d, uint32_t k, const char *name);

#endif
