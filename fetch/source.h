/* source: where a data set can be had, in which order, and one attempt at each. */
#ifndef DDPIPE_FETCH_SOURCE_H
#define DDPIPE_FETCH_SOURCE_H

#include "fetch/stage.h"
#include "lib/opts.h"
#include <stdbool.h>
#include <stdint.h>

struct source_settings {
    const struct opt_list *urls; /* the user's; only these are tried, if there are any */
    bool offline;                /* nothing that needs a network */
    double timeout_seconds;      /* for each source */
    int retries;
};

/* Fills the stage (named, not open) from the first source that has the whole data set, and
 * publishes. Every source that has not is said in one line. The stage is gone afterwards in any
 * case; a broken download stays in DATA, as .NAME.<of its URL>.part. Returns what the last source
 * failed with, BAD_INPUT where offline leaves no source. */
int source_fetch(struct stage *s, const struct source_settings *settings);

#endif
