/* Proves that a metric record survives the wire field by field, and that no cut, lengthened or
 * damaged record, and no record that contradicts itself, is taken for a good one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "lib/metric.h"

#include <cmocka.h> /* last: it has a macro fail() */

static const struct metric sample = {
    .kind = METRIC_EPOCH,
    .rank = 3,
    .world_size = 5,
    .epoch = 2,
    .epochs = 7,
    .step = 11,
    .steps = 13,
    .phase = METRIC_VAL,
    .reason = METRIC_DONE,
    .images = 1ULL << 40,
    .seconds = 1.5,
    .start_seconds = 2.25,
    .loss_sum = -0.125,
    .correct = 17,
    .count = 19,
    .learning_rate = 0.1,
    .wait_seconds = 0.25,
    .compute_seconds = 0.5,
    .comm_seconds = 0.75,
    .hidden_seconds = 0.625,
    .host = "node-1",
};

/* The bytes stand in memory of exactly their size, so that a sanitizer sees any overread. */
static int read_copy(const uint8_t *bytes, size_t size, struct metric *m) {
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    int code = metric_read(copy, size, m);
    free(copy);
    return code;
}

static int read_changed(const struct metric *changed) {
    uint8_t bytes[METRIC_SIZE_MAX];
    struct metric m;
    return read_copy(bytes, metric_write(bytes, changed), &m);
}

static void every_field_survives(void **state) {
    (void)state;
    uint8_t bytes[METRIC_SIZE_MAX];
    struct metric m;
    assert_int_equal(read_copy(bytes, metric_write(bytes, &sample), &m), 0);
    assert_int_equal(m.kind, sample.kind);
    assert_int_equal(m.rank, sample.rank);
    assert_int_equal(m.world_size, sample.world_size);
    assert_int_equal(m.epoch, sample.epoch);
    assert_int_equal(m.epochs, sample.epochs);
    assert_int_equal(m.step, sample.step);
    assert_int_equal(m.steps, sample.steps);
    assert_int_equal(m.phase, sample.phase);
    assert_int_equal(m.reason, sample.reason);
    assert_true(m.images == sample.images && m.correct == 17 && m.count == 19);
    assert_true(m.seconds == 1.5 && m.start_seconds == 2.25 && m.loss_sum == -0.125);
    assert_true(m.learning_rate == 0.1 && m.wait_seconds == 0.25);
    assert_true(m.compute_seconds == 0.5 && m.comm_seconds == 0.75 && m.hidden_seconds == 0.625);
    assert_string_equal(m.host, sample.host);
}

static void every_length_but_one_is_refused(void **state) {
    (void)state;
    uint8_t bytes[METRIC_SIZE_MAX + 1] = {0};
    size_t size = metric_write(bytes, &sample);
    struct metric m;
    for (size_t n = 0; n <= size + 1; n++)
        if (n != size)
            assert_int_equal(read_copy(bytes, n, &m), BAD_INPUT);
}

/* A longer record whose length field agrees: only the count of fields can tell. */
static void trailing_bytes_are_refused(void **state) {
    (void)state;
    uint8_t bytes[METRIC_SIZE_MAX] = {0};
    size_t size = metric_write(bytes, &sample);
    struct metric m;
    bytes[8]++;
    assert_int_equal(read_copy(bytes, size + 1, &m), BAD_INPUT);
    bytes[8] = (uint8_t)(bytes[8] - 2);
    assert_int_equal(read_copy(bytes, size - 1, &m), BAD_INPUT);
}

static void every_flipped_header_byte_is_refused(void **state) {
    (void)state;
    uint8_t bytes[METRIC_SIZE_MAX];
    size_t size = metric_write(bytes, &sample);
    struct metric m;
    for (size_t i = 0; i < 12; i++) {
        bytes[i] ^= 0xff;
        assert_int_equal(read_copy(bytes, size, &m), BAD_INPUT);
        bytes[i] ^= 0xff;
    }
    assert_int_equal(read_copy(bytes, size, &m), 0);
}

static void contradictions_are_refused(void **state) {
    (void)state;
    struct metric m = sample;
    m.rank = m.world_size;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.correct = m.count + 1;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.epoch = 0;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.seconds = -1;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.start_seconds = INFINITY;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.comm_seconds = NAN;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.phase = (enum metric_phase)2;
    assert_int_equal(read_changed(&m), BAD_INPUT);
    m = sample;
    m.reason = (enum metric_reason)4;
    assert_int_equal(read_changed(&m), BAD_INPUT);
}

/* A diverged run must be able to say so. */
static void a_nan_loss_passes(void **state) {
    (void)state;
    struct metric m = sample;
    m.loss_sum = NAN;
    assert_int_equal(read_changed(&m), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_survives),
        cmocka_unit_test(every_length_but_one_is_refused),
        cmocka_unit_test(trailing_bytes_are_refused),
        cmocka_unit_test(every_flipped_header_byte_is_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(a_nan_loss_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
