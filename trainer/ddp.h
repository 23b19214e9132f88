/* ddp: keeps the ranks' replicas of a net equal. */
#ifndef DDPIPE_DDP_H
#define DDPIPE_DDP_H

#include "trainer/comm.h"
#include "trainer/net.h"

/* Every rank gets rank 0's weights and running statistics, as
 * torch.nn.parallel.DistributedDataParallel does when it is constructed. */
int ddp_broadcast(struct comm *c, struct net *net);

/* Every rank gets rank 0's running statistics: before validation, so that all ranks judge by the
 * same ones. */
int ddp_broadcast_stats(struct comm *c, struct net *net);

/* net->grads becomes the sum over ranks, by one all-reduce over the trained part of the arena; the
 * optimizer's scale divides it by the world size. */
int ddp_sum_grads(struct comm *c, struct net *net);

#endif
