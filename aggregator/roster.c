/* roster: one entry per rank, from HELLO to BYE. */
#include "aggregator/roster.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/clock.h"
#include "lib/log.h"

struct entry {
    bool hello, bye;
    enum metric_reason reason;
    uint64_t reports; /* records that every rank sends */
    int64_t owes_ns;  /* since when another rank has sent more of them; 0: it owes none */
};

struct roster {
    uint32_t world_size;
    int64_t timeout_ns;
    int64_t heard_ns; /* last word of any rank */
    uint64_t most_reports;
    struct entry *entries;
};

int roster_open(struct roster **r, uint32_t world_size, double timeout_seconds) {
    struct roster *made = calloc(1, sizeof *made);
    if (made)
        made->entries = calloc(world_size, sizeof *made->entries);
    if (!made || !made->entries) {
        free(made);
        return fail(SYSTEM_FAILED, "no memory for %u ranks", (unsigned)world_size);
    }
    made->world_size = world_size;
    made->timeout_ns = (int64_t)(timeout_seconds * 1e9);
    made->heard_ns = clock_ns();
    *r = made;
    return 0;
}

void roster_close(struct roster **r) {
    if (*r)
        free((*r)->entries);
    free(*r);
    *r = NULL;
}

static int check(const struct roster *r, const struct metric *m) {
    unsigned rank = m->rank, world = r->world_size;
    if (m->world_size != world)
        return fail(BAD_INPUT, "rank %u belongs to a world of %u, this run's has %u", rank,
                    (unsigned)m->world_size, world);
    if (rank >= world)
        return fail(BAD_INPUT, "rank %u is outside a world of %u", rank, world);
    const struct entry *e = &r->entries[rank];
    if (e->bye)
        return fail(BAD_INPUT, "rank %u sent a record after its end", rank);
    if (e->hello && m->kind == METRIC_HELLO)
        return fail(BAD_INPUT, "rank %u joined a second time, from \"%s\"", rank, m->host);
    if (!e->hello && m->kind != METRIC_HELLO && m->kind != METRIC_BYE)
        return fail(BAD_INPUT, "rank %u sent a record before it joined", rank);
    return 0;
}

int roster_hear(struct roster *r, const struct metric *m, int64_t now_ns) {
    int error = check(r, m);
    if (error)
        return error;
    struct entry *speaker = &r->entries[m->rank];
    r->heard_ns = now_ns;
    if (m->kind == METRIC_PROGRESS || m->kind == METRIC_TOTAL) /* rank 0's alone */
        return 0;
    speaker->reports++;
    speaker->owes_ns = 0;
    if (m->kind == METRIC_HELLO)
        speaker->hello = true;
    if (m->kind == METRIC_BYE) {
        speaker->bye = true;
        speaker->reason = m->reason;
    }
    if (speaker->reports > r->most_reports)
        r->most_reports = speaker->reports;
    for (uint32_t rank = 0; rank < r->world_size; rank++) {
        struct entry *e = &r->entries[rank];
        if (e->bye || e->reports == r->most_reports)
            e->owes_ns = 0;
        else if (e->owes_ns == 0)
            e->owes_ns = now_ns;
    }
    return 0;
}

int64_t roster_deadline(const struct roster *r) {
    int64_t since = r->heard_ns;
    for (uint32_t rank = 0; rank < r->world_size; rank++) {
        int64_t owes = r->entries[rank].owes_ns;
        if (owes != 0 && owes < since)
            since = owes;
    }
    return since + r->timeout_ns;
}

/* Appends a rank to "0, 3"; what does not fit is left out. */
static void list(char *text, size_t size, size_t *used, uint32_t rank) {
    if (*used >= size)
        return;
    int n = snprintf(text + *used, size - *used, "%s%u", *used ? ", " : "", (unsigned)rank);
    *used += n > 0 ? (size_t)n : 0;
}

bool roster_silent(const struct roster *r, int64_t now_ns, char *text, size_t size) {
    size_t used = 0;
    bool nobody_speaks = now_ns - r->heard_ns >= r->timeout_ns;
    for (uint32_t rank = 0; rank < r->world_size; rank++) {
        const struct entry *e = &r->entries[rank];
        if (!e->bye && e->owes_ns != 0 && now_ns - e->owes_ns >= r->timeout_ns)
            list(text, size, &used, rank);
    }
    if (used == 0 && nobody_speaks)
        return roster_unfinished(r, text, size);
    return used > 0;
}

bool roster_unfinished(const struct roster *r, char *text, size_t size) {
    size_t used = 0;
    for (uint32_t rank = 0; rank < r->world_size; rank++)
        if (!r->entries[rank].bye)
            list(text, size, &used, rank);
    return used > 0;
}

bool roster_failed(const struct roster *r, char *text, size_t size) {
    size_t used = 0;
    for (uint32_t rank = 0; rank < r->world_size; rank++)
        if (r->entries[rank].bye && r->entries[rank].reason == METRIC_FAILED)
            list(text, size, &used, rank);
    return used > 0;
}

uint32_t roster_done(const struct roster *r) {
    uint32_t done = 0;
    for (uint32_t rank = 0; rank < r->world_size; rank++)
        done += r->entries[rank].bye;
    return done;
}

enum metric_reason roster_reason(const struct roster *r) {
    return r->entries[0].reason;
}
