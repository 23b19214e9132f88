/* stream: sends batches as long as the trainer's credits last, through phases and epochs.
 *
 *   state                     waits for            then
 *   new                       the first CREDIT     HELLO
 *   a batch is due, no credit CREDIT
 *   a batch is due, credit    nothing              BATCH
 *   a phase is over           nothing              END, next phase
 *   finished (see below)      STOP
 * Finished it is after the validation that follows the last of max_steps, or the only one, where
 * there are no training batches. In every state STOP ends it. The socket is the only thing ever
 * waited for. */
#include "loader/stream.h"

#include <stdbool.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/stop.h"

struct stream {
    struct sock *sock;
    struct feed *feed;
    const struct stream_settings *set;
    uint64_t credits;
    bool greeted, finished, stopped;
    enum batch_phase phase;
    uint32_t epoch, step; /* of the next batch */
    uint64_t trained;     /* training batches sent */
};

static bool out_of_steps(const struct stream *s) {
    return s->set->max_steps > 0 && s->trained == s->set->max_steps;
}

static bool phase_is_over(const struct stream *s) {
    const struct batch_hello *h = feed_hello(s->feed);
    if (s->phase == BATCH_TRAIN)
        return s->step > h->train_steps || out_of_steps(s);
    return s->step > h->val_steps;
}

static int failed(const struct stream *s, enum sock_event e) {
    const char *at = sock_endpoint(s->sock);
    const char *phase = s->phase == BATCH_TRAIN ? "training" : "validation";
    if (e == SOCK_INTERRUPTED)
        return fail(SYSTEM_FAILED, "stopped by signal %d", stop_requested());
    if (!s->greeted)
        return fail(SYSTEM_FAILED, "no trainer at %s: %s (--timeout %g s)", at, sock_event_text(e),
                    s->set->timeout_seconds);
    if (e == SOCK_TIMEOUT)
        return fail(SYSTEM_FAILED,
                    "the trainer at %s is silent for %g s (--timeout), before batch %u of %s epoch "
                    "%u",
                    at, s->set->timeout_seconds, s->step, phase, s->epoch);
    return fail(SYSTEM_FAILED,
                "the trainer at %s is gone without STOP, before batch %u of %s epoch %u", at,
                s->step, phase, s->epoch);
}

static int hear(struct stream *s, int64_t deadline_ns);

/* Takes the message over in any case. */
static int send_message(struct stream *s, zmq_msg_t *m) {
    enum sock_event e = sock_send(s->sock, m, 0, clock_deadline(s->set->timeout_seconds));
    if (e == SOCK_OK)
        return 0;
    zmq_msg_close(m);
    /* One that is gone may have said STOP before: what it sent last is still to be received. */
    return e == SOCK_PEER_GONE ? hear(s, 0) : failed(s, e);
}

static int take(struct stream *s, zmq_msg_t *m) {
    static const char *const names[] = {"?", "CREDIT", "HELLO", "BATCH", "END", "STOP"};
    struct batch_message in;
    int r = batch_read(m, &in);
    if (r)
        return r;
    if (in.kind == BATCH_STOP)
        s->stopped = true;
    else if (in.kind == BATCH_CREDIT)
        s->credits += in.credits;
    else
        return fail(BAD_INPUT, "the trainer at %s sent %s: it may send CREDIT and STOP only",
                    sock_endpoint(s->sock), names[in.kind]);
    if (s->greeted || s->stopped)
        return 0;
    zmq_msg_t hello;
    r = batch_write_hello(&hello, feed_hello(s->feed));
    s->greeted = true;
    return r ? r : send_message(s, &hello);
}

/* Takes one message if one comes before the deadline; with deadline 0 all that are there. */
static int hear(struct stream *s, int64_t deadline_ns) {
    int r = 0;
    zmq_msg_t m;
    zmq_msg_init(&m);
    do {
        enum sock_event e = sock_recv(s->sock, &m, deadline_ns);
        if (e == SOCK_TIMEOUT && deadline_ns == 0)
            break;
        if (e != SOCK_OK)
            r = failed(s, e);
        else if (sock_peers(s->sock) > 1)
            r = fail(SYSTEM_FAILED, "%d trainers are connected to %s: each rank has its own loader",
                     sock_peers(s->sock), sock_endpoint(s->sock));
        else
            r = take(s, &m);
    } while (!r && !s->stopped && deadline_ns == 0);
    zmq_msg_close(&m);
    return r;
}

static int end_phase(struct stream *s) {
    zmq_msg_t m;
    int r = batch_write_end(&m, s->phase, s->epoch);
    if (!r)
        r = send_message(s, &m);
    s->step = 1;
    if (s->phase == BATCH_TRAIN) {
        s->phase = BATCH_VAL;
    } else {
        s->finished = out_of_steps(s) || feed_hello(s->feed)->train_steps == 0;
        s->phase = BATCH_TRAIN;
        s->epoch++;
    }
    return r;
}

static int send_batch(struct stream *s) {
    zmq_msg_t m;
    int r = feed_batch(s->feed, s->phase, s->epoch, s->step, &m);
    if (!r)
        r = send_message(s, &m);
    s->credits--;
    s->step++;
    s->trained += s->phase == BATCH_TRAIN;
    return r;
}

int stream_serve(struct sock *sock, struct feed *feed, const struct stream_settings *settings) {
    struct stream s = {
        .sock = sock, .feed = feed, .set = settings, .phase = BATCH_TRAIN, .epoch = 1, .step = 1};
    int r = 0;
    while (!r && !s.stopped) {
        bool over = phase_is_over(&s);
        bool waits = !s.greeted || s.finished || (!over && s.credits == 0);
        r = hear(&s, waits ? clock_deadline(settings->timeout_seconds) : 0);
        if (!r && !s.stopped && !waits)
            r = over ? end_phase(&s) : send_batch(&s);
    }
    return r;
}
