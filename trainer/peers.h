/* peers: the ranks of one host read each other's gradients where they lie: process_vm_readv(2),
 * what MPI libraries call cross-memory attach. No socket and no buffer between, so that a sum over
 * ranks costs one pass over the gradients: each rank adds up its share of them, then reads the
 * others' shares.
 *
 * Where it can be had depends on the system: the same user and process namespace, and no rule
 * against it (Yama is told to allow it for this process; it allows the same user only, then as
 * without Yama). */
#ifndef DDPIPE_PEERS_H
#define DDPIPE_PEERS_H

#include "trainer/comm.h"

struct peers;

/* Every rank calls it, with its own x of count floats, of the same meaning on all ranks. *p is NULL
 * afterwards on every rank where the ranks are on several hosts, or where one cannot read another;
 * the latter is said. comm is the caller's and outlives it; the calls below use its barrier, and
 * have its deadlines and errors. */
int peers_open(struct peers **p, struct comm *comm, float *x, size_t count);

/* Every rank's x[begin, end) becomes the sum over ranks, the same bits on every rank. Every rank
 * calls it. */
int peers_sum(struct peers *p, size_t begin, size_t end);

/* count floats at begin of every rank into all (world_size·count, by rank) on root. Every rank
 * calls it. */
int peers_gather(struct peers *p, float *all, size_t begin, size_t count, int root);

/* Every rank's x[begin, end) becomes root's. Every rank calls it. */
int peers_take(struct peers *p, size_t begin, size_t end, int root);

void peers_close(struct peers **p);

#endif
