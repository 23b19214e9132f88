/* batch_dump: a loader's trainer for the tests, which prints what it gets and trains nothing.
 *
 *   batch_dump ENDPOINT EPOCHS   takes so many epochs and says STOP. A line a batch, END or image:
 *                                "hello …", "batch PHASE EPOCH STEP COUNT H W", "image N LABEL",
 *                                "end PHASE EPOCH". N is read from a pixel: its red + 256 · green,
 * of the first pixel whose blue is 200 (others are padding). batch_dump ENDPOINT hang     takes one
 * batch, prints "hanging" and waits to be killed batch_dump ENDPOINT rude     sends a HELLO after
 * the loader's, which no trainer may batch_dump ENDPOINT late     as hang, but gives no credit
 * after the first batch batch_dump ENDPOINT damaged  sends a message that is none It grants 3
 * credits at first, and one for each batch: a batch without a credit is an error. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/batch.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/sock.h"

enum { CREDITS = 3, WAIT_SECONDS = 20 };

static struct sock *sock;
static bool frugal; /* quiet:N */
static struct batch_hello hello;

static int send_message(zmq_msg_t *m) {
    enum sock_event e = sock_send(sock, m, 0, clock_deadline(WAIT_SECONDS));
    return e == SOCK_OK ? 0 : fail(SYSTEM_FAILED, "send: %s", sock_event_text(e));
}

static int grant(int count) {
    zmq_msg_t m;
    int r = batch_write_credit(&m, (uint32_t)count);
    return r ? r : send_message(&m);
}

static int receive(zmq_msg_t *m, struct batch_message *in) {
    enum sock_event e = sock_recv(sock, m, clock_deadline(WAIT_SECONDS));
    return e == SOCK_OK ? batch_read(m, in)
                        : fail(SYSTEM_FAILED, "receive: %s", sock_event_text(e));
}

static void print_images(const struct batch *b) {
    size_t pixels = (size_t)b->h * b->w;
    for (uint32_t i = 0; i < b->count; i++) {
        const uint8_t *p = b->pixels + i * pixels * 3;
        while (p[2] != 200 && p + 3 < b->pixels + (i + 1) * pixels * 3)
            p += 3;
        printf("image %d %u\n", p[0] + 256 * p[1], batch_label(b->labels, i));
    }
}

/* Prints a message; *epochs counts down at the end of each validation. */
static int take(const struct batch_message *in, long *epochs) {
    static const char *const phases[] = {"train", "val"};
    const struct batch *b = &in->batch;
    if (in->kind == BATCH_END) {
        printf("end %s %u\n", phases[b->phase], b->epoch);
        *epochs -= b->phase == BATCH_VAL;
        return 0;
    }
    if (in->kind != BATCH_BATCH)
        return fail(BAD_INPUT, "message kind %d out of turn", (int)in->kind);
    printf("batch %s %u %u %u %u %u\n", phases[b->phase], b->epoch, b->step, b->count, b->h, b->w);
    print_images(b);
    return frugal ? 0 : grant(1);
}

static int say_stop(void) {
    zmq_msg_t m;
    int r = batch_write_stop(&m);
    return r ? r : send_message(&m);
}

static int take_until_quiet(void) {
    zmq_msg_t m;
    struct batch_message in;
    long epochs = 0;
    int r = 0;
    enum sock_event e = SOCK_OK;
    zmq_msg_init(&m);
    while (!r && e == SOCK_OK) {
        e = sock_recv(sock, &m, clock_deadline(0.5));
        if (e == SOCK_OK)
            r = batch_read(&m, &in);
        if (!r && e == SOCK_OK)
            r = take(&in, &epochs);
    }
    zmq_msg_close(&m);
    if (!r && e != SOCK_TIMEOUT)
        r = fail(SYSTEM_FAILED, "receive: %s", sock_event_text(e));
    return r ? r : say_stop();
}

static int take_epochs(long epochs) {
    zmq_msg_t m;
    struct batch_message in;
    int r = 0;
    zmq_msg_init(&m);
    while (!r && epochs > 0) {
        r = receive(&m, &in);
        if (!r)
            r = take(&in, &epochs);
    }
    zmq_msg_close(&m);
    return r ? r : say_stop();
}

static int misbehave(const char *how) {
    zmq_msg_t m;
    struct batch_message in;
    long epochs = 1;
    zmq_msg_init(&m);
    int r = receive(&m, &in);
    if (!r && strcmp(how, "late") != 0)
        r = take(&in, &epochs);
    zmq_msg_close(&m);
    if (!r && strcmp(how, "rude") == 0) {
        r = batch_write_hello(&m, &hello);
        if (!r)
            r = send_message(&m);
    } else if (!r && strcmp(how, "damaged") == 0) {
        r = sock_send_bytes(sock, "DDPB and more", 13, 0, clock_deadline(WAIT_SECONDS)) != SOCK_OK;
    }
    puts("hanging");
    fflush(stdout);
    alarm(WAIT_SECONDS);
    while (!r)
        pause();
    return r;
}

int main(int argc, char **argv) {
    zmq_msg_t m;
    struct batch_message in;
    if (argc != 3)
        return fail(BAD_USAGE, "usage: batch_dump ENDPOINT EPOCHS|hang|rude|late|damaged|quiet:N");
    int r = sock_connect(&sock, SOCK_DUPLEX, argv[1]);
    if (r)
        return r;
    zmq_msg_init(&m);
    frugal = strncmp(argv[2], "quiet:", 6) == 0;
    r = grant(frugal ? atoi(argv[2] + 6) : CREDITS);
    if (!r)
        r = receive(&m, &in);
    zmq_msg_close(&m);
    if (!r && in.kind != BATCH_HELLO)
        r = fail(BAD_INPUT, "message kind %d came before HELLO", (int)in.kind);
    if (!r) {
        hello = in.hello;
        printf("hello %u %u rank %u of %u, %u and %u steps, %s\n", hello.n_train, hello.n_val,
               hello.rank, hello.world_size, hello.train_steps, hello.val_steps, hello.augment);
        long epochs = strtol(argv[2], NULL, 10);
        if (frugal)
            r = take_until_quiet();
        else
            r = epochs > 0 ? take_epochs(epochs) : misbehave(argv[2]);
    }
    sock_close(&sock, 1000);
    return r;
}
