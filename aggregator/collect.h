/* collect: takes every rank's records from HELLO to BYE and reports each epoch when it is complete.
 */
#ifndef DDPIPE_AGGREGATOR_COLLECT_H
#define DDPIPE_AGGREGATOR_COLLECT_H

#include <stdint.h>

#include "aggregator/report.h"
#include "lib/sock.h"

/* Returns 0 once all ranks said BYE without failure. BAD_INPUT for a record that is damaged or does
 * not belong to this run; SYSTEM_FAILED, naming the ranks, where some failed, left without BYE, or
 * were silent for timeout_seconds (see roster.h). */
int collect_run(struct sock *in, struct report *out, uint32_t world_size, double timeout_seconds);

#endif
