/* ddp: keeps the ranks' replicas of a net equal, by one of three strategies.
 *
 * DDP: the gradient arena, which is laid out in backward order, is cut into buckets; a thread
 * reduces each in place as soon as backward has filled it, while backward goes on (Li et al.,
 * "PyTorch Distributed", VLDB 2020, section 3.2). ALLREDUCE: after backward, one all-reduce per
 * parameter tensor. GATHER_SCATTER: after backward, per parameter tensor: rank 0 gathers all ranks'
 * gradients, adds them up and scatters the sum. All leave the sum over ranks in net->grads: the
 * same numbers but for the order of additions, and the same bits on every rank. The optimizer's
 * scale divides by the world size. */
#ifndef DDPIPE_DDP_H
#define DDPIPE_DDP_H

#include "trainer/comm.h"
#include "trainer/net.h"
#include <sched.h>

enum ddp_sync { DDP_DDP, DDP_ALLREDUCE, DDP_GATHER_SCATTER };

struct ddp;

struct ddp_options {
    enum ddp_sync sync;
    size_t first_bucket_bytes, bucket_bytes; /* DDP: at least so much is reduced at once */
    const cpu_set_t *cores;                  /* DDP: of the thread; NULL: any */
    bool accumulate;                         /* ddp_accumulate will be called */
    bool by_memory; /* ranks of one host read each other's gradients (peers.h), where they can */
};

/* comm and net are the caller's, and outlive it. */
int ddp_open(struct ddp **d, struct comm *comm, struct net *net, const struct ddp_options *options);

/* Every rank gets rank 0's weights and running statistics, as
 * torch.nn.parallel.DistributedDataParallel does when it is constructed. */
int ddp_broadcast(struct ddp *d);

/* Every rank gets rank 0's running statistics: before validation, so that all ranks judge by the
 * same ones. */
int ddp_broadcast_stats(struct ddp *d);

/* After the backward pass of an inner step of gradient accumulation: keeps net->grads, to be added
 * to those of the passes to come. Nothing is communicated. */
void ddp_accumulate(struct ddp *d);

/* For net_backward of a step that will be finished: arg is the struct ddp. */
void ddp_ready(void *arg, size_t end);

/* After net_backward, with ddp_ready (or after ddp_accumulate, where no pass is to come): returns
 * when net->grads is the sum over ranks, and over passes since the last finish. *busy_ns grows by
 * the time spent in collectives, *exposed_ns by the part of it that this call waited for: the rest
 * ran while backward did. */
int ddp_finish(struct ddp *d, int64_t *busy_ns, int64_t *exposed_ns);

void ddp_close(struct ddp **d);

#endif
