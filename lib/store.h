/* store: the arrow from prep to the loaders, one file of decoded images in shared memory.
 *
 * Layout: header (8192 bytes), train images uint8 (N,H,W,C), train labels uint16 little-endian,
 * validation images, validation labels; each section starts at a multiple of 4096.
 * Name: DIR/ddpipe.<uid>.<first 16 hex digits of digest>, mode 0600, DIR = /dev/shm by default.
 * It is created under a private name (ddpipe.<uid>.new.XXXXXX) with its space reserved
 * (posix_fallocate), and published by link(), which never replaces: whole or not at all.
 *
 * Who removes it: owners are processes (pid and start time in the header), one per job that uses
 * the store. It goes with `prep --remove`, or at any later start of prep once every owner is dead
 * and nobody holds it open (every reader holds a shared flock; so does who makes one). */
#ifndef DDPIPE_STORE_H
#define DDPIPE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STORE_DIR "/dev/shm"
enum {
    STORE_VERSION = 1,
    STORE_CLASSES_MAX = 100,
    STORE_NAME_MAX = 24,
    STORE_PATCH = 12,
    STORE_PATCH_IMAGES = 5000,
    STORE_CHANNELS_MAX = 4,
    STORE_SIDE_MAX = 16384,
    STORE_OWNERS_MAX = 32,
    STORE_HEADER_SIZE = 8192,
};

struct store_geometry {
    uint32_t n_train, n_val;
    uint32_t c, h, w;
    uint32_t classes;
    char class_names[STORE_CLASSES_MAX][STORE_NAME_MAX];
};

struct store_owner {
    pid_t pid;      /* 0: a free place */
    uint64_t start; /* of the process, field 22 of /proc/PID/stat: tells it from a later one */
};

struct store {
    struct store_geometry geometry;
    double mean[4], std[4]; /* per channel over the train images, pixels scaled to 0..1 */
    /* Raw moments of the 2×2 patches (ordered c, dy, dx) of the first 5,000 train images, scaled to
     * 0..1: E[p_i] and E[p_i p_j]. Zeros where C is not 3. Source: airbench94's whitening layer. */
    double patch_mean[STORE_PATCH];
    double patch_moment[STORE_PATCH][STORE_PATCH];
    /* Equal geometry, class names, images and labels: equal digest. sha256 over "ddpipe-store 1\n",
     * the packed geometry and names, and the sha256 (in hexadecimal) of every 8 MiB of each section
     * in the layout's order (a section's last piece is shorter): pieces are hashed in parallel. */
    char digest[65];
    char path[256];
    struct store_owner owners[STORE_OWNERS_MAX]; /* as they were at open */
    /* Sections; writable between store_create and store_publish only. */
    uint8_t *train_images, *val_images;  /* (N,H,W,C) */
    uint16_t *train_labels, *val_labels; /* (N) */
    /* private */
    void *map;
    size_t map_size;
    int fd;
    char private_path[256];
};

/* Reserves a store in dir and maps its sections for writing. SYSTEM_FAILED with the bytes needed
 * and free, and the hint --store-dir, where it does not fit. Sweeps stale stores first. */
int store_create(struct store **s, const char *dir, const struct store_geometry *geometry);

/* Seals it (mean, std and patch moments filled in by the caller, digest computed here over 2
 * threads or more), gives it its name and its first owner; path is set. If a store of that name is
 * published already, that one is kept, owner is added to it, and ours is dropped. The mapping
 * becomes read-only. */
int store_publish(struct store *s, pid_t owner);

/* Opens a published store read-only and holds a shared flock on it. name: a path, or a bare name
 * in /dev/shm. BAD_INPUT for what is no store, another version, cut short, or not sealed. */
int store_open(struct store **s, const char *name);

/* Unmaps; removes the private file of a store never published. Clears the pointer. */
void store_close(struct store **s);

/* owner > 0: that process needs the store no more, and it is removed unless another living owner
 * does. owner 0: removed whoever owns it. In either case it is left, with a note, while a reader
 * holds it. A missing store is no error. */
int store_remove(const char *name, pid_t owner);

/* Removes the stale stores and half-made files of this user in dir. */
int store_sweep(const char *dir);

/* Is the process that the owner stands for still there? */
bool store_owner_alive(const struct store_owner *owner);

#endif
