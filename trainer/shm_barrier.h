/* shm_barrier: a barrier between processes of one host, in a page of memory that they share. A rank
 * that waits sleeps in the kernel (futex(2)), so it takes no core from one that computes; it
 * notices a peer's death within 0.1 s. Nothing of it has a name, so nothing can be left behind. */
#ifndef DDPIPE_SHM_BARRIER_H
#define DDPIPE_SHM_BARRIER_H

#include <stdint.h>

struct shm_barrier;

/* Makes the page in one process. *fd is its number here, by which the others open it; it is open
 * until shm_barrier_close. */
int shm_barrier_create(struct shm_barrier **b, int *fd);

/* In the other processes. Returns 0 or errno, without a report. */
int shm_barrier_open(struct shm_barrier **b, int64_t pid, int fd);

/* pids[world_size], by rank, kept: whom to wait for. Both kinds of process, before the first wait.
 */
void shm_barrier_between(struct shm_barrier *b, const int64_t *pids, int world_size,
                         double timeout_seconds);

/* Returns when all have called it, or with SYSTEM_FAILED: a peer has ended, or the deadline has
 * passed. */
int shm_barrier_wait(struct shm_barrier *b);

void shm_barrier_close(struct shm_barrier **b);

#endif
