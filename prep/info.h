/* info: a store's header for people and scripts. */
#ifndef DDPIPE_INFO_H
#define DDPIPE_INFO_H

#include "lib/store.h"

/* One "key value" a line on stdout: path, version, digest, size_bytes, n_train, n_val, height,
 * width, channels, classes, then "class K NAME", "count K TRAIN VAL", "mean C VALUE", "std C VALUE"
 * and "owner PID alive|dead" lines. */
void info_print(const struct store *s);

#endif
