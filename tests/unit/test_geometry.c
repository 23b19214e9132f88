/* Proves that crops and flips are exact, against a twin that asks for each pixel on its own, and
 * that affine maps move every pixel where PyTorch moves it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "loader/geometry.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

enum { SIDE = 9, BYTES = 4 * SIDE * SIDE, GUARD = 16 };

/* Pixels that carry their own index, and never 0. */
static void number(uint8_t *image, size_t count) {
    for (size_t i = 0; i < count; i++)
        image[i] = (uint8_t)(1 + i % 255);
}

/* What the pixel of the padded image is, asked of the image without padding. */
static uint8_t padded(const struct geometry *g, const uint8_t *in, int y, int x, uint32_t c,
                      enum geometry_border border) {
    int h = (int)g->h, w = (int)g->w;
    if (border == GEOMETRY_REFLECT) {
        y = y < 0 ? -y : y >= h ? 2 * h - 2 - y : y;
        x = x < 0 ? -x : x >= w ? 2 * w - 2 - x : x;
    }
    if (y < 0 || y >= h || x < 0 || x >= w)
        return 0;
    return in[((size_t)y * g->w + (size_t)x) * g->c + c];
}

static void compare(const struct geometry *g, int dy, int dx, bool mirror,
                    enum geometry_border border) {
    uint8_t in[BYTES], out[BYTES + GUARD];
    size_t bytes = geometry_bytes(g);
    number(in, bytes);
    memset(out, 0xEE, sizeof out);
    geometry_shift(g, in, out, dy, dx, mirror, border);
    const uint8_t *at = out;
    for (int y = 0; y < (int)g->h; y++)
        for (int x = 0; x < (int)g->w; x++)
            for (uint32_t c = 0; c < g->c; c++) {
                int from = mirror ? (int)g->w - 1 - x : x;
                assert_int_equal(*at++, padded(g, in, y + dy, from + dx, c, border));
            }
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(out[bytes + (size_t)i], 0xEE);
}

static void shifts_are_exact(void **state) {
    (void)state;
    static const struct geometry sizes[] = {{3, 9, 9}, {1, 5, 8}, {4, 7, 3}, {3, 4, 6}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int mirror = 0; mirror <= 1; mirror++) {
            /* Further than the image too: all of it is outside then. */
            for (int dy = -10; dy <= 10; dy++)
                for (int dx = -10; dx <= 10; dx++)
                    compare(&sizes[i], dy, dx, mirror, GEOMETRY_ZERO);
            for (int dy = -2; dy <= 2; dy++)
                for (int dx = -2; dx <= 2; dx++)
                    compare(&sizes[i], dy, dx, mirror, GEOMETRY_REFLECT);
        }
}

static void a_cut_fills_its_square_and_no_more(void **state) {
    (void)state;
    const struct geometry g = {3, 9, 8};
    uint8_t image[BYTES], before[BYTES];
    const uint8_t colour[4] = {7, 8, 9};
    number(image, geometry_bytes(&g));
    memcpy(before, image, sizeof image);
    geometry_cut(&g, image, 5, 3, 4, colour);
    for (size_t i = 0; i < geometry_bytes(&g); i++) {
        size_t c = i % 3, x = i / 3 % 8, y = i / 24;
        bool inside = y >= 5 && y < 9 && x >= 3 && x < 7;
        assert_int_equal(image[i], inside ? colour[c] : before[i]);
    }
}

static void no_rotation_and_no_scale_change_nothing(void **state) {
    (void)state;
    const struct geometry sizes[] = {{3, 8, 8}, {3, 9, 9}, {1, 8, 9}};
    const struct geometry_map maps[] = {geometry_rotation(0), geometry_scale_shear(1, 0)};
    uint8_t in[BYTES], out[BYTES];
    for (int i = 0; i < 3; i++)
        for (int m = 0; m < 2; m++) {
            number(in, geometry_bytes(&sizes[i]));
            geometry_warp(&sizes[i], in, out, &maps[m]);
            assert_memory_equal(in, out, geometry_bytes(&sizes[i]));
        }
}

/* By hand: counter-clockwise by 90°, the right column becomes the top row. */
static void a_quarter_turn_is_exact(void **state) {
    (void)state;
    const struct geometry g = {1, 3, 3};
    const struct geometry_map map = geometry_rotation(90);
    const uint8_t in[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, turned[] = {3, 6, 9, 2, 5, 8, 1, 4, 7};
    uint8_t out[9];
    geometry_warp(&g, in, out, &map);
    assert_memory_equal(out, turned, 9);
}

/* Where the pixels 1 … 42 of a 6×7 image go, by torch.nn.functional.grid_sample (1.13, nearest,
 * zeros, align_corners=False) on torchvision's _get_inverse_affine_matrix for rotate(30), for
 * affine(scale=0.8, shear=20) and for affine(scale=1.25, shear=-10). */
static void maps_move_pixels_as_pytorch_does(void **state) {
    (void)state;
    const struct geometry g = {1, 6, 7};
    static const uint8_t wanted[3][42] = {
        {0, 0,  4,  5,  13, 14, 0,  2,  3,  11, 12, 20, 20, 28, 9, 10, 17, 18, 26, 27, 35,
         8, 16, 17, 25, 26, 33, 34, 15, 23, 23, 31, 32, 40, 41, 0, 29, 30, 38, 39, 0,  0},
        {0, 0,  0,  0,  0,  0,  0, 0,  8,  9,  10, 12, 13, 14, 0, 15, 17, 18, 19, 20, 0,
         0, 23, 24, 25, 26, 28, 0, 29, 30, 31, 33, 34, 35, 0,  0, 0,  0,  0,  0,  0,  0},
        {2,  3,  4,  4,  5,  6,  7,  9,  10, 10, 11, 12, 13, 14, 16, 16, 17, 18, 19, 20, 20,
         23, 23, 24, 25, 26, 27, 27, 29, 30, 31, 32, 33, 33, 34, 29, 30, 31, 32, 32, 33, 34}};
    const struct geometry_map maps[] = {geometry_rotation(30), geometry_scale_shear(0.8, 20),
                                        geometry_scale_shear(1.25, -10)};
    uint8_t in[42], out[42];
    number(in, 42);
    for (int m = 0; m < 3; m++) {
        geometry_warp(&g, in, out, &maps[m]);
        assert_memory_equal(out, wanted[m], 42);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shifts_are_exact),
        cmocka_unit_test(a_cut_fills_its_square_and_no_more),
        cmocka_unit_test(no_rotation_and_no_scale_change_nothing),
        cmocka_unit_test(a_quarter_turn_is_exact),
        cmocka_unit_test(maps_move_pixels_as_pytorch_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
