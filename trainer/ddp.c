/* ddp.c: see ddp.h. */
#include "trainer/ddp.h"

int ddp_broadcast(struct comm *c, struct net *net) {
    int rc = comm_broadcast(c, net->weights, net->arena_count * sizeof(float), 0);
    return rc ? rc : ddp_broadcast_stats(c, net);
}

int ddp_broadcast_stats(struct comm *c, struct net *net) {
    return net->stat_floats ? comm_broadcast(c, net->stats, net->stat_floats * sizeof(float), 0)
                            : 0;
}

int ddp_sum_grads(struct comm *c, struct net *net) {
    return comm_sum_f32(c, net->grads, net->trained_count);
}
