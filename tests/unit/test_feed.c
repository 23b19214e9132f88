/* Proves that a sample's pixels and label do not depend on who asks for them: not on batch size,
 * number of ranks or threads; and that what a trainer is told of the data is true. The store is a
 * struct in memory whose pixels carry their image's index. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/log.h"
#include "loader/feed.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

enum { N_TRAIN = 101, N_VAL = 23, SIDE = 8, IMAGE = SIDE * SIDE * 3 };

static uint8_t train_images[N_TRAIN * IMAGE], val_images[N_VAL * IMAGE];
static uint16_t train_labels[N_TRAIN], val_labels[N_VAL];
static struct store store = {
    .geometry = {.n_train = N_TRAIN, .n_val = N_VAL, .c = 3, .h = SIDE, .w = SIDE, .classes = 300},
    .mean = {0.25, 0.5, 0.75},
    .std = {0.1, 0.2, 0.3},
    .train_images = train_images,
    .val_images = val_images,
    .train_labels = train_labels,
    .val_labels = val_labels,
};

static int fill_store(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof train_images; i++)
        train_images[i] = (uint8_t)(i / IMAGE + i * 31 % 97 + 1);
    for (size_t i = 0; i < sizeof val_images; i++)
        val_images[i] = (uint8_t)(i / IMAGE + 200);
    for (uint16_t i = 0; i < N_TRAIN; i++)
        train_labels[i] = (uint16_t)(i + 150);
    for (uint16_t i = 0; i < N_VAL; i++)
        val_labels[i] = (uint16_t)(i + 10);
    memset(store.digest, 'd', 64);
    store.patch_mean[3] = 0.5;
    store.patch_moment[2][1] = 0.25;
    return 0;
}

static struct feed_settings standard(void) {
    return (struct feed_settings){.world_size = 1,
                                  .batch_size = 16,
                                  .val_batch_size = 16,
                                  .shuffle = true,
                                  .augment = AUGMENT_STANDARD,
                                  .seed = 7,
                                  .threads = 1};
}

/* Every image of an epoch's phase, filed under its index (which its label tells). */
static void collect(const struct feed_settings *set, enum batch_phase phase, uint32_t epoch,
                    uint32_t side, uint8_t *images) {
    struct feed *f;
    assert_int_equal(feed_open(&f, &store, set), 0);
    const struct batch_hello *h = feed_hello(f);
    uint32_t steps = phase == BATCH_TRAIN ? h->train_steps : h->val_steps;
    for (uint32_t step = 1; step <= steps; step++) {
        zmq_msg_t m;
        struct batch_message b;
        assert_int_equal(feed_batch(f, phase, epoch, step, &m), 0);
        assert_int_equal(batch_read(&m, &b), 0);
        assert_int_equal(b.batch.phase, phase);
        assert_int_equal(b.batch.epoch, epoch);
        assert_int_equal(b.batch.step, step);
        assert_int_equal(b.batch.h, side);
        assert_int_equal(b.batch.w, side);
        size_t bytes = (size_t)side * side * 3;
        for (uint32_t i = 0; i < b.batch.count; i++) {
            uint32_t index = batch_label(b.batch.labels, i) - (phase == BATCH_TRAIN ? 150u : 10u);
            memcpy(images + index * bytes, b.batch.pixels + i * bytes, bytes);
        }
        zmq_msg_close(&m);
    }
    feed_close(&f);
    assert_null(f);
}

static void collect_over_ranks(struct feed_settings set, uint32_t world, uint32_t epoch,
                               uint32_t side, uint8_t *images) {
    set.world_size = world;
    for (set.rank = 0; set.rank < world; set.rank++)
        collect(&set, BATCH_TRAIN, epoch, side, images);
}

/* Whatever the way to it, image for image the same bytes. */
static void pixels_do_not_depend_on_who_asks(void **state) {
    (void)state;
    static uint8_t once[sizeof train_images], again[sizeof train_images];
    for (enum augment_kind k = AUGMENT_NONE; k <= AUGMENT_SPEED; k++) {
        struct feed_settings set = standard();
        set.augment = k;
        set.cutout = 2;
        collect(&set, BATCH_TRAIN, 2, SIDE, once);
        for (uint32_t world = 1; world <= 5; world += 2)
            for (uint32_t batch = 1; batch <= 17; batch += 8) {
                memset(again, 0, sizeof again);
                set.batch_size = batch;
                set.threads = (int)world + 1;
                collect_over_ranks(set, world, 2, SIDE, again);
                assert_memory_equal(once, again, sizeof once);
            }
        collect_over_ranks(set, 1, 3, SIDE, again);
        assert_memory_not_equal(once, again, sizeof once);
    }
}

static void validation_images_are_those_of_the_store(void **state) {
    (void)state;
    static uint8_t images[sizeof val_images];
    struct feed_settings set = standard();
    set.resize = 6;
    set.resize_epochs = 9;
    collect(&set, BATCH_VAL, 1, SIDE, images);
    assert_memory_equal(images, val_images, sizeof images);
}

/* In the first epochs only, larger or smaller, by any number of threads. */
static void training_images_are_resized_in_the_first_epochs(void **state) {
    (void)state;
    static uint8_t once[N_TRAIN * 3 * 12 * 12], again[sizeof once];
    struct feed_settings set = standard();
    for (set.resize = 6; set.resize <= 12; set.resize += 6) {
        set.resize_epochs = 2;
        set.threads = 1;
        collect(&set, BATCH_TRAIN, 2, set.resize, once);
        set.threads = 3;
        collect(&set, BATCH_TRAIN, 2, set.resize, again);
        assert_memory_equal(once, again, N_TRAIN * 3 * set.resize * set.resize);
        collect(&set, BATCH_TRAIN, 3, SIDE, once);
    }
}

static void hello_tells_the_truth(void **state) {
    (void)state;
    struct feed *f;
    struct feed_settings set = standard();
    set.rank = 2;
    set.world_size = 3;
    set.limit_train = 100;
    set.limit_val = 1000;
    set.resize = 12;
    set.resize_epochs = 1;
    set.augment = AUGMENT_SPEED;
    set.cutout = 5;
    assert_int_equal(feed_open(&f, &store, &set), 0);
    const struct batch_hello *h = feed_hello(f);
    assert_int_equal(h->n_train, 100);
    assert_int_equal(h->n_val, N_VAL);
    assert_int_equal(h->c, 3);
    assert_int_equal(h->h, 12);
    assert_int_equal(h->w, 12);
    assert_int_equal(h->classes, 300);
    assert_int_equal(h->rank, 2);
    assert_int_equal(h->world_size, 3);
    assert_int_equal(h->train_steps, 3); /* ceil(100/3) = 34 = 16 + 16 + 2 */
    assert_int_equal(h->val_steps, 1);   /* 23 over 3 ranks: 8, 8, 7 */
    assert_int_equal(h->seed, 7);
    assert_string_equal(h->digest, store.digest);
    assert_memory_equal(h->mean, store.mean, sizeof h->mean);
    assert_memory_equal(h->std, store.std, sizeof h->std);
    assert_memory_equal(h->patch_mean, store.patch_mean, sizeof h->patch_mean);
    assert_memory_equal(h->patch_moment, store.patch_moment, sizeof h->patch_moment);
    assert_string_equal(h->augment, "augment=speed cutout=5 shuffle=yes drop_last=no small=12 "
                                    "small_epochs=1");
    feed_close(&f);
}

static void refuses(struct feed_settings set) {
    struct feed *f;
    assert_int_equal(feed_open(&f, &store, &set), BAD_USAGE);
    assert_null(f);
}

static void contradictions_are_refused(void **state) {
    (void)state;
    struct feed_settings set = standard();
    set.batch_size = 51;
    set.world_size = 2; /* shards of ceil(101/2) = 51 */
    struct feed *f;
    assert_int_equal(feed_open(&f, &store, &set), 0);
    feed_close(&f);
    set.drop_last = true; /* of floor(101/2) = 50 */
    refuses(set);
    set = standard();
    set.batch_size = N_TRAIN + 1;
    refuses(set);
    set = standard();
    set.resize = 6;
    refuses(set);
    set = standard();
    set.resize_epochs = 1;
    refuses(set);
    set = standard();
    set.cutout = 7;
    set.resize = 6;
    set.resize_epochs = 1;
    refuses(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_do_not_depend_on_who_asks),
        cmocka_unit_test(validation_images_are_those_of_the_store),
        cmocka_unit_test(training_images_are_resized_in_the_first_epochs),
        cmocka_unit_test(hello_tells_the_truth),
        cmocka_unit_test(contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, fill_store, NULL);
}
