/* geometry: moves pixels of an image, uint8 (H,W,C), out of place. in and out never overlap. */
#ifndef DDPIPE_LOADER_GEOMETRY_H
#define DDPIPE_LOADER_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct geometry {
    uint32_t c, h, w;
};

/* What lies outside an image: zeros, or its mirror image around the border pixels, which are not
 * repeated (PyTorch's padding_mode "reflect"; a shift stays below the side). */
enum geometry_border { GEOMETRY_ZERO, GEOMETRY_REFLECT };

size_t geometry_bytes(const struct geometry *g);

/* out(y, x) = in(y + dy, x + dx): a crop out of the padded image; then, if mirror, left and right
 * are swapped. Any shift; exact. */
void geometry_shift(const struct geometry *g, const uint8_t *in, uint8_t *out, int dy, int dx,
                    bool mirror, enum geometry_border border);

/* Fills the side×side square with its corner at (y, x), which lies inside, with colour[c]. */
void geometry_cut(const struct geometry *g, uint8_t *image, uint32_t y, uint32_t x, uint32_t side,
                  const uint8_t *colour);

/* Where an output pixel comes from, both measured from the centre of the image:
 * x_in = xx·x + xy·y, y_in = yx·x + yy·y. */
struct geometry_map {
    double xx, xy, yx, yy;
};

/* Counter-clockwise by degrees: torchvision.transforms.functional.rotate. */
struct geometry_map geometry_rotation(double degrees);

/* torchvision.transforms.functional.affine without rotation and translation: scaled, and sheared
 * along x by shear degrees. */
struct geometry_map geometry_scale_shear(double scale, double shear);

/* Nearest pixel, zeros outside. */
void geometry_warp(const struct geometry *g, const uint8_t *in, uint8_t *out,
                   const struct geometry_map *map);

#endif
