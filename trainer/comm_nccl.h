/* comm_nccl: collectives between GPUs, as work on a stream. A call returns when the work is
 * enqueued. Failures are reported (SYSTEM_FAILED); afterwards only close is left. */
#ifndef DDPIPE_COMM_NCCL_H
#define DDPIPE_COMM_NCCL_H

#include "trainer/backend.h"

struct comm_nccl;
struct CUstream_st; /* a cudaStream_t points to it */

/* Every rank calls it, with its own GPU current. Waits for all ranks, at most the timeout. */
int comm_nccl_open(struct comm_nccl **c, const struct backend_ranks *ranks);

/* In place, over ranks; the same bits on every rank. */
int comm_nccl_sum_f32(struct comm_nccl *c, float *x, size_t count, struct CUstream_st *stream);
int comm_nccl_sum_f64(struct comm_nccl *c, double *x, size_t count, struct CUstream_st *stream);
/* On root alone; x stays as it is elsewhere. */
int comm_nccl_reduce_f64(struct comm_nccl *c, double *x, size_t count, int root,
                         struct CUstream_st *stream);
/* backend_collectives' */
int comm_nccl_broadcast(struct comm_nccl *c, float *x, size_t count, int root,
                        struct CUstream_st *stream);
int comm_nccl_gather(struct comm_nccl *c, const float *x, float *all, size_t count, int root,
                     struct CUstream_st *stream);
int comm_nccl_scatter(struct comm_nccl *c, const float *all, float *x, size_t count, int root,
                      struct CUstream_st *stream);

/* Has another rank failed meanwhile? Then all work is aborted and the failure reported. */
int comm_nccl_check(struct comm_nccl *c);

/* Stops work that hangs. */
void comm_nccl_abort(struct comm_nccl *c);

void comm_nccl_close(struct comm_nccl **c);

#endif
