/* cores: which of the node's cores this rank computes on, and which its communication gets. */
#ifndef DDPIPE_CORES_H
#define DDPIPE_CORES_H

#include "trainer/identity.h"
#include <sched.h>

/* Threads for this rank: the cores that this process may use, shared with the ranks of its node
 * unless they are its own (a Slurm task that is one rank: then at most SLURM_CPUS_PER_TASK). At
 * least 1. */
int cores_threads(const struct identity *me);

/* Where the ranks of this node leave cores over, each with `threads` threads: keeps this thread,
 * and those it starts, off the cores left over, and puts one of them into *spare. False: none is
 * left over, and nothing is changed. */
bool cores_spare(const struct identity *me, int threads, cpu_set_t *spare);

#endif
