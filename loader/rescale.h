/* rescale: brings images uint8 (H,W,C) to another size, as PyTorch's
 * interpolate(mode="bilinear", antialias=True, align_corners=False) does, rounded to the nearest
 * value (halves up): separable, a triangle filter widened by the scale where the image shrinks. */
#ifndef DDPIPE_LOADER_RESCALE_H
#define DDPIPE_LOADER_RESCALE_H

#include <stddef.h>
#include <stdint.h>

#include "loader/geometry.h"

struct rescale;

int rescale_open(struct rescale **r, const struct geometry *from, uint32_t h, uint32_t w);

/* Floats of scratch that one call needs; each thread brings its own. */
size_t rescale_scratch(const struct rescale *r);

/* in: the size given at open; out: (h, w, c). */
void rescale_image(const struct rescale *r, const uint8_t *in, uint8_t *out, float *scratch);

void rescale_close(struct rescale **r);

#endif
