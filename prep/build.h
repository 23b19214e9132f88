/* build: a directory becomes a store. */
#ifndef DDPIPE_BUILD_H
#define DDPIPE_BUILD_H

#include "lib/store.h"
#include "prep/decode.h"

/* Decodes options->dir into a store in store_dir, on `threads` threads (0: one per CPU), checks and
 * publishes it for owner, and returns it open. Nothing is left on failure. */
int build_store(struct store **s, const struct decode_options *options, const char *store_dir,
                int threads, pid_t owner);

#endif
