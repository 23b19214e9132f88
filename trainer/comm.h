/* comm: the contract of the collectives between all trainers. comm_gloo.cc keeps it on CPUs.
 *
 * Every call is made by all ranks in the same order, and has the deadline given at open: a peer
 * that died or hangs is an error (SYSTEM_FAILED, reported with the operation), after which the comm
 * can only be closed. With one rank every call returns at once. */
#ifndef DDPIPE_COMM_H
#define DDPIPE_COMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct comm;

/* Gathers size bytes of every rank into all (world_size·size bytes, by rank) on every rank: how the
 * ranks learn each other's addresses. Returns 0 or a reported failure. */
typedef int comm_exchange(void *arg, const void *mine, size_t size, void *all);

/* address: of the local interface that peers reach this rank by. */
int comm_open(struct comm **c, int rank, int world_size, const char *address,
              double timeout_seconds, comm_exchange *exchange, void *arg);

/* In place: every rank gets the sum over ranks, the same bits on every rank. */
int comm_sum_f32(struct comm *c, float *x, size_t count);
int comm_sum_f64(struct comm *c, double *x, size_t count);

/* Every rank gets root's bytes. */
int comm_broadcast(struct comm *c, void *bytes, size_t size, int root);

/* size bytes of every rank into all (world_size·size, by rank) on every rank. */
int comm_allgather(struct comm *c, const void *mine, size_t size, void *all);

/* count floats of every rank into all (world_size·count, by rank) on root; all is not used
 * elsewhere. */
int comm_gather_f32(struct comm *c, const float *x, float *all, size_t count, int root);

/* count floats of root's all (world_size·count, by rank) to every rank. */
int comm_scatter_f32(struct comm *c, const float *all, float *x, size_t count, int root);

int comm_barrier(struct comm *c);

int comm_rank(const struct comm *c);
int comm_world_size(const struct comm *c);
double comm_timeout_seconds(const struct comm *c);

void comm_close(struct comm **c);

#ifdef __cplusplus
}
#endif

#endif
