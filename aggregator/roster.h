/* roster: which ranks are there, which are done, and which owe a word. */
#ifndef DDPIPE_AGGREGATOR_ROSTER_H
#define DDPIPE_AGGREGATOR_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/metric.h"

struct roster;

/* Time runs from here: a rank must say HELLO within timeout_seconds. */
int roster_open(struct roster **r, uint32_t world_size, double timeout_seconds);
void roster_close(struct roster **r);

/* Notes a record at the time it came (clock_ns). BAD_INPUT, naming the rank, for another world
 * size, a rank outside the world, a second HELLO, a record before HELLO (BYE excepted: a rank may
 * fail early) or after BYE. */
int roster_hear(struct roster *r, const struct metric *m, int64_t now_ns);

/* When the next rank falls silent (clock_ns), if nothing more is heard. A rank is silent that owes
 * a record which another rank has sent timeout_seconds ago, or when no rank has said anything for
 * as long: ranks other than 0 speak only at the end of a phase. */
int64_t roster_deadline(const struct roster *r);

/* Writes "0, 3" into text: the ranks silent at that time. False: there are none. */
bool roster_silent(const struct roster *r, int64_t now_ns, char *text, size_t size);

/* The same for the ranks that have not said BYE, and that said BYE with METRIC_FAILED. */
bool roster_unfinished(const struct roster *r, char *text, size_t size);
bool roster_failed(const struct roster *r, char *text, size_t size);

/* How many ranks said BYE; the reason of rank 0's. */
uint32_t roster_done(const struct roster *r);
enum metric_reason roster_reason(const struct roster *r);

#endif
