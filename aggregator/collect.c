/* collect: the aggregator's loop: receive, check, sum, report.
 *
 * A rank that fails does not end the loop at once: its peers' last records still count, and whoever
 * supervises the run hears of the failure from the rank itself, which knows the cause. */
#include "aggregator/collect.h"

#include <stdio.h>

#include "aggregator/roster.h"
#include "aggregator/stats.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/progress.h"
#include "lib/stop.h"

enum { RANKS_TEXT = 256 };
static const double last_words_seconds = 5; /* for the other ranks, once one has failed */

struct collect {
    struct sock *in;
    struct report *out;
    uint32_t world_size;
    double timeout_seconds;
    struct roster *roster;
    struct stats *stats;
    struct stats_summary last; /* epoch reported; epoch 0: none */
    uint32_t gone;             /* connections that ended */
    struct progress progress;
    uint32_t progress_epoch; /* that it is about; 0: none yet */
    int64_t failed_ns;       /* when the first rank said that it failed; 0: none did */
};

static int report_ready(struct collect *c, bool ended) {
    while (stats_ready(c->stats, ended)) {
        int wrong = stats_check(c->stats);
        if (wrong)
            return wrong;
        for (uint32_t rank = 0; rank < c->world_size; rank++) {
            struct stats_summary s = stats_of_rank(c->stats, rank);
            int error = report_rank(c->out, rank, &s);
            if (error)
                return error;
        }
        c->last = stats_of_all(c->stats);
        stats_next(c->stats);
        int error = report_epoch(c->out, &c->last);
        if (error)
            return error;
    }
    return 0;
}

/* Rank 0 speaks of itself; the others keep step with it. */
static void show_progress(struct collect *c, const struct metric *m) {
    char label[64];
    if (m->epoch != c->progress_epoch) {
        snprintf(label, sizeof label, "epoch %u of %u", (unsigned)m->epoch, (unsigned)m->epochs);
        c->progress = progress_open(label, "images", 1);
        c->progress_epoch = m->epoch;
    }
    if (m->step == 0)
        return;
    double images = (double)m->images * c->world_size;
    progress_show(&c->progress, images, images / m->step * m->steps);
}

static int take(struct collect *c, zmq_msg_t *message) {
    struct metric m;
    int error = metric_read(zmq_msg_data(message), zmq_msg_size(message), &m);
    if (!error)
        error = roster_hear(c->roster, &m, clock_ns());
    if (error)
        return error;
    if (m.kind == METRIC_PROGRESS)
        show_progress(c, &m);
    else
        progress_close(&c->progress);
    if (m.kind == METRIC_EPOCH || m.kind == METRIC_TOTAL) {
        error = stats_add(c->stats, &m);
        return error ? error : report_ready(c, false);
    }
    if (m.kind == METRIC_BYE && m.reason == METRIC_FAILED && c->failed_ns == 0)
        c->failed_ns = clock_ns();
    return 0;
}

static int timed_out(const struct collect *c) {
    char ranks[RANKS_TEXT];
    if (c->failed_ns != 0 && roster_failed(c->roster, ranks, sizeof ranks))
        return fail(SYSTEM_FAILED, "failed: rank %s", ranks);
    if (roster_silent(c->roster, clock_ns(), ranks, sizeof ranks))
        return fail(SYSTEM_FAILED, "nothing heard for %g s from rank %s", c->timeout_seconds,
                    ranks);
    return 0;
}

/* One connection a rank; a rank that said BYE may close its own. */
static int peer_gone(struct collect *c) {
    char ranks[RANKS_TEXT] = "";
    if (++c->gone <= roster_done(c->roster))
        return 0;
    roster_unfinished(c->roster, ranks, sizeof ranks);
    return fail(SYSTEM_FAILED, "a rank left in the middle of the run; not done: rank %s", ranks);
}

static int receive(struct collect *c) {
    int64_t deadline = c->failed_ns ? c->failed_ns + (int64_t)(last_words_seconds * 1e9)
                                    : roster_deadline(c->roster);
    zmq_msg_t message;
    zmq_msg_init(&message);
    int result = SYSTEM_FAILED;
    enum sock_event event = sock_recv(c->in, &message, deadline);
    if (event != SOCK_OK)
        progress_close(&c->progress);
    switch (event) {
    case SOCK_OK: result = take(c, &message); break;
    case SOCK_TIMEOUT: result = timed_out(c); break;
    case SOCK_PEER_GONE: result = peer_gone(c); break;
    case SOCK_INTERRUPTED: fail(SYSTEM_FAILED, "stopped by signal %d", stop_requested()); break;
    }
    zmq_msg_close(&message);
    return result;
}

int collect_run(struct sock *in, struct report *out, uint32_t world_size, double timeout_seconds) {
    struct collect c = {
        .in = in, .out = out, .world_size = world_size, .timeout_seconds = timeout_seconds};
    int error = roster_open(&c.roster, world_size, timeout_seconds);
    if (!error)
        error = stats_open(&c.stats, world_size);
    while (!error && roster_done(c.roster) < world_size)
        error = receive(&c);
    char ranks[RANKS_TEXT];
    if (!error)
        error = report_ready(&c, true);
    if (!error && roster_failed(c.roster, ranks, sizeof ranks))
        error = fail(SYSTEM_FAILED, "failed: rank %s", ranks);
    if (!error)
        error = report_end(roster_reason(c.roster), &c.last);
    roster_close(&c.roster);
    stats_close(&c.stats);
    return error;
}
