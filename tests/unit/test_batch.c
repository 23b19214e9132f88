/* Proves that every message of the loader's protocol survives the wire field by field, and that no
 * cut, lengthened or damaged message, and none that contradicts itself, is taken for a good one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/batch.h"
#include "lib/log.h"

/* Last: it has a macro of the name fail(). */
#include <cmocka.h>

static struct batch_hello sample_hello(void) {
    struct batch_hello h = {.n_train = 50000,
                            .n_val = 10000,
                            .c = 3,
                            .h = 32,
                            .w = 31,
                            .classes = 10,
                            .rank = 3,
                            .world_size = 5,
                            .batch_size = 64,
                            .val_batch_size = 65,
                            .train_steps = 157,
                            .val_steps = 32,
                            .seed = 0x0123456789abcdef,
                            .augment = "augment=standard"};
    memset(h.digest, 'a', 64);
    for (int i = 0; i < 4; i++) {
        h.mean[i] = 0.1 * i;
        h.std[i] = 0.2 * i;
    }
    for (int i = 0; i < BATCH_PATCH; i++) {
        h.patch_mean[i] = 0.01 * i;
        for (int j = 0; j < BATCH_PATCH; j++)
            h.patch_moment[i][j] = 0.01 * i + j;
    }
    return h;
}

enum { COUNT = 3, C = 3, H = 2, W = 5, IMAGE = C * H * W };
static const struct batch sample_batch = {
    .phase = BATCH_VAL, .epoch = 7, .step = 11, .count = COUNT, .c = C, .h = H, .w = W};

static void write_sample(zmq_msg_t *m) {
    uint8_t *pixels, *labels;
    assert_int_equal(batch_write(m, &sample_batch, &pixels, &labels), 0);
    for (int i = 0; i < COUNT * IMAGE; i++)
        pixels[i] = (uint8_t)(200 + i);
    for (uint32_t i = 0; i < COUNT; i++)
        batch_set_label(labels, i, (uint16_t)(300 * i));
}

/* The bytes stand in memory of exactly their size, so that a sanitizer sees any overread. */
static int read_copy(const void *bytes, size_t size, struct batch_message *out) {
    zmq_msg_t m;
    assert_int_equal(zmq_msg_init_size(&m, size), 0);
    if (size)
        memcpy(zmq_msg_data(&m), bytes, size);
    int code = batch_read(&m, out);
    zmq_msg_close(&m);
    return code;
}

static void hello_survives(void **state) {
    (void)state;
    zmq_msg_t m;
    struct batch_hello h = sample_hello();
    struct batch_message out;
    assert_int_equal(batch_write_hello(&m, &h), 0);
    assert_int_equal(batch_read(&m, &out), 0);
    assert_int_equal(out.kind, BATCH_HELLO);
    assert_memory_equal(&out.hello, &h, sizeof h);
    zmq_msg_close(&m);
}

static void batch_survives(void **state) {
    (void)state;
    zmq_msg_t m;
    struct batch_message out;
    write_sample(&m);
    assert_int_equal(zmq_msg_size(&m), BATCH_HEADER_SIZE + COUNT * (IMAGE + 2));
    assert_int_equal(batch_read(&m, &out), 0);
    assert_int_equal(out.kind, BATCH_BATCH);
    assert_int_equal(out.batch.phase, BATCH_VAL);
    assert_int_equal(out.batch.epoch, 7);
    assert_int_equal(out.batch.step, 11);
    assert_int_equal(out.batch.count, COUNT);
    assert_int_equal(out.batch.c, C);
    assert_int_equal(out.batch.h, H);
    assert_int_equal(out.batch.w, W);
    for (int i = 0; i < COUNT * IMAGE; i++)
        assert_int_equal(out.batch.pixels[i], (uint8_t)(200 + i));
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(batch_label(out.batch.labels, i), 300 * i);
    zmq_msg_close(&m);
}

static void short_messages_survive(void **state) {
    (void)state;
    zmq_msg_t m;
    struct batch_message out;
    assert_int_equal(batch_write_credit(&m, 17), 0);
    assert_int_equal(batch_read(&m, &out), 0);
    assert_int_equal(out.kind, BATCH_CREDIT);
    assert_int_equal(out.credits, 17);
    zmq_msg_close(&m);
    assert_int_equal(batch_write_end(&m, BATCH_VAL, 9), 0);
    assert_int_equal(batch_read(&m, &out), 0);
    assert_int_equal(out.kind, BATCH_END);
    assert_int_equal(out.batch.phase, BATCH_VAL);
    assert_int_equal(out.batch.epoch, 9);
    zmq_msg_close(&m);
    assert_int_equal(batch_write_stop(&m), 0);
    assert_int_equal(batch_read(&m, &out), 0);
    assert_int_equal(out.kind, BATCH_STOP);
    zmq_msg_close(&m);
}

/* One of each kind, in order. */
static void write_any(zmq_msg_t *m, enum batch_kind kind) {
    struct batch_hello h = sample_hello();
    switch (kind) {
    case BATCH_CREDIT: assert_int_equal(batch_write_credit(m, 2), 0); break;
    case BATCH_HELLO: assert_int_equal(batch_write_hello(m, &h), 0); break;
    case BATCH_BATCH: write_sample(m); break;
    case BATCH_END: assert_int_equal(batch_write_end(m, BATCH_TRAIN, 1), 0); break;
    case BATCH_STOP: assert_int_equal(batch_write_stop(m), 0); break;
    }
}

static void every_other_length_is_refused(void **state) {
    (void)state;
    struct batch_message out;
    for (enum batch_kind kind = BATCH_CREDIT; kind <= BATCH_STOP; kind++) {
        zmq_msg_t m;
        write_any(&m, kind);
        size_t size = zmq_msg_size(&m);
        uint8_t *longer = calloc(1, size + 1);
        assert_non_null(longer);
        memcpy(longer, zmq_msg_data(&m), size);
        for (size_t cut = 0; cut < size; cut++)
            assert_int_equal(read_copy(longer, cut, &out), BAD_INPUT);
        assert_int_equal(read_copy(longer, size, &out), 0);
        assert_int_equal(read_copy(longer, size + 1, &out), BAD_INPUT);
        free(longer);
        zmq_msg_close(&m);
    }
}

/* Every single bit of every header, and of HELLO's body. */
static void every_flipped_bit_is_refused(void **state) {
    (void)state;
    struct batch_message out;
    for (enum batch_kind kind = BATCH_CREDIT; kind <= BATCH_STOP; kind++) {
        zmq_msg_t m;
        write_any(&m, kind);
        uint8_t *bytes = zmq_msg_data(&m);
        size_t size = kind == BATCH_HELLO ? zmq_msg_size(&m) : BATCH_HEADER_SIZE;
        for (size_t bit = 0; bit < size * 8; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(batch_read(&m, &out), BAD_INPUT);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        assert_int_equal(batch_read(&m, &out), 0);
        zmq_msg_close(&m);
    }
}

/* Rightly sealed messages whose fields cannot be. */
static void contradictions_are_refused(void **state) {
    (void)state;
    zmq_msg_t m;
    struct batch_message out;
    uint8_t *pixels, *labels;
    struct batch wrong[] = {sample_batch, sample_batch};
    wrong[0].epoch = 0;
    wrong[1].step = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(batch_write(&m, &wrong[i], &pixels, &labels), 0);
        assert_int_equal(batch_read(&m, &out), BAD_INPUT);
        zmq_msg_close(&m);
    }
    struct batch_hello bad[6];
    for (int i = 0; i < 6; i++)
        bad[i] = sample_hello();
    bad[0].rank = bad[0].world_size;
    bad[1].classes = BATCH_CLASSES_MAX + 1;
    bad[2].c = 5;
    bad[3].batch_size = 0;
    bad[4].mean[2] = NAN;
    bad[5].patch_moment[11][11] = INFINITY;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(batch_write_hello(&m, &bad[i]), 0);
        assert_int_equal(batch_read(&m, &out), BAD_INPUT);
        zmq_msg_close(&m);
    }
}

/* Sizes that would overflow or vanish are refused before any memory is asked for. */
static void impossible_batches_are_not_made(void **state) {
    (void)state;
    zmq_msg_t m;
    uint8_t *pixels, *labels;
    struct batch b = sample_batch;
    b.count = 0;
    assert_int_equal(batch_write(&m, &b, &pixels, &labels), BAD_INPUT);
    b = sample_batch;
    b.c = b.h = b.w = UINT32_MAX;
    assert_int_equal(batch_write(&m, &b, &pixels, &labels), BAD_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_survives),
        cmocka_unit_test(batch_survives),
        cmocka_unit_test(short_messages_survive),
        cmocka_unit_test(every_other_length_is_refused),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(impossible_batches_are_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
