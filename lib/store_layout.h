/* store_layout: how a store lies in its file. For the store's own modules only. */
#ifndef DDPIPE_STORE_LAYOUT_H
#define DDPIPE_STORE_LAYOUT_H

#include "lib/pack.h"
#include "lib/store.h"

/* The header's first fields keep their places in every version, so that any prep can sweep:
 * magic, version, state, then the owners at STORE_OWNERS_AT. */
#define STORE_MAGIC "DDPSTORE"
enum { STORE_MAGIC_SIZE = 8, STORE_OWNERS_AT = 16, STORE_OWNER_SIZE = 12, STORE_SEALED = 1 };

/* Offsets of the sections, and the size of the whole file. */
struct store_layout {
    uint64_t train_images, train_labels, val_images, val_labels, size;
};
struct store_layout store_layout(const struct store_geometry *g);

/* BAD_INPUT, naming `what`, where a number lies outside what a store can hold. */
int store_layout_check(const struct store_geometry *g, const char *what);

/* Bytes of one image. */
size_t store_layout_image(const struct store_geometry *g);

/* Points the sections into s->map. */
void store_layout_map(struct store *s);

void store_layout_pack_geometry(struct pack *p, const struct store_geometry *g);

/* The header as bytes at s->map, and back. Reading checks magic, version, state and the file's
 * size; errors name s->path. */
int store_layout_write_header(struct store *s);
int store_layout_read_header(struct store *s, uint64_t file_size);

#endif
