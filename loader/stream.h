/* stream: the loader's side of the protocol in lib/batch.h, over one socket. */
#ifndef DDPIPE_LOADER_STREAM_H
#define DDPIPE_LOADER_STREAM_H

#include <stdint.h>

#include "lib/sock.h"
#include "loader/feed.h"

struct stream_settings {
    double timeout_seconds; /* the longest silence of the trainer: before its first CREDIT, and
                             * while it owes one, or STOP */
    uint64_t max_steps;     /* training batches over all epochs; then one validation, and no more;
                             * 0: no end but STOP */
};

/* Serves the one trainer of this socket until its STOP. BAD_INPUT for a message that is damaged or
 * out of turn; SYSTEM_FAILED for a trainer that is gone or silent, for a second one, and for a
 * signal. Each is reported with the endpoint and the place reached. */
int stream_serve(struct sock *sock, struct feed *feed, const struct stream_settings *settings);

#endif
