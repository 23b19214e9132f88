/* test_resize: images brought to another size, against values worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include "lib/log.h"
#include "prep/resize.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

/* Proves: the same size changes nothing, and a constant stays itself at any size. */
static void test_identity_and_constant(void **state) {
    (void)state;
    uint8_t from[4 * 5 * 3], to[4 * 5 * 3], flat[7 * 9 * 3], out[3 * 11 * 3];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 37);
    assert_int_equal(resize_rgb(from, 4, 5, to, 4, 5), 0);
    assert_memory_equal(from, to, sizeof from);
    memset(flat, 201, sizeof flat);
    assert_int_equal(resize_rgb(flat, 7, 9, out, 3, 11), 0);
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(out[i], 201);
}

/* A row of four pixels to two: output 0 lies at input 1.0, half-width 2: the centres 0.5, 1.5, 2.5
 * weigh 3/4, 3/4, 1/4. Of (0, 70, 140, 210): (3·0 + 3·70 + 140)/7 = 50; from the right
 * (70 + 3·140 + 3·210)/7 = 160. Two pixels to four: 1/4 and 3/4 inside, the edge repeated. */
static void test_by_hand(void **state) {
    (void)state;
    const uint8_t four[12] = {0, 0, 0, 70, 70, 70, 140, 140, 140, 210, 210, 210};
    const uint8_t two[6] = {0, 40, 80, 200, 80, 40};
    const uint8_t halved[6] = {50, 50, 50, 160, 160, 160};
    const uint8_t doubled[12] = {0, 40, 80, 50, 50, 70, 150, 70, 50, 200, 80, 40};
    uint8_t out[12];
    assert_int_equal(resize_rgb(four, 1, 4, out, 1, 2), 0);
    assert_memory_equal(out, halved, 6);
    assert_int_equal(resize_rgb(four, 4, 1, out, 2, 1), 0);
    assert_memory_equal(out, halved, 6);
    assert_int_equal(resize_rgb(two, 1, 2, out, 1, 4), 0);
    assert_memory_equal(out, doubled, 12);
    assert_int_equal(resize_rgb(two, 2, 1, out, 4, 1), 0);
    assert_memory_equal(out, doubled, 12);
}

int main(void) {
    log_open("test_resize", -1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity_and_constant),
        cmocka_unit_test(test_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
