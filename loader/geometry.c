/* geometry: crops, flips, holes and affine maps of small images.
 *
 * Crops and flips copy rows as bytes and never compute a pixel's value: they are exact. The
 * affine maps' matrices are those of torchvision's _get_inverse_affine_matrix (functional.py),
 * whose nearest interpolation rounds half to even, as grid_sample does. */
#include "loader/geometry.h"

#include <math.h>
#include <string.h>

size_t geometry_bytes(const struct geometry *g) {
    return (size_t)g->c * g->h * g->w;
}

/* Pixel i of a line of n, folded back at both ends. */
static int64_t reflect(int64_t i, int64_t n) {
    if (i < 0)
        i = -i;
    return i < n ? i : 2 * (n - 1) - i;
}

static void mirror_pixels(uint8_t *out, const uint8_t *in, size_t count, size_t c) {
    if (c == 3) { /* known to the compiler, so that it unrolls */
        for (size_t x = 0; x < count; x++)
            for (size_t k = 0; k < 3; k++)
                out[(count - 1 - x) * 3 + k] = in[x * 3 + k];
        return;
    }
    for (size_t x = 0; x < count; x++)
        for (size_t k = 0; k < c; k++)
            out[(count - 1 - x) * c + k] = in[x * c + k];
}

/* One row: the pixels that are inside in one copy, those outside one by one. */
static void shift_row(const struct geometry *g, const uint8_t *in, uint8_t *out, int64_t dx,
                      bool mirror, enum geometry_border border) {
    int64_t w = g->w, c = g->c;
    int64_t from = dx < 0 ? -dx : 0, to = dx > 0 ? w - dx : w; /* of x, inside */
    from = from > w ? w : from;
    to = to < from ? from : to;
    size_t inside = (size_t)(to - from);
    if (inside > 0 && mirror)
        mirror_pixels(out + (w - to) * c, in + (from + dx) * c, inside, g->c);
    else if (inside > 0)
        memcpy(out + from * c, in + (from + dx) * c, inside * g->c);
    for (int64_t x = 0; x < w; x++) {
        if (x == from)
            x = to;
        if (x >= w)
            break;
        uint8_t *pixel = out + (mirror ? w - 1 - x : x) * c;
        if (border == GEOMETRY_REFLECT)
            memcpy(pixel, in + reflect(x + dx, w) * c, g->c);
        else
            memset(pixel, 0, g->c);
    }
}

void geometry_shift(const struct geometry *g, const uint8_t *in, uint8_t *out, int dy, int dx,
                    bool mirror, enum geometry_border border) {
    size_t row = (size_t)g->w * g->c;
    for (int64_t y = 0; y < g->h; y++) {
        int64_t from = border == GEOMETRY_REFLECT ? reflect(y + dy, g->h) : y + dy;
        if (from >= 0 && from < g->h)
            shift_row(g, in + (size_t)from * row, out + (size_t)y * row, dx, mirror, border);
        else
            memset(out + (size_t)y * row, 0, row);
    }
}

void geometry_cut(const struct geometry *g, uint8_t *image, uint32_t y, uint32_t x, uint32_t side,
                  const uint8_t *colour) {
    for (size_t i = y; i < (size_t)y + side; i++)
        for (size_t j = x; j < (size_t)x + side; j++)
            memcpy(image + (i * g->w + j) * g->c, colour, g->c);
}

static double radians(double degrees) {
    return degrees * (3.14159265358979323846 / 180);
}

struct geometry_map geometry_rotation(double degrees) {
    double c = cos(radians(degrees)), s = sin(radians(degrees));
    return (struct geometry_map){.xx = c, .xy = -s, .yx = s, .yy = c};
}

struct geometry_map geometry_scale_shear(double scale, double shear) {
    return (struct geometry_map){
        .xx = 1 / scale, .xy = tan(radians(shear)) / scale, .yx = 0, .yy = 1 / scale};
}

void geometry_warp(const struct geometry *g, const uint8_t *in, uint8_t *out,
                   const struct geometry_map *map) {
    double cx = (g->w - 1) / 2.0, cy = (g->h - 1) / 2.0;
    size_t c = g->c;
    for (uint32_t y = 0; y < g->h; y++)
        for (uint32_t x = 0; x < g->w; x++, out += c) {
            double dx = x - cx, dy = y - cy;
            long from_x = lrint(map->xx * dx + map->xy * dy + cx);
            long from_y = lrint(map->yx * dx + map->yy * dy + cy);
            if (from_x >= 0 && from_x < (long)g->w && from_y >= 0 && from_y < (long)g->h)
                memcpy(out, in + ((size_t)from_y * g->w + (size_t)from_x) * c, c);
            else
                memset(out, 0, c);
        }
}
