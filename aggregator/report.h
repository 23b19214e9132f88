/* report: what people and later programs see of a run: one line an epoch on stdout, and the metrics
 * file, JSON, one object a line:
 *   "kind":"rank_epoch"  one rank's numbers of one epoch, with "rank"
 *   "kind":"epoch"       the numbers of all ranks together; what they mean: stats.h
 * A number that does not exist (validation of no image) is left out; one that is not finite is
 * null. Every line is in the file before the next record is read. */
#ifndef DDPIPE_AGGREGATOR_REPORT_H
#define DDPIPE_AGGREGATOR_REPORT_H

#include <jansson.h>

#include "aggregator/stats.h"

struct report;

/* metrics: path of a new file, or NULL for none. */
int report_open(struct report **r, const char *metrics);
/* Reports a file that could not be written whole. Clears the pointer. */
int report_close(struct report **r);

/* A line of the metrics file. */
int report_rank(struct report *r, uint32_t rank, const struct stats_summary *s);
/* A line of the metrics file, and one on stdout. */
int report_epoch(struct report *r, const struct stats_summary *s);

/* The last line on stdout: how the run ended, after this epoch (epoch 0: it had none). */
int report_end(enum metric_reason reason, const struct stats_summary *last);

/* The epoch line on stdout. */
int report_line(const struct stats_summary *s);

#endif
