/* replicas: are the ranks' nets the same? Every tensor has a digest of its plain values (SHA-256,
 * 16 hexadecimal digits of it); the ranks exchange theirs and compare. */
#ifndef DDPIPE_REPLICAS_H
#define DDPIPE_REPLICAS_H

#include "trainer/comm.h"
#include "trainer/net.h"

enum { REPLICAS_DIGEST_SIZE = 17 };

/* Parameters and running statistics. BAD_INPUT names a rank that has other values than most, and
 * the first tensor. digest: of all tensors together. */
int replicas_check(struct comm *comm, struct net *net, char digest[REPLICAS_DIGEST_SIZE]);

/* Do the arenas mean the same on every rank? Collectives add them up as they lie in memory, and
 * oneDNN chooses the order of weights by the processor's instructions. BAD_USAGE names a rank. */
int replicas_check_layout(struct comm *comm, struct net *net);

#endif
