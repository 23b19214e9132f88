/* batch_serve: a loader that promises one batch of 8 training images and one of PROMISED validation
 * images, and sends SENT of the latter. All are black.
 *
 * usage: batch_serve ipc://ENDPOINT PROMISED SENT */
#include "lib/batch.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/sock.h"
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 8, SIDE = 32, SECONDS = 20 };

static int say(struct sock *s, zmq_msg_t *m) {
    enum sock_event e = sock_send(s, m, 0, clock_deadline(SECONDS));
    return e == SOCK_OK ? 0 : fail(SYSTEM_FAILED, "send: %s", sock_event_text(e));
}

static int batch(struct sock *s, enum batch_phase phase, uint32_t count) {
    struct batch header = {
        .phase = phase, .epoch = 1, .step = 1, .count = count, .c = 3, .h = SIDE, .w = SIDE};
    uint8_t *pixels, *labels;
    zmq_msg_t m;
    int rc = batch_write(&m, &header, &pixels, &labels);
    if (rc)
        return rc;
    memset(pixels, 0, (size_t)count * 3 * SIDE * SIDE);
    for (uint32_t i = 0; i < count; i++)
        batch_set_label(labels, i, 0);
    return say(s, &m);
}

static int end(struct sock *s, enum batch_phase phase) {
    zmq_msg_t m;
    int rc = batch_write_end(&m, phase, 1);
    return rc ? rc : say(s, &m);
}

int main(int argc, char **argv) {
    struct sock *s;
    zmq_msg_t m;
    log_open("batch_serve", -1);
    if (argc != 4)
        return fail(BAD_USAGE, "usage: batch_serve ENDPOINT PROMISED SENT");
    struct batch_hello hello = {.n_train = IMAGES,
                                .n_val = (uint32_t)atoi(argv[2]),
                                .c = 3,
                                .h = SIDE,
                                .w = SIDE,
                                .classes = 10,
                                .world_size = 1,
                                .batch_size = IMAGES,
                                .val_batch_size = 1000,
                                .train_steps = 1,
                                .val_steps = 1,
                                .std = {1, 1, 1, 1}};
    memset(hello.digest, '0', 64);
    int rc = sock_bind(&s, SOCK_DUPLEX, argv[1]);
    zmq_msg_init(&m);
    if (!rc && sock_recv(s, &m, clock_deadline(SECONDS)) != SOCK_OK)
        rc = fail(SYSTEM_FAILED, "no trainer came");
    zmq_msg_close(&m);
    rc = rc ? rc : batch_write_hello(&m, &hello);
    rc = rc ? rc : say(s, &m);
    rc = rc ? rc : batch(s, BATCH_TRAIN, IMAGES);
    rc = rc ? rc : end(s, BATCH_TRAIN);
    rc = rc ? rc : batch(s, BATCH_VAL, (uint32_t)atoi(argv[3]));
    rc = rc ? rc : end(s, BATCH_VAL);
    zmq_msg_init(&m); /* STOP, or the trainer's end */
    while (!rc && sock_recv(s, &m, clock_deadline(SECONDS)) == SOCK_OK)
        ;
    zmq_msg_close(&m);
    sock_close(&s, 1000);
    return rc;
}
