/* batch: the arrow from a loader to its trainer, one duplex ZeroMQ socket (the loader binds).
 *
 *   trainer: CREDIT n      may be sent n more batches; the first one opens the conversation
 *   loader:  HELLO         once, in answer to the first CREDIT
 *   loader:  BATCH         costs one credit; train batches of epoch 1, then
 *   loader:  END           (free) closes a phase; then val batches of epoch 1, END, epoch 2, …
 *   trainer: STOP          the loader ends
 *
 * So the loader runs ahead by as many batches as there are credits, across phases and epochs.
 * Every message: magic "DDPB", version, kind, length of what follows; packed by pack.h. An unknown
 * version, kind or wrong length is refused. */
#ifndef DDPIPE_BATCH_H
#define DDPIPE_BATCH_H

#include <stdint.h>
#include <zmq.h>

enum { BATCH_VERSION = 1, BATCH_HEADER_SIZE = 64, BATCH_PATCH = 12, BATCH_CLASSES_MAX = 1000 };

enum batch_kind { BATCH_CREDIT = 1, BATCH_HELLO, BATCH_BATCH, BATCH_END, BATCH_STOP };
enum batch_phase { BATCH_TRAIN = 0, BATCH_VAL = 1 };

struct batch_hello {
    uint32_t n_train, n_val; /* images in the whole data set, after --limit-… */
    uint32_t c, h, w;        /* largest geometry that a BATCH will have */
    uint32_t classes;
    uint32_t rank, world_size; /* of the sampler */
    uint32_t batch_size, val_batch_size;
    uint32_t train_steps; /* BATCHes of this rank per epoch; 0: evaluation, of one epoch */
    uint32_t val_steps;   /* the same */
    uint64_t seed;
    char digest[65];        /* of the store, hexadecimal */
    char augment[128];      /* every sampler and augmentation setting, as text */
    double mean[4], std[4]; /* per channel, of train images scaled to 0..1 */
    /* Raw moments of the 2×2 patches of the first 5,000 train images scaled to 0..1, a patch
     * ordered (c, dy, dx): mean and mean of products. Zeros where C is not 3. */
    double patch_mean[BATCH_PATCH];
    double patch_moment[BATCH_PATCH][BATCH_PATCH];
};

struct batch {
    enum batch_phase phase;
    uint32_t epoch; /* from 1 */
    uint32_t step;  /* in this phase, from 1 */
    uint32_t count; /* images, ≥ 1 */
    uint32_t c, h, w;
    const uint8_t *pixels; /* (count, h, w, c) */
    const uint8_t *labels; /* (count) little-endian u16 each: use batch_label() */
};

struct batch_message {
    enum batch_kind kind;
    uint32_t credits;         /* BATCH_CREDIT */
    struct batch_hello hello; /* BATCH_HELLO */
    struct batch batch;       /* BATCH_BATCH: points into the message; BATCH_END: epoch and phase */
};

/* Each fills an uninitialised message, which the caller sends or closes. */
int batch_write_credit(zmq_msg_t *m, uint32_t credits);
int batch_write_hello(zmq_msg_t *m, const struct batch_hello *hello);
int batch_write_end(zmq_msg_t *m, enum batch_phase phase, uint32_t epoch);
int batch_write_stop(zmq_msg_t *m);

/* Makes a BATCH of the given phase, epoch, step, count, c, h, w; *pixels and *labels point into it,
 * for the caller to fill. */
int batch_write(zmq_msg_t *m, const struct batch *header, uint8_t **pixels, uint8_t **labels);
void batch_set_label(uint8_t *labels, uint32_t i, uint16_t label);
uint16_t batch_label(const uint8_t *labels, uint32_t i);

/* Reads any message; BAD_INPUT names what is wrong with it and its offset. */
int batch_read(zmq_msg_t *m, struct batch_message *out);

#endif
