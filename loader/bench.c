/* bench: the loader's own trainer, which only receives. It is a thread that speaks the protocol of
 * lib/batch.h over the endpoint the loader serves, so what is measured is what a trainer gets. */
#include "loader/bench.h"

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "lib/batch.h"
#include "lib/clock.h"
#include "lib/log.h"

enum { CREDITS = 8, LINGER_MS = 1000 };

struct consumer {
    const char *endpoint;
    double timeout_seconds;
    uint64_t max_steps, steps; /* of training */
    uint32_t epochs;
    struct sock *sock;
    int result;
    int64_t start_ns;
    uint64_t images;
};

static int send_message(struct consumer *c, zmq_msg_t *m) {
    enum sock_event e = sock_send(c->sock, m, 0, clock_deadline(c->timeout_seconds));
    if (e == SOCK_OK)
        return 0;
    zmq_msg_close(m);
    return fail(SYSTEM_FAILED, "bench at %s: %s", c->endpoint, sock_event_text(e));
}

static int grant(struct consumer *c, uint32_t credits) {
    zmq_msg_t m;
    int r = batch_write_credit(&m, credits);
    return r ? r : send_message(c, &m);
}

static int print(const struct consumer *c, uint32_t epoch) {
    double seconds = (double)(clock_ns() - c->start_ns) * 1e-9;
    json_t *line =
        json_pack("{s:i, s:I, s:f, s:f}", "epoch", (int)epoch, "images", (json_int_t)c->images,
                  "seconds", seconds, "images_per_sec", (double)c->images / seconds);
    int r = line ? json_dumpf(line, stdout, JSON_REAL_PRECISION(6)) : -1;
    json_decref(line);
    if (r < 0 || puts("") < 0 || fflush(stdout) != 0)
        return fail(SYSTEM_FAILED, "bench: cannot write the result");
    return 0;
}

/* *done after the last END that is wanted. */
static int take(struct consumer *c, const struct batch_message *in, bool *done) {
    const struct batch *b = &in->batch;
    if (in->kind == BATCH_BATCH) {
        if (b->phase == BATCH_TRAIN) {
            c->images += b->count;
            c->steps++;
        }
        return grant(c, 1);
    }
    if (in->kind != BATCH_END)
        return 0;
    bool last = b->epoch == c->epochs || (c->max_steps > 0 && c->steps == c->max_steps);
    if (b->phase == BATCH_TRAIN)
        return print(c, b->epoch);
    *done = last;
    c->start_ns = clock_ns();
    c->images = 0;
    return 0;
}

static int consume(struct consumer *c) {
    zmq_msg_t m;
    bool done = false;
    int r = sock_connect(&c->sock, SOCK_DUPLEX, c->endpoint);
    zmq_msg_init(&m);
    c->start_ns = clock_ns();
    if (!r)
        r = grant(c, CREDITS);
    while (!r && !done) {
        struct batch_message in;
        enum sock_event e = sock_recv(c->sock, &m, clock_deadline(c->timeout_seconds));
        if (e == SOCK_OK)
            r = batch_read(&m, &in);
        else
            r = fail(SYSTEM_FAILED, "bench at %s: %s", c->endpoint, sock_event_text(e));
        if (!r)
            r = take(c, &in, &done);
    }
    zmq_msg_close(&m);
    if (!r)
        r = batch_write_stop(&m);
    if (!r)
        r = send_message(c, &m);
    sock_close(&c->sock, LINGER_MS);
    return r;
}

static void *run(void *context) {
    struct consumer *c = context;
    c->result = consume(c);
    return NULL;
}

int bench_run(struct sock *sock, struct feed *feed, const struct stream_settings *settings,
              int epochs) {
    struct consumer c = {.endpoint = sock_endpoint(sock),
                         .timeout_seconds = settings->timeout_seconds,
                         .max_steps = settings->max_steps,
                         .epochs = (uint32_t)epochs};
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, &c);
    if (error)
        return fail(SYSTEM_FAILED, "cannot start a thread: %s", strerror(error));
    int r = stream_serve(sock, feed, settings);
    pthread_join(thread, NULL);
    return c.result ? c.result : r;
}
