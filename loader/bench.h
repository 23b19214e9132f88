/* bench: a loader's speed, measured at the far end of its real socket. */
#ifndef DDPIPE_LOADER_BENCH_H
#define DDPIPE_LOADER_BENCH_H

#include "lib/sock.h"
#include "loader/feed.h"
#include "loader/stream.h"

/* Serves `epochs` epochs (or settings->max_steps) to a thread of its own, which takes them and
 * does nothing with them. It prints one JSON object a line and epoch on stdout: epoch, images,
 * seconds, images_per_sec, of the training batches: from the first request, or the end of the
 * validation before, to the arrival of END. */
int bench_run(struct sock *sock, struct feed *feed, const struct stream_settings *settings,
              int epochs);

#endif
