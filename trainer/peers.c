/* peers.c: see peers.h. A barrier stands before every reading (the values are there) and after it
 * (they may change again). */
#include "trainer/peers.h"
#include "lib/log.h"
#include "trainer/shm_barrier.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK = 32768 /* floats: stays in a core's cache */ };

struct card { /* what a rank tells the others; no byte of it is padding */
    char boot[40];
    uint64_t namespace, x, token, token_at;
    int64_t pid, barrier_fd; /* the latter: of rank 0 */
};

struct peers {
    struct comm *comm;
    int rank, world;
    float *x;
    size_t count;
    uint64_t token; /* random: who reads it has found this rank */
    struct card *cards;
    struct shm_barrier *barrier;
    float chunk[CHUNK];
};

static bool same_host(const struct card *a, const struct card *b) {
    return !memcmp(a->boot, b->boot, sizeof a->boot) && a->namespace == b->namespace;
}

static void fill(struct card *c, struct peers *p) {
    struct stat st;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f && !fgets(c->boot, sizeof c->boot, f))
        c->boot[0] = '\0';
    if (f)
        fclose(f);
    if (stat("/proc/self/ns/pid", &st) == 0)
        c->namespace = st.st_ino;
    if (getrandom(&p->token, sizeof p->token, 0) < 0)
        p->token = (uint64_t)getpid();
    c->pid = getpid();
    c->x = (uint64_t)(uintptr_t)p->x;
    c->token = p->token;
    c->token_at = (uint64_t)(uintptr_t)&p->token;
}

/* Returns 0 or errno. */
static int copy_from(int64_t pid, uint64_t from, void *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct iovec here = {(char *)into + done, bytes - done};
        struct iovec there = {(void *)(uintptr_t)(from + done), bytes - done};
        ssize_t n = process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return n < 0 ? errno : EIO;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int read_peer(struct peers *p, int rank, size_t begin, size_t count, float *into) {
    const struct card *c = &p->cards[rank];
    int error = copy_from(c->pid, c->x + begin * sizeof(float), into, count * sizeof(float));
    return error ? fail(SYSTEM_FAILED, "cannot read the gradients of rank %d (process %d): %s",
                        rank, (int)c->pid, strerror(error))
                 : 0;
}

/* Reads every rank's token and opens the barrier: 0, or errno of what cannot be done. */
static int try_all(struct peers *p) {
    const struct card *root = &p->cards[0];
    int error = p->rank == 0 ? 0 : shm_barrier_open(&p->barrier, root->pid, (int)root->barrier_fd);
    for (int r = 0; r < p->world && !error; r++) {
        uint64_t token = 0;
        error = copy_from(p->cards[r].pid, p->cards[r].token_at, &token, sizeof token);
        if (!error && token != p->cards[r].token)
            error = ESRCH;
    }
    return error;
}

/* *usable: every rank is on this host and can read all. */
static int meet(struct peers *p, bool *usable) {
    struct card mine = {0};
    int fd = -1, rc = p->rank == 0 ? shm_barrier_create(&p->barrier, &fd) : 0;
    fill(&mine, p);
    mine.barrier_fd = fd;
    rc = rc ? rc : comm_allgather(p->comm, &mine, sizeof mine, p->cards);
    if (rc)
        return rc;
    *usable = true;
    for (int r = 0; r < p->world; r++)
        *usable = *usable && same_host(&p->cards[r], &p->cards[0]);
    if (!*usable)
        return 0;
    int errors[p->world], error = try_all(p);
    rc = comm_allgather(p->comm, &error, sizeof error, errors);
    for (int r = 0; r < p->world && !rc && *usable; r++)
        if (errors[r]) {
            *usable = false;
            log_note(
                "rank %d cannot read the memory of another rank of this host (%s): gradients go "
                "through TCP, which is slower",
                r, strerror(errors[r]));
        }
    return rc;
}

int peers_open(struct peers **out, struct comm *comm, float *x, size_t count) {
    *out = NULL;
    struct peers *p = calloc(1, sizeof *p);
    if (!p)
        return fail(SYSTEM_FAILED, "out of memory");
    p->comm = comm;
    p->rank = comm_rank(comm);
    p->world = comm_world_size(comm);
    p->x = x;
    p->count = count;
    p->cards = calloc((size_t)p->world, sizeof *p->cards);
    bool usable = false;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* an error: there is no Yama to tell */
    int rc = p->cards ? meet(p, &usable) : fail(SYSTEM_FAILED, "out of memory");
    if (!rc && usable) {
        int64_t pids[p->world];
        for (int r = 0; r < p->world; r++)
            pids[r] = p->cards[r].pid;
        shm_barrier_between(p->barrier, pids, p->world, comm_timeout_seconds(comm));
    } else
        peers_close(&p);
    *out = p;
    return rc;
}

/* The part of [begin, end) that rank adds up: whole lines of the cache. */
static size_t share(const struct peers *p, size_t begin, size_t end, int rank) {
    size_t lines = (end - begin + 15) / 16, at = lines * (size_t)rank / (size_t)p->world * 16;
    return at < end - begin ? begin + at : end;
}

static int add_peer(struct peers *p, int rank, size_t begin, size_t end) {
    int rc = 0;
    for (size_t i = begin; i < end && !rc; i += CHUNK) {
        size_t n = end - i < CHUNK ? end - i : CHUNK;
        float *x = p->x + i;
        rc = read_peer(p, rank, i, n, p->chunk);
#pragma omp simd
        for (size_t k = 0; k < n; k++)
            x[k] += p->chunk[k];
    }
    return rc;
}

int peers_sum(struct peers *p, size_t begin, size_t end) {
    size_t mine = share(p, begin, end, p->rank), mine_end = share(p, begin, end, p->rank + 1);
    int rc = shm_barrier_wait(p->barrier);
    for (int r = 0; r < p->world && !rc; r++)
        if (r != p->rank)
            rc = add_peer(p, r, mine, mine_end);
    rc = rc ? rc : shm_barrier_wait(p->barrier);
    for (int r = 0; r < p->world && !rc; r++) {
        size_t from = share(p, begin, end, r), to = share(p, begin, end, r + 1);
        if (r != p->rank && from < to)
            rc = read_peer(p, r, from, to - from, p->x + from);
    }
    return rc ? rc : shm_barrier_wait(p->barrier);
}

int peers_gather(struct peers *p, float *all, size_t begin, size_t count, int root) {
    int rc = shm_barrier_wait(p->barrier);
    for (int r = 0; r < p->world && !rc && p->rank == root; r++) {
        float *into = all + (size_t)r * count;
        if (r == root)
            memcpy(into, p->x + begin, count * sizeof(float));
        else
            rc = read_peer(p, r, begin, count, into);
    }
    return rc ? rc : shm_barrier_wait(p->barrier);
}

int peers_take(struct peers *p, size_t begin, size_t end, int root) {
    int rc = shm_barrier_wait(p->barrier);
    if (!rc && p->rank != root)
        rc = read_peer(p, root, begin, end - begin, p->x + begin);
    return rc ? rc : shm_barrier_wait(p->barrier);
}

void peers_close(struct peers **out) {
    struct peers *p = *out;
    if (!p)
        return;
    shm_barrier_close(&p->barrier);
    free(p->cards);
    free(p);
    *out = NULL;
}
