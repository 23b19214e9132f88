/* Proves that brightness, contrast and saturation give PyTorch's values, to the last digit. The
 * expected ones were computed by torch 1.13 with torchvision's formulas for uint8 images. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "loader/colour.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

typedef void change(uint8_t *, size_t, uint32_t, double);

static const uint8_t image[18] = {11,  112, 213, 48,  149, 250, 85,  186, 31,
                                  122, 223, 68,  164, 9,   110, 216, 61,  162};

static void expect(change *f, uint32_t c, double ratio, const uint8_t wanted[18]) {
    uint8_t out[18];
    memcpy(out, image, sizeof out);
    f(out, sizeof out / c, c, ratio);
    assert_memory_equal(out, wanted, sizeof out);
}

static void values_are_pytorchs(void **state) {
    (void)state;
    static const uint8_t bright[18] = {13,  134, 255, 57,  178, 255, 102, 223, 37,
                                       146, 255, 81,  196, 10,  132, 255, 73,  194};
    static const uint8_t dull[18] = {32,  113, 194, 62,  143, 224, 92,  172, 48,
                                     121, 202, 78,  155, 31,  112, 196, 72,  153};
    static const uint8_t vivid[18] = {0,   115, 237, 31,  152, 255, 74,  195, 9,
                                      111, 232, 46,  183, 0,   118, 235, 49,  170};
    expect(colour_brightness, 3, 1.2, bright);
    expect(colour_contrast, 3, 0.8, dull);
    expect(colour_saturation, 3, 1.2, vivid);
    uint8_t grey[6] = {11, 48, 85, 122, 164, 216};
    static const uint8_t sharp[6] = {0, 36, 80, 124, 175, 237};
    colour_contrast(grey, 6, 1, 1.2);
    assert_memory_equal(grey, sharp, 6);
}

static void a_ratio_of_one_changes_nothing(void **state) {
    (void)state;
    expect(colour_brightness, 3, 1, image);
    expect(colour_contrast, 3, 1, image);
    expect(colour_saturation, 3, 1, image);
    expect(colour_saturation, 1, 0.5, image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_pytorchs),
        cmocka_unit_test(a_ratio_of_one_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
