/* store: the arrow from prep to the loaders, one file of decoded images in shared memory.
 *
 * Layout: header (4096 bytes), train images uint8 (N,H,W,C), train labels uint16, validation
 * images, validation labels; each section starts at a multiple of 4096.
 * Name: DIR/ddpipe.<uid>.<first 16 hex digits of digest>, mode 0600, DIR = /dev/shm by default.
 * It is created under a private name with its space reserved (posix_fallocate), and published by
 * rename: whole or not at all.
 *
 * Who removes it: `prep --remove`, or any later start of prep once its owner process is dead (pid
 * and start time in the header) and nobody holds it open (every reader holds a shared flock). */
#ifndef DDPIPE_STORE_H
#define DDPIPE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STORE_DIR "/dev/shm"
enum { STORE_VERSION = 1, STORE_CLASSES_MAX = 100, STORE_NAME_MAX = 24, STORE_PATCH = 12 };

struct store_geometry {
    uint32_t n_train, n_val;
    uint32_t c, h, w;
    uint32_t classes;
    char class_names[STORE_CLASSES_MAX][STORE_NAME_MAX];
};

struct store {
    struct store_geometry geometry;
    double mean[4], std[4]; /* per channel over the train images, pixels scaled to 0..1 */
    /* Raw moments of the 2×2 patches (ordered c, dy, dx) of the first 5,000 train images, scaled to
     * 0..1: E[p_i] and E[p_i p_j]. Zeros where C is not 3. Source: airbench94's whitening layer. */
    double patch_mean[STORE_PATCH];
    double patch_moment[STORE_PATCH][STORE_PATCH];
    char digest[65];        /* sha256 of geometry, images and labels: equal data, equal digest */
    char path[256];
    pid_t owner;
    /* Sections; writable between store_create and store_publish only. */
    uint8_t *train_images, *val_images;   /* (N,H,W,C) */
    uint16_t *train_labels, *val_labels;  /* (N) */
    /* private */
    void *map;
    size_t map_size;
    int fd;
    char private_path[256];
};

/* Reserves a store in dir and maps its sections for writing. SYSTEM_FAILED with the bytes needed
 * and free, and the hint --store-dir, where it does not fit. Sweeps stale stores first. */
int store_create(struct store **s, const char *dir, const struct store_geometry *geometry);

/* Seals it (mean, std and patch moments filled in by the caller, digest computed here over 2 threads
 * or more), renames it to its name; path is set. If a store of that name is published already, that
 * one is kept and ours dropped. The mapping becomes read-only. */
int store_publish(struct store *s, pid_t owner);

/* Opens a published store read-only and holds a shared flock on it. name: a path, or a bare name
 * in /dev/shm. BAD_INPUT for what is no store, another version, cut short, or not sealed. */
int store_open(struct store **s, const char *name);

/* Unmaps; removes the private file of a store never published. Clears the pointer. */
void store_close(struct store **s);

/* Removes a published store unless a reader other than the caller holds it (then it is left, with a
 * note). A missing one is no error. */
int store_remove(const char *name);

/* Removes the stale stores and half-made files of this user in dir. */
int store_sweep(const char *dir);

#endif
