/* rendezvous: who is there, who is missing, and do all agree. Over ZeroMQ at
 * MASTER_ADDR:MASTER_PORT, where rank 0 binds; no shared file system is needed.
 *
 * Every other rank sends JOIN {magic, version, rank, world_size, host, device, settings}. Rank 0
 * answers WELCOME when all are there, or REFUSE with one line of reason to all: a rank twice,
 * another world size, two ranks on one GPU, or a setting that differs, with both values. Ranks
 * missing after the timeout are named. Every rank ends with that line. */
#ifndef DDPIPE_RENDEZVOUS_H
#define DDPIPE_RENDEZVOUS_H

#include <stddef.h>

struct rendezvous;

struct rendezvous_options {
    int rank, world_size;
    const char *address; /* of rank 0, IPv4; rank 0 must have it */
    int port;
    const char *device; /* "cpu", which many ranks may share, or what names one GPU */
    double timeout_seconds;
    const char *settings; /* lines "name=value" that must be equal on all ranks */
};

/* Returns when all ranks have joined and agree. */
int rendezvous_open(struct rendezvous **r, const struct rendezvous_options *o);

/* A comm_exchange (comm.h); arg is the struct rendezvous. size ≤ 1 MiB. */
int rendezvous_exchange(void *arg, const void *mine, size_t size, void *all);

void rendezvous_close(struct rendezvous **r);

#endif
