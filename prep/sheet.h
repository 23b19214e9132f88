/* sheet: a contact sheet of a store, to look at with one's own eyes. */
#ifndef DDPIPE_SHEET_H
#define DDPIPE_SHEET_H

#include "lib/store.h"

/* Publishes a PNG at path: a row per class with its name and its first 10 train images, enlarged or
 * thinned by a whole factor to about 64 pixels. */
int sheet_write(const struct store *s, const char *path);

#endif
