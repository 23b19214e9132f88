/* stats: the ranks' records of each epoch, and the sums over them.
 *
 * Every reported number, over the ranks r of a summary:
 *   loss, accuracy   Σ loss_sum / Σ count, Σ correct / Σ count: a mean over images, divided once
 *   images_per_sec   Σ (images_r / training seconds_r)
 *   epoch_time       max training seconds_r
 *   cumulative_time  max seconds since training began on r, at the end of this epoch's validation
 *   val_seconds      max validation seconds_r
 *   wait, compute, comm  mean over ranks, parts of the training seconds
 *   hidden               mean over ranks, communication while computing: beside them
 *   seconds_per_iteration  max over ranks of the mean of iterations 2 to 40
 * Counts and losses are summed here from the ranks' own records; what the ranks reduced among
 * themselves, by another way, must be the same.
 * A summary of one rank is the same over that rank alone. */
#ifndef DDPIPE_AGGREGATOR_STATS_H
#define DDPIPE_AGGREGATOR_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/metric.h"

struct stats_summary {
    uint32_t epoch;
    uint64_t images;                 /* trained on */
    uint64_t train_count, val_count; /* images behind loss and accuracy; 0: those mean nothing */
    double cumulative_time, epoch_time, images_per_sec, val_seconds;
    double train_loss, train_accuracy, val_loss, val_accuracy;
    double learning_rate;
    double wait, compute, comm, hidden, seconds_per_iteration;
};

struct stats;

/* world_size ≥ 1. */
int stats_open(struct stats **s, uint32_t world_size);
void stats_close(struct stats **s);

/* Takes a METRIC_EPOCH or METRIC_TOTAL record. BAD_INPUT, naming the rank, for a second record of
 * the same rank, epoch and phase, and for an epoch that is reported already or far ahead of the
 * slowest rank. */
int stats_add(struct stats *s, const struct metric *m);

/* Is the next epoch in order complete: every rank's training and validation records in, and the
 * totals? With `ended` (no more records will come) those of training are enough. */
bool stats_ready(const struct stats *s, bool ended);

/* Of the epoch that is ready: do the sums over the records equal the totals? Counts exactly, losses
 * but for the order of additions. BAD_INPUT names the epoch, phase and both values. */
int stats_check(const struct stats *s);

/* Of the epoch that is ready: the summary of one rank, and of all. */
struct stats_summary stats_of_rank(const struct stats *s, uint32_t rank);
struct stats_summary stats_of_all(const struct stats *s);

/* Done with the epoch that is ready: on to the next. */
void stats_next(struct stats *s);

#endif
