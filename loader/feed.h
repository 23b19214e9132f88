/* feed: the batches of one rank, made from a store: sampled, resized, augmented, packed. */
#ifndef DDPIPE_LOADER_FEED_H
#define DDPIPE_LOADER_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/batch.h"
#include "lib/store.h"
#include "loader/augment.h"

struct feed_settings {
    uint32_t rank, world_size;
    uint32_t batch_size, val_batch_size;
    uint32_t limit_train, limit_val; /* only the first so many images of the store; 0: all */
    bool shuffle, drop_last;
    bool evaluate; /* no training batches */
    enum augment_kind augment;
    uint32_t cutout;
    uint64_t seed;
    uint32_t resize;        /* side of the training images in the first epochs; 0: as stored */
    uint32_t resize_epochs; /* how many epochs that are */
    int threads;            /* that make one batch, ≥ 1 */
};

struct feed;

/* The store stays open, and the caller's, until feed_close. BAD_USAGE for settings that contradict
 * the store or each other, naming both numbers. */
int feed_open(struct feed **f, const struct store *store, const struct feed_settings *settings);

/* What the trainer is told of all this. */
const struct batch_hello *feed_hello(const struct feed *f);

/* Makes the message of one batch; epoch and step count from 1, step up to the phase's steps. */
int feed_batch(struct feed *f, enum batch_phase phase, uint32_t epoch, uint32_t step, zmq_msg_t *m);

void feed_close(struct feed **f);

#endif
