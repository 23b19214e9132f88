/* source.c: one loader's stream, or a synthetic one, as calls of source_next. */
#include "trainer/source.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/rng.h"
#include "lib/sock.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct source {
    struct batch_hello hello;
    struct sock *sock; /* NULL: synthetic */
    double timeout_seconds;
    zmq_msg_t message;
    bool held;                 /* message holds a batch whose credit is not yet returned */
    struct batch_message next; /* synthetic */
    uint8_t *pixels, *labels;
};

static int64_t deadline(const struct source *s) {
    return clock_deadline(s->timeout_seconds);
}

static int grant(struct source *s, uint32_t credits) {
    zmq_msg_t m;
    int rc = batch_write_credit(&m, credits);
    if (rc)
        return rc;
    enum sock_event e = sock_send(s->sock, &m, 0, deadline(s));
    if (e == SOCK_OK)
        return 0;
    zmq_msg_close(&m);
    return fail(SYSTEM_FAILED, "loader at %s: %s", sock_endpoint(s->sock), sock_event_text(e));
}

static int receive(struct source *s, struct batch_message *out) {
    zmq_msg_close(&s->message);
    zmq_msg_init(&s->message);
    enum sock_event e = sock_recv(s->sock, &s->message, deadline(s));
    if (e != SOCK_OK)
        return fail(SYSTEM_FAILED, "loader at %s: %s (waited up to %g s)", sock_endpoint(s->sock),
                    sock_event_text(e), s->timeout_seconds);
    return batch_read(&s->message, out);
}

int source_open_loader(struct source **out, const char *endpoint, uint32_t credits,
                       double timeout_seconds) {
    struct source *s = calloc(1, sizeof *s);
    struct batch_message hello;
    if (!s)
        return fail(SYSTEM_FAILED, "out of memory");
    s->timeout_seconds = timeout_seconds;
    zmq_msg_init(&s->message);
    int rc = sock_connect(&s->sock, SOCK_DUPLEX, endpoint);
    rc = rc ? rc : grant(s, credits);
    rc = rc ? rc : receive(s, &hello);
    if (!rc && hello.kind != BATCH_HELLO)
        rc = fail(BAD_INPUT, "loader at %s: message kind %d came before HELLO", endpoint,
                  (int)hello.kind);
    if (rc) {
        source_close(&s);
        return rc;
    }
    s->hello = hello.hello;
    *out = s;
    return 0;
}

int source_open_synthetic(struct source **out, const struct batch_hello *like) {
    struct source *s = calloc(1, sizeof *s);
    size_t image = like->c * like->h * like->w;
    uint32_t count =
        like->batch_size > like->val_batch_size ? like->batch_size : like->val_batch_size;
    if (!s)
        return fail(SYSTEM_FAILED, "out of memory");
    s->hello = *like;
    s->pixels = malloc(count * image);
    s->labels = malloc(count * 2);
    if (!s->pixels || !s->labels) {
        source_close(&s);
        return fail(SYSTEM_FAILED, "out of memory for a batch of %u images", count);
    }
    struct rng r = rng_at(like->seed, RNG_TEST, like->rank, 0);
    for (size_t i = 0; i < count * image; i++)
        s->pixels[i] = (uint8_t)rng_u32(&r);
    for (uint32_t i = 0; i < count; i++)
        batch_set_label(s->labels, i, (uint16_t)(s->pixels[i * image] % like->classes));
    s->next = (struct batch_message){.kind = BATCH_BATCH,
                                     .batch = {.phase = BATCH_TRAIN,
                                               .epoch = 1,
                                               .step = 1,
                                               .c = like->c,
                                               .h = like->h,
                                               .w = like->w,
                                               .pixels = s->pixels,
                                               .labels = s->labels}};
    *out = s;
    return 0;
}

const struct batch_hello *source_hello(const struct source *s) {
    return &s->hello;
}

static void synthesise(struct source *s, struct batch_message *out) {
    struct batch *b = &s->next.batch;
    bool train = b->phase == BATCH_TRAIN;
    b->count = train ? s->hello.batch_size : s->hello.val_batch_size;
    s->next.kind =
        b->step > (train ? s->hello.train_steps : s->hello.val_steps) ? BATCH_END : BATCH_BATCH;
    *out = s->next;
    b->step++;
    if (s->next.kind == BATCH_END) {
        b->epoch += !train;
        b->phase = train ? BATCH_VAL : BATCH_TRAIN;
        b->step = 1;
    }
}

int source_next(struct source *s, struct batch_message *out, int64_t *waited_ns) {
    if (!s->sock) {
        synthesise(s, out);
        return 0;
    }
    int64_t began = clock_ns();
    int rc = s->held ? grant(s, 1) : 0;
    rc = rc ? rc : receive(s, out);
    *waited_ns += clock_ns() - began;
    if (rc)
        return rc;
    s->held = out->kind == BATCH_BATCH;
    if (!s->held && out->kind != BATCH_END)
        return fail(BAD_INPUT, "loader at %s: message kind %d out of turn", sock_endpoint(s->sock),
                    (int)out->kind);
    return 0;
}

void source_close(struct source **out) {
    struct source *s = *out;
    if (!s)
        return;
    if (s->sock) {
        zmq_msg_t stop;
        if (!batch_write_stop(&stop) && sock_send(s->sock, &stop, 0, clock_deadline(1)) != SOCK_OK)
            zmq_msg_close(&stop);
        zmq_msg_close(&s->message);
        sock_close(&s->sock, 1000);
    }
    free(s->pixels);
    free(s->labels);
    free(s);
    *out = NULL;
}
