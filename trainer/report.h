/* report: this rank's records to the aggregator (metric.h), and a line an epoch on stderr. */
#ifndef DDPIPE_REPORT_H
#define DDPIPE_REPORT_H

#include "lib/metric.h"

struct report;

/* endpoint NULL: no aggregator, the lines on stderr are all there is. */
int report_open(struct report **r, const char *endpoint, int rank, int world_size, int64_t epochs,
                double timeout_seconds);

/* Fills in rank, world size and epochs, and sends. PROGRESS is sent by rank 0 alone and at most
 * four times a second. */
int report_send(struct report *r, struct metric *m);

/* Sends BYE, waits until it is out. Clears the pointer. */
int report_close(struct report **r, enum metric_reason reason);

#endif
