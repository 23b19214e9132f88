/* Proves that fields are little-endian without padding, come back as they went in, and that nothing
 * is read or written past the end, whatever the bytes say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/pack.h"

#include <cmocka.h>

static const uint8_t expected[] = {
    0x12, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12, 8,    7, 6, 5, 4, 3, 2, 1, /* u8 u16 u32 u64 */
    0,    0,    0,    0,    0,    0,    0xf8, 0xbf,                      /* -1.5, IEEE 754 */
    'r',  'a',  'w',  2,    0,    'h',  'i',  0,    0, /* bytes, text, empty text */
};

static void write_all(struct pack *p) {
    pack_u8(p, 0x12);
    pack_u16(p, 0x1234);
    pack_u32(p, 0x12345678);
    pack_u64(p, 0x0102030405060708);
    pack_f64(p, -1.5);
    pack_bytes(p, "raw", 3);
    pack_text(p, "hi");
    pack_text(p, "");
}

static void fields_lie_as_documented(void **state) {
    (void)state;
    uint8_t bytes[sizeof expected + 1];
    struct pack p = pack_open(bytes, sizeof bytes);
    write_all(&p);
    assert_false(p.failed);
    assert_int_equal(p.at, sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
}

static void fields_come_back(void **state) {
    (void)state;
    char raw[3], text[3], empty[1];
    struct pack p = unpack_open(expected, sizeof expected);
    assert_int_equal(unpack_u8(&p), 0x12);
    assert_int_equal(unpack_u16(&p), 0x1234);
    assert_int_equal(unpack_u32(&p), 0x12345678);
    assert_true(unpack_u64(&p) == 0x0102030405060708);
    double v = unpack_f64(&p);
    assert_true(v >= -1.5 && v <= -1.5);
    unpack_bytes(&p, raw, 3);
    assert_memory_equal(raw, "raw", 3);
    unpack_text(&p, text, sizeof text);
    assert_string_equal(text, "hi");
    assert_false(unpack_done(&p));
    unpack_text(&p, empty, sizeof empty);
    assert_string_equal(empty, "");
    assert_true(unpack_done(&p));
}

static void a_nan_keeps_its_bits(void **state) {
    (void)state;
    uint8_t bytes[8];
    struct pack p = pack_open(bytes, sizeof bytes);
    pack_f64(&p, NAN);
    p = unpack_open(bytes, sizeof bytes);
    assert_true(isnan(unpack_f64(&p)));
}

/* Into memory of exactly the size, so that a sanitizer sees any overrun. */
static void what_does_not_fit_is_marked_and_not_written(void **state) {
    (void)state;
    for (size_t size = 0; size < sizeof expected; size++) {
        uint8_t *bytes = malloc(size + !size);
        assert_non_null(bytes);
        struct pack p = pack_open(bytes, size);
        write_all(&p);
        assert_true(p.failed);
        assert_true(p.at <= size);
        assert_memory_equal(bytes, expected, p.at);
        free(bytes);
    }
}

static void what_is_cut_short_reads_as_zero_and_is_marked(void **state) {
    (void)state;
    for (size_t size = 0; size < sizeof expected; size++) {
        uint8_t *bytes = malloc(size + !size);
        char raw[3], text[3];
        assert_non_null(bytes);
        memcpy(bytes, expected, size);
        struct pack p = unpack_open(bytes, size);
        unpack_u8(&p);
        unpack_u16(&p);
        uint32_t v = unpack_u32(&p);
        assert_int_equal(v, size < 7 ? 0 : 0x12345678);
        unpack_u64(&p);
        unpack_f64(&p);
        unpack_bytes(&p, raw, 3);
        unpack_text(&p, text, sizeof text);
        assert_true(memchr(text, 0, sizeof text) != NULL);
        unpack_text(&p, text, sizeof text);
        assert_true(p.failed);
        assert_false(unpack_done(&p));
        free(bytes);
    }
}

/* After a failure a later field that would fit does not count: it is not where it belongs. */
static void a_failure_stays(void **state) {
    (void)state;
    uint8_t bytes[2] = {0};
    struct pack p = pack_open(bytes, sizeof bytes);
    pack_u32(&p, 1);
    pack_u8(&p, 1);
    assert_true(p.failed);
    assert_int_equal(bytes[0], 0);
    p = unpack_open("\1\1", 2);
    assert_int_equal(unpack_u32(&p), 0);
    assert_int_equal(unpack_u8(&p), 0);
    assert_false(unpack_done(&p));
}

static void texts_are_held_to_their_room(void **state) {
    (void)state;
    char text[4];
    struct pack p = unpack_open("\4\0long", 6);
    unpack_text(&p, text, sizeof text); /* no room for the NUL */
    assert_true(p.failed);
    assert_string_equal(text, "");
    p = unpack_open("\3\0a\0b", 5);
    unpack_text(&p, text, sizeof text); /* would read back as another text */
    assert_true(p.failed);
    p = unpack_open("\377\377ab", 4);
    unpack_text(&p, text, sizeof text);
    assert_true(p.failed);
    char *huge = malloc(65537);
    uint8_t *bytes = malloc(70000);
    assert_true(huge && bytes);
    memset(huge, 'x', 65536);
    huge[65536] = '\0';
    p = pack_open(bytes, 70000);
    pack_text(&p, huge);
    assert_true(p.failed);
    free(huge);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_lie_as_documented),
        cmocka_unit_test(fields_come_back),
        cmocka_unit_test(a_nan_keeps_its_bits),
        cmocka_unit_test(what_does_not_fit_is_marked_and_not_written),
        cmocka_unit_test(what_is_cut_short_reads_as_zero_and_is_marked),
        cmocka_unit_test(a_failure_stays),
        cmocka_unit_test(texts_are_held_to_their_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
