/* store_owner: the owners in a store's header. A pid alone may be a later process's, so it is kept
 * with the start time that the kernel gives in /proc/PID/stat; a pid whose start time differs is
 * dead. Owners are read and written through the file, not the mapping, which readers have
 * read-only. */
#include "lib/store_owner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/store_layout.h"

enum { TABLE_SIZE = STORE_OWNERS_AT + STORE_OWNERS_MAX * STORE_OWNER_SIZE };
static const double LOCK_SECONDS = 10.0;

/* 0 if there is no such process, or only a zombie of it. */
static uint64_t start_of(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    /* Field 2 is the program's name in parentheses, and may hold any character. */
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

int store_owner_of(pid_t pid, struct store_owner *owner) {
    owner->pid = pid;
    owner->start = start_of(pid);
    if (owner->start == 0)
        return fail(SYSTEM_FAILED, "process %d, which shall own the store, does not exist",
                    (int)pid);
    return 0;
}

bool store_owner_alive(const struct store_owner *owner) {
    return owner->pid > 0 && start_of(owner->pid) == owner->start;
}

/* Opens path and locks its owners. *fd stays -1, and nothing is reported, where the store is
 * gone. */
static int lock_owners(const char *path, int *fd) {
    *fd = -1;
    int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 && errno == ENOENT)
        return 0;
    if (file < 0)
        return fail(SYSTEM_FAILED, "cannot open %s: %s", path, strerror(errno));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int64_t deadline = clock_deadline(LOCK_SECONDS);
    /* The lock is held for microseconds, and F_SETLKW knows no deadline. */
    while (fcntl(file, F_SETLK, &lock) < 0) {
        if ((errno != EACCES && errno != EAGAIN) || clock_ms_left(deadline) == 0) {
            int r = fail(SYSTEM_FAILED, "cannot lock %s: %s", path, strerror(errno));
            close(file);
            return r;
        }
        poll(NULL, 0, 1);
    }
    struct stat locked, named;
    if (fstat(file, &locked) < 0 || lstat(path, &named) < 0 || locked.st_ino != named.st_ino) {
        close(file);
        return 0;
    }
    *fd = file;
    return 0;
}

/* false: the file is no store. */
static bool read_owners(int fd, struct store_owner owners[STORE_OWNERS_MAX]) {
    uint8_t bytes[TABLE_SIZE];
    if (pread(fd, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes ||
        memcmp(bytes, STORE_MAGIC, STORE_MAGIC_SIZE) != 0)
        return false;
    struct pack p = unpack_open(bytes, sizeof bytes);
    p.at = STORE_OWNERS_AT;
    for (int i = 0; i < STORE_OWNERS_MAX; i++) {
        owners[i].pid = (pid_t)unpack_u32(&p);
        owners[i].start = unpack_u64(&p);
    }
    return true;
}

static int write_owners(const char *path, int fd,
                        const struct store_owner owners[STORE_OWNERS_MAX]) {
    uint8_t bytes[TABLE_SIZE - STORE_OWNERS_AT];
    struct pack p = pack_open(bytes, sizeof bytes);
    for (int i = 0; i < STORE_OWNERS_MAX; i++) {
        pack_u32(&p, (uint32_t)owners[i].pid);
        pack_u64(&p, owners[i].start);
    }
    if (pwrite(fd, bytes, sizeof bytes, STORE_OWNERS_AT) != (ssize_t)sizeof bytes)
        return fail(SYSTEM_FAILED, "cannot write the owners of %s: %s", path, strerror(errno));
    return 0;
}

int store_owner_add(const char *path, const struct store_owner *owner, bool *gone) {
    int fd;
    int r = lock_owners(path, &fd);
    *gone = !r && fd < 0;
    if (r || *gone)
        return r;
    struct store_owner owners[STORE_OWNERS_MAX];
    int place = -1;
    if (!read_owners(fd, owners)) {
        r = fail(BAD_INPUT, "%s is in the way: it is no store, remove it", path);
        goto out;
    }
    for (int i = 0; i < STORE_OWNERS_MAX; i++) {
        if (owners[i].pid == owner->pid && owners[i].start == owner->start)
            goto out;
        if (place < 0 && !store_owner_alive(&owners[i]))
            place = i;
    }
    if (place < 0) {
        r = fail(SYSTEM_FAILED, "%s has %d living owners: no more fit", path, STORE_OWNERS_MAX);
        goto out;
    }
    owners[place] = *owner;
    r = write_owners(path, fd, owners);
out:
    close(fd);
    return r;
}

int store_owner_release(const char *path, pid_t leaving, bool force, bool *removed,
                        const char **why) {
    *removed = false;
    *why = NULL;
    int fd;
    int r = lock_owners(path, &fd);
    if (r || fd < 0)
        return r;
    struct store_owner owners[STORE_OWNERS_MAX];
    int living = 0;
    if (!read_owners(fd, owners)) {
        *why = "it is no store";
        goto out;
    }
    for (int i = 0; i < STORE_OWNERS_MAX; i++) {
        if (owners[i].pid == leaving || !store_owner_alive(&owners[i]))
            owners[i] = (struct store_owner){0};
        living += owners[i].pid != 0;
    }
    r = write_owners(path, fd, owners);
    if (r)
        goto out;
    *why = "another job uses it";
    if (living && !force)
        goto out;
    *why = "a reader holds it";
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        goto out;
    if (unlink(path) < 0)
        r = fail(SYSTEM_FAILED, "cannot remove %s: %s", path, strerror(errno));
    else
        *removed = true;
out:
    close(fd);
    return r;
}
