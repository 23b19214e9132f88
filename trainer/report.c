/* report.c: see report.h. */
#include "trainer/report.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/sock.h"
#include <stdlib.h>
#include <unistd.h>

struct report {
    struct sock *sock;
    int rank, world_size;
    int64_t epochs;
    double timeout_seconds;
    int64_t last_progress_ns;
};

int report_open(struct report **out, const char *endpoint, int rank, int world_size, int64_t epochs,
                double timeout_seconds) {
    struct report *r = calloc(1, sizeof *r);
    if (!r)
        return fail(SYSTEM_FAILED, "out of memory");
    *r = (struct report){.rank = rank,
                         .world_size = world_size,
                         .epochs = epochs,
                         .timeout_seconds = timeout_seconds};
    int rc = endpoint ? sock_connect(&r->sock, SOCK_PUSH, endpoint) : 0;
    if (rc) {
        free(r);
        return rc;
    }
    *out = r;
    return 0;
}

static void say(const struct metric *m) {
    double count = m->count ? (double)m->count : 1;
    log_note("epoch %u %s: %llu images in %.3f s (%.1f/s), loss %.4f, accuracy %.4f; "
             "waited %.3f, computed %.3f, communicated %.3f s (and %.3f s hidden)",
             m->epoch, m->phase == METRIC_TRAIN ? "train" : "validation",
             (unsigned long long)m->images, m->seconds,
             m->seconds > 0 ? (double)m->images / m->seconds : 0, m->loss_sum / count,
             (double)m->correct / count, m->wait_seconds, m->compute_seconds, m->comm_seconds,
             m->hidden_seconds);
}

static enum sock_event send_record(struct report *r, struct metric *m, double timeout_seconds) {
    uint8_t bytes[METRIC_SIZE_MAX];
    m->rank = (uint32_t)r->rank;
    m->world_size = (uint32_t)r->world_size;
    m->epochs = (uint32_t)r->epochs;
    size_t size = metric_write(bytes, m);
    return sock_send_bytes(r->sock, bytes, size, 0, clock_deadline(timeout_seconds));
}

int report_send(struct report *r, struct metric *m) {
    if (m->kind == METRIC_HELLO)
        gethostname(m->host, sizeof m->host - 1);
    if (m->kind == METRIC_PROGRESS) {
        if (r->rank != 0 || !r->sock || clock_ns() - r->last_progress_ns < 250000000)
            return 0;
        r->last_progress_ns = clock_ns();
    }
    if (m->kind == METRIC_EPOCH && m->images)
        say(m);
    if (!r->sock)
        return 0;
    enum sock_event e = send_record(r, m, r->timeout_seconds);
    return e == SOCK_OK ? 0
                        : fail(SYSTEM_FAILED, "aggregator at %s: %s", sock_endpoint(r->sock),
                               sock_event_text(e));
}

int report_close(struct report **r, enum metric_reason reason) {
    if (!*r)
        return 0;
    struct metric bye = {.kind = METRIC_BYE, .reason = reason};
    int rc = 0;
    /* Who failed has said why; if the aggregator does not hear of it, that is no news. */
    if (reason != METRIC_FAILED)
        rc = report_send(*r, &bye);
    else if ((*r)->sock)
        send_record(*r, &bye, 1);
    if ((*r)->sock)
        sock_close(&(*r)->sock, reason == METRIC_FAILED ? 1000 : 5000);
    free(*r);
    *r = NULL;
    return rc;
}
