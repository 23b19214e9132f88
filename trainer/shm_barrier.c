/* shm_barrier.c: see shm_barrier.h. The last to arrive starts the next round and wakes the others.
 */
#include "trainer/shm_barrier.h"
#include "lib/clock.h"
#include "lib/log.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SPINS = 200, LOOK_NS = 100000000 };

struct page {
    _Atomic uint32_t arrived, round;
};

struct shm_barrier {
    struct page *page;
    int fd; /* -1: not the process that made it */
    int world_size;
    struct pollfd *peers; /* pidfds by rank; -1: cannot be watched */
    double timeout_seconds;
};

static int map(struct shm_barrier **out, int fd) {
    struct shm_barrier *b = calloc(1, sizeof *b);
    void *page = b ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (page == MAP_FAILED) {
        free(b);
        return ENOMEM;
    }
    b->page = page;
    b->fd = -1;
    *out = b;
    return 0;
}

int shm_barrier_create(struct shm_barrier **out, int *fd) {
    *fd = memfd_create("ddpipe barrier", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, PAGE) < 0 || map(out, *fd) != 0) {
        int error = errno;
        if (*fd >= 0)
            close(*fd);
        return fail(SYSTEM_FAILED, "cannot make a page of shared memory: %s", strerror(error));
    }
    (*out)->fd = *fd;
    return 0;
}

int shm_barrier_open(struct shm_barrier **out, int64_t pid, int number) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)pid, number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = map(out, fd);
    close(fd);
    return error;
}

void shm_barrier_between(struct shm_barrier *b, const int64_t *pids, int world_size,
                         double timeout_seconds) {
    b->world_size = world_size;
    b->timeout_seconds = timeout_seconds;
    b->peers = calloc((size_t)world_size, sizeof *b->peers);
    for (int r = 0; r < world_size && b->peers; r++)
        b->peers[r] = (struct pollfd){.fd = pidfd_open((pid_t)pids[r], 0), .events = POLLIN};
}

static int look_at_peers(struct shm_barrier *b) {
    if (!b->peers || poll(b->peers, (nfds_t)b->world_size, 0) <= 0)
        return 0;
    for (int r = 0; r < b->world_size; r++)
        if (b->peers[r].fd >= 0 && b->peers[r].revents)
            return fail(SYSTEM_FAILED, "rank %d of this host has ended", r);
    return 0;
}

int shm_barrier_wait(struct shm_barrier *b) {
    struct page *page = b->page;
    uint32_t round = atomic_load(&page->round);
    if (atomic_fetch_add(&page->arrived, 1) + 1 == (uint32_t)b->world_size) {
        atomic_store(&page->arrived, 0);
        atomic_fetch_add(&page->round, 1);
        syscall(SYS_futex, &page->round, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        return 0;
    }
    for (int i = 0; i < SPINS; i++)
        if (atomic_load(&page->round) != round)
            return 0;
    int64_t end = clock_ns() + (int64_t)(b->timeout_seconds * 1e9);
    while (atomic_load(&page->round) == round) {
        const struct timespec look = {.tv_nsec = LOOK_NS};
        syscall(SYS_futex, &page->round, FUTEX_WAIT, round, &look, NULL, 0);
        if (atomic_load(&page->round) != round)
            break;
        if (look_at_peers(b))
            return SYSTEM_FAILED;
        if (clock_ns() >= end)
            return fail(SYSTEM_FAILED,
                        "%u of the %d ranks of this host came within %g s (--comm-timeout)",
                        (unsigned)atomic_load(&page->arrived), b->world_size, b->timeout_seconds);
    }
    return 0;
}

void shm_barrier_close(struct shm_barrier **out) {
    struct shm_barrier *b = *out;
    if (!b)
        return;
    for (int r = 0; r < b->world_size && b->peers; r++)
        if (b->peers[r].fd >= 0)
            close(b->peers[r].fd);
    free(b->peers);
    if (b->fd >= 0)
        close(b->fd);
    munmap(b->page, PAGE);
    free(b);
    *out = NULL;
}
