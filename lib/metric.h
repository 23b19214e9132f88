/* metric: the arrow from every trainer to the aggregator (PUSH to PULL). Packed by pack.h:
 * magic "DDPM", version, kind, length, fields. An unknown version, kind or wrong length is refused.
 */
#ifndef DDPIPE_METRIC_H
#define DDPIPE_METRIC_H

#include <stddef.h>
#include <stdint.h>

enum { METRIC_VERSION = 2, METRIC_SIZE_MAX = 512 };

enum metric_kind {
    METRIC_HELLO = 1, /* a rank is there: rank, world_size, epochs, steps per epoch, host */
    METRIC_PROGRESS,  /* rank 0, at most a few times a second */
    METRIC_EPOCH,     /* one per rank, epoch and phase */
    METRIC_BYE,       /* a rank is done: reason */
    METRIC_TOTAL, /* rank 0, per epoch and phase, after its EPOCH: count, correct and loss_sum as
                     the ranks reduced them among themselves, to decide by */
};
enum metric_phase { METRIC_TRAIN = 0, METRIC_VAL = 1 };
enum metric_reason {
    METRIC_TARGET = 0, /* the stop rule was met */
    METRIC_LIMIT = 1,  /* --epochs or --max-steps reached, a target was set and not met */
    METRIC_DONE = 2,   /* --epochs or --max-steps reached, no target was set */
    METRIC_FAILED = 3,
};

struct metric {
    enum metric_kind kind;
    uint32_t rank, world_size;
    uint32_t epoch, epochs; /* epoch from 1; epochs: the limit */
    uint32_t step, steps;   /* PROGRESS, HELLO: in this epoch */
    enum metric_phase phase;
    enum metric_reason reason; /* BYE */
    uint64_t images;           /* processed by this rank in this phase (or since the epoch began) */
    double seconds;            /* that took this rank: from the phase's first wait to its end */
    double start_seconds;      /* since training began on this rank, at the end of this phase */
    double loss_sum;           /* over this rank's images */
    uint64_t correct, count;   /* of this rank's images */
    double learning_rate;      /* at the last step */
    /* Parts of seconds. On a GPU communication is part of the steps: computed. */
    double wait_seconds, compute_seconds, comm_seconds;
    double hidden_seconds; /* of communication that ran while this rank computed: beside
                              comm_seconds */
    double
        iteration_seconds; /* mean of iterations 2 to 40 of the phase; 0: there was one at most */
    char host[64];         /* HELLO */
};

/* Bytes written to out, at most METRIC_SIZE_MAX. */
size_t metric_write(uint8_t out[METRIC_SIZE_MAX], const struct metric *m);

/* BAD_INPUT names what is wrong and its offset. */
int metric_read(const void *bytes, size_t size, struct metric *m);

#endif
