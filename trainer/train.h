/* train: the epoch loop: step, validate, report, decide. */
#ifndef DDPIPE_TRAIN_H
#define DDPIPE_TRAIN_H

#include "trainer/average.h"
#include "trainer/comm.h"
#include "trainer/ddp.h"
#include "trainer/net.h"
#include "trainer/optim.h"
#include "trainer/replicas.h"
#include "trainer/report.h"
#include "trainer/schedule.h"
#include "trainer/source.h"

struct train {
    struct net *net;
    struct optim *optim;
    struct average *average; /* NULL: the raw weights are evaluated and saved */
    struct comm *comm;
    struct ddp *ddp;
    struct source *source;
    struct report *report;
    struct schedule schedule;
    double smoothing;
    int64_t epochs;           /* at most */
    int64_t max_steps;        /* 0: no such limit */
    double target;            /* validation accuracy; 0: none */
    int64_t stem_bias_epochs; /* the whitening layer's bias stays put after them; 0: always did */
    int64_t patience;         /* consecutive epochs at or above target */
    int64_t accumulate;       /* batches per update */
    bool check_replicas;      /* after each epoch */
    /* state */
    int64_t steps;    /* updates done */
    int64_t batches;  /* trained on */
    int64_t kept;     /* batches since the last update */
    int64_t in_a_row; /* epochs at or above target */
    int64_t began_ns;
    int64_t counted_ns;        /* when loss and correct images were last asked for, and */
    uint64_t uncounted;        /* the images since */
    int32_t *labels;           /* of the current batch */
    enum metric_reason reason; /* why it ended */
};

/* Runs to the stop rule, the limits, or a failure. Every rank takes the same decisions, from sums
 * reduced over all ranks. A loss that is not finite ends the run at once (BAD_INPUT), naming epoch,
 * step and learning rate. */
int train_run(struct train *t);

#endif
