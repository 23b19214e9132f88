/* store: makes, publishes, opens and closes the file of decoded images in shared memory.
 *
 * Two kinds of lock guard its name. Who makes or reads a store holds a shared flock on it, so an
 * exclusive flock is the proof that nobody does, and is taken only by who removes it right after.
 * The owners in the header have a lock of their own (store_owner). */
#include "lib/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/stop.h"
#include "lib/store_digest.h"
#include "lib/store_layout.h"
#include "lib/store_owner.h"

enum { DIGITS = 16 }; /* of the digest, in the name */

static int too_big(const char *dir, uint64_t needed) {
    struct statvfs fs;
    uint64_t free_bytes = 0;
    if (statvfs(dir, &fs) == 0)
        free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return fail(SYSTEM_FAILED,
                "%s: the store needs %llu bytes, %llu are free: choose another folder "
                "with --store-dir, or enlarge this one",
                dir, (unsigned long long)needed, (unsigned long long)free_bytes);
}

/* Asking first spares the system from filling its memory to the brim for nothing; only the
 * reservation itself makes sure that no later write can end in SIGBUS. */
static int reserve(const char *dir, int fd, uint64_t size) {
    struct statvfs fs;
    if (statvfs(dir, &fs) < 0)
        return fail(SYSTEM_FAILED, "cannot ask for the space in %s: %s", dir, strerror(errno));
    if ((uint64_t)fs.f_bavail * fs.f_frsize < size)
        return too_big(dir, size);
    int error;
    do
        error = posix_fallocate(fd, 0, (off_t)size);
    while (error == EINTR && !stop_requested());
    if (error == ENOSPC || error == EFBIG)
        return too_big(dir, size);
    if (error)
        return fail(SYSTEM_FAILED, "cannot reserve %llu bytes in %s: %s", (unsigned long long)size,
                    dir, strerror(error));
    return 0;
}

/* A new private file with its shared flock held. */
static int create_private(struct store *s, const char *dir) {
    for (;;) {
        int length = snprintf(s->private_path, sizeof s->private_path, "%s/ddpipe.%u.new.XXXXXX",
                              dir, (unsigned)getuid());
        if (length < 0 || (size_t)length >= sizeof s->private_path) {
            s->private_path[0] = '\0';
            return fail(BAD_USAGE, "%s: the name of the store's folder is too long", dir);
        }
        s->fd = mkostemp(s->private_path, O_CLOEXEC);
        if (s->fd < 0) {
            s->private_path[0] = '\0';
            return fail(SYSTEM_FAILED, "cannot create a file in %s: %s", dir, strerror(errno));
        }
        struct stat st;
        if (flock(s->fd, LOCK_SH | LOCK_NB) == 0 && fstat(s->fd, &st) == 0 && st.st_nlink > 0)
            return 0;
        /* Swept between its creation and its lock. */
        close(s->fd);
        s->fd = -1;
        unlink(s->private_path);
    }
}

static int map_file(struct store *s, int protection) {
    s->map = mmap(NULL, s->map_size, protection, MAP_SHARED, s->fd, 0);
    if (s->map == MAP_FAILED) {
        s->map = NULL;
        return fail(SYSTEM_FAILED, "cannot map %zu bytes of %s: %s", s->map_size,
                    s->path[0] ? s->path : s->private_path, strerror(errno));
    }
    return 0;
}

int store_create(struct store **out, const char *dir, const struct store_geometry *geometry) {
    *out = NULL;
    int r = store_layout_check(geometry, "a store");
    if (!r)
        r = store_sweep(dir);
    if (r)
        return r;
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return fail(SYSTEM_FAILED, "out of memory");
    s->fd = -1;
    s->geometry = *geometry;
    s->map_size = store_layout(geometry).size;
    r = create_private(s, dir);
    if (!r)
        r = reserve(dir, s->fd, s->map_size);
    if (!r)
        r = map_file(s, PROT_READ | PROT_WRITE);
    if (r) {
        store_close(&s);
        return r;
    }
    store_layout_map(s);
    *out = s;
    return 0;
}

/* Drops ours for the store that is published as path already. *gone: that one was removed. */
static int keep_published(struct store *s, const char *path, const struct store_owner *owner,
                          bool *gone) {
    int r = store_owner_add(path, owner, gone);
    if (r || *gone)
        return r;
    struct store *published;
    r = store_open(&published, path);
    if (r)
        return r;
    if (strcmp(published->digest, s->digest) != 0) {
        r = fail(BAD_INPUT, "%s is in the way: its digest is %s, not %s", path, published->digest,
                 s->digest);
        store_close(&published);
        return r;
    }
    struct store ours = *s;
    *s = *published;
    *published = ours;
    store_close(&published);
    return 0;
}

static int link_or_keep(struct store *s, const char *path, const struct store_owner *owner) {
    for (;;) {
        if (link(s->private_path, path) == 0) {
            unlink(s->private_path);
            s->private_path[0] = '\0';
            snprintf(s->path, sizeof s->path, "%s", path);
            return 0;
        }
        if (errno != EEXIST)
            return fail(SYSTEM_FAILED, "cannot publish %s: %s", path, strerror(errno));
        bool gone;
        int r = keep_published(s, path, owner, &gone);
        if (r || !gone)
            return r;
    }
}

int store_publish(struct store *s, pid_t owner) {
    int r = store_owner_of(owner, &s->owners[0]);
    if (!r)
        r = store_digest_compute(s);
    if (!r)
        r = store_layout_write_header(s);
    if (r)
        return r;
    if (fsync(s->fd) < 0 || mprotect(s->map, s->map_size, PROT_READ) < 0)
        return fail(SYSTEM_FAILED, "cannot seal %s: %s", s->private_path, strerror(errno));
    char path[sizeof s->path];
    int folder = (int)(strrchr(s->private_path, '/') - s->private_path);
    snprintf(path, sizeof path, "%.*s/ddpipe.%u.%.*s", folder, s->private_path, (unsigned)getuid(),
             DIGITS, s->digest);
    struct store_owner first = s->owners[0];
    return link_or_keep(s, path, &first);
}

static int path_of(char path[256], const char *name) {
    int length = strchr(name, '/') ? snprintf(path, 256, "%s", name)
                                   : snprintf(path, 256, "%s/%s", STORE_DIR, name);
    if (length < 0 || length >= 256)
        return fail(BAD_USAGE, "%s: the store's name is too long", name);
    return 0;
}

static int open_file(struct store *s, uint64_t *size) {
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        return fail(BAD_INPUT, "cannot open the store %s: %s", s->path, strerror(errno));
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        return fail(SYSTEM_FAILED, "cannot look at %s: %s", s->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < STORE_HEADER_SIZE)
        return fail(BAD_INPUT, "%s: no store: %s", s->path,
                    S_ISREG(st.st_mode) ? "shorter than the header of one" : "not a plain file");
    if (flock(s->fd, LOCK_SH | LOCK_NB) < 0 || fstat(s->fd, &st) < 0 || st.st_nlink == 0)
        return fail(BAD_INPUT, "%s: the store is just being removed", s->path);
    *size = (uint64_t)st.st_size;
    s->map_size = (size_t)st.st_size;
    return 0;
}

int store_open(struct store **out, const char *name) {
    *out = NULL;
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return fail(SYSTEM_FAILED, "out of memory");
    s->fd = -1;
    uint64_t size = 0;
    int r = path_of(s->path, name);
    if (!r)
        r = open_file(s, &size);
    if (!r)
        r = map_file(s, PROT_READ);
    if (!r)
        r = store_layout_read_header(s, size);
    if (r) {
        store_close(&s);
        return r;
    }
    store_layout_map(s);
    *out = s;
    return 0;
}

void store_close(struct store **store) {
    struct store *s = *store;
    if (!s)
        return;
    if (s->private_path[0])
        unlink(s->private_path);
    if (s->map)
        munmap(s->map, s->map_size);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
    *store = NULL;
}

int store_remove(const char *name, pid_t owner) {
    char path[256];
    bool removed;
    const char *why;
    int r = path_of(path, name);
    if (!r)
        r = store_owner_release(path, owner, owner == 0, &removed, &why);
    if (!r && !removed && why)
        log_note("%s is left: %s", path, why);
    return r;
}
