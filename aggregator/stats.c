/* stats: a small ring of epochs not yet reported, each with a place for every rank's records.
 *
 * Ranks keep in step through their collectives, so records of more than two epochs are never open
 * at once; a rank that is further ahead is not of this run. */
#include "aggregator/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"

enum { OPEN_EPOCHS = 4, PHASES = 2 };

struct slot {
    bool in;
    struct metric record;
};

struct stats {
    uint32_t world_size;
    uint32_t next;      /* first epoch not yet reported; 0: none came yet */
    struct slot *slots; /* (OPEN_EPOCHS, world_size + 1, PHASES); the last "rank": totals */
};

static struct slot *slot_of(const struct stats *s, uint32_t epoch, uint32_t rank, int phase) {
    size_t row = (size_t)(epoch % OPEN_EPOCHS) * (s->world_size + 1) + rank;
    return &s->slots[row * PHASES + (size_t)phase];
}

int stats_open(struct stats **s, uint32_t world_size) {
    struct stats *made = calloc(1, sizeof *made);
    if (made)
        made->slots = calloc(OPEN_EPOCHS * ((size_t)world_size + 1) * PHASES, sizeof *made->slots);
    if (!made || !made->slots) {
        free(made);
        return fail(SYSTEM_FAILED, "no memory for the records of %u ranks", (unsigned)world_size);
    }
    made->world_size = world_size;
    *s = made;
    return 0;
}

void stats_close(struct stats **s) {
    if (*s)
        free((*s)->slots);
    free(*s);
    *s = NULL;
}

int stats_add(struct stats *s, const struct metric *m) {
    const char *phase = m->phase == METRIC_TRAIN ? "training" : "validation";
    if (s->next == 0)
        s->next = m->epoch; /* a resumed run does not begin at 1 */
    if (m->epoch < s->next)
        return fail(BAD_INPUT, "rank %u: %s record of epoch %u, but epoch %u is the next to come",
                    (unsigned)m->rank, phase, (unsigned)m->epoch, (unsigned)s->next);
    if (m->epoch - s->next >= OPEN_EPOCHS)
        return fail(BAD_INPUT, "rank %u: %s record of epoch %u, while epoch %u is not complete",
                    (unsigned)m->rank, phase, (unsigned)m->epoch, (unsigned)s->next);
    uint32_t row = m->kind == METRIC_TOTAL ? s->world_size : m->rank;
    struct slot *slot = slot_of(s, m->epoch, row, m->phase);
    if (slot->in)
        return fail(
            BAD_INPUT,
            "rank %u: a second %s record of epoch %u: are there two processes of this rank?",
            (unsigned)m->rank, phase, (unsigned)m->epoch);
    *slot = (struct slot){.in = true, .record = *m};
    return 0;
}

bool stats_ready(const struct stats *s, bool ended) {
    if (s->next == 0)
        return false;
    for (uint32_t rank = 0; rank <= s->world_size; rank++) {
        if (!slot_of(s, s->next, rank, METRIC_TRAIN)->in)
            return false;
        if (!ended && !slot_of(s, s->next, rank, METRIC_VAL)->in)
            return false;
    }
    return true;
}

/* The sums of one phase over ranks [first, last). */
struct phase_sums {
    uint64_t images, count, correct;
    double loss_sum, images_per_sec, seconds, start_seconds, wait, compute, comm, hidden,
        learning_rate, iteration;
};

static struct phase_sums sum_phase(const struct stats *s, int phase, uint32_t first,
                                   uint32_t last) {
    struct phase_sums sums = {0};
    for (uint32_t rank = first; rank < last; rank++) {
        const struct slot *slot = slot_of(s, s->next, rank, phase);
        if (!slot->in)
            continue;
        const struct metric *m = &slot->record;
        sums.images += m->images;
        sums.count += m->count;
        sums.correct += m->correct;
        sums.loss_sum += m->loss_sum;
        if (m->images > 0)
            sums.images_per_sec += (double)m->images / m->seconds;
        sums.seconds = fmax(sums.seconds, m->seconds);
        sums.start_seconds = fmax(sums.start_seconds, m->start_seconds);
        sums.wait += m->wait_seconds;
        sums.compute += m->compute_seconds;
        sums.comm += m->comm_seconds;
        sums.hidden += m->hidden_seconds;
        sums.learning_rate = m->learning_rate;
        sums.iteration = fmax(sums.iteration, m->iteration_seconds);
    }
    return sums;
}

static double per_image(double sum, uint64_t count) {
    return count ? sum / (double)count : NAN;
}

static struct stats_summary summarize(const struct stats *s, uint32_t first, uint32_t last) {
    struct phase_sums train = sum_phase(s, METRIC_TRAIN, first, last);
    struct phase_sums val = sum_phase(s, METRIC_VAL, first, last);
    double ranks = last - first;
    return (struct stats_summary){
        .epoch = s->next,
        .images = train.images,
        .train_count = train.count,
        .val_count = val.count,
        .cumulative_time = fmax(train.start_seconds, val.start_seconds),
        .epoch_time = train.seconds,
        .images_per_sec = train.images_per_sec,
        .val_seconds = val.seconds,
        .train_loss = per_image(train.loss_sum, train.count),
        .train_accuracy = per_image((double)train.correct, train.count),
        .val_loss = per_image(val.loss_sum, val.count),
        .val_accuracy = per_image((double)val.correct, val.count),
        .learning_rate = train.learning_rate,
        .wait = train.wait / ranks,
        .compute = train.compute / ranks,
        .comm = train.comm / ranks,
        .hidden = train.hidden / ranks,
        .seconds_per_iteration = train.iteration,
    };
}

struct stats_summary stats_of_rank(const struct stats *s, uint32_t rank) {
    return summarize(s, rank, rank + 1);
}

struct stats_summary stats_of_all(const struct stats *s) {
    return summarize(s, 0, s->world_size);
}

int stats_check(const struct stats *s) {
    for (int phase = 0; phase < PHASES; phase++) {
        const struct slot *slot = slot_of(s, s->next, s->world_size, phase);
        const char *name = phase == METRIC_TRAIN ? "training" : "validation";
        struct phase_sums sums = sum_phase(s, phase, 0, s->world_size);
        const struct metric *t = &slot->record;
        if (!slot->in)
            continue;
        if (sums.count != t->count || sums.correct != t->correct)
            return fail(
                BAD_INPUT,
                "epoch %u, %s: the ranks' records add up to %llu correct of %llu, the ranks "
                "reduced %llu of %llu",
                (unsigned)s->next, name, (unsigned long long)sums.correct,
                (unsigned long long)sums.count, (unsigned long long)t->correct,
                (unsigned long long)t->count);
        /* W terms: at most W·2^-53 of the sum of their sizes, and losses are not negative. A loss
         * that is not finite is in both. */
        double allowed = 2 * s->world_size * 0x1p-52 * fabs(sums.loss_sum);
        bool same = isfinite(sums.loss_sum) ? fabs(sums.loss_sum - t->loss_sum) <= allowed
                                            : !isfinite(t->loss_sum);
        if (!same)
            return fail(BAD_INPUT,
                        "epoch %u, %s: the ranks' records add up to a loss of %.17g, the ranks "
                        "reduced %.17g",
                        (unsigned)s->next, name, sums.loss_sum, t->loss_sum);
    }
    return 0;
}

void stats_next(struct stats *s) {
    memset(slot_of(s, s->next, 0, 0), 0, ((size_t)s->world_size + 1) * PHASES * sizeof *s->slots);
    s->next++;
}
