/* source: where batches come from: a loader (batch.h), or made up here, to measure compute alone.
 */
#ifndef DDPIPE_SOURCE_H
#define DDPIPE_SOURCE_H

#include "lib/batch.h"

struct source;

/* Connects to a loader, grants `credits` batches and waits for its HELLO. timeout_seconds also
 * bounds each later wait. */
int source_open_loader(struct source **s, const char *endpoint, uint32_t credits,
                       double timeout_seconds);

/* Batches of pixels from a counter-based generator, always the same ones: train_steps of
 * batch_size, then val_steps; labels are a function of the pixels. */
int source_open_synthetic(struct source **s, const struct batch_hello *like);

const struct batch_hello *source_hello(const struct source *s);

/* The next BATCH or END, valid until the next call. A silent or dead loader, or a message out of
 * turn, is a reported failure. *waited_ns grows by the time spent waiting. */
int source_next(struct source *s, struct batch_message *out, int64_t *waited_ns);

/* Sends STOP. Clears the pointer. */
void source_close(struct source **s);

#endif
