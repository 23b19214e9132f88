/* colour: changes pixel values of an image, uint8 (count pixels, c), in place.
 *
 * The formulas are torchvision's (transforms/_functional_tensor.py, adjust_… of a uint8 image): in
 * float32, then cut off (not rounded) to 0..255. c is 1 or 3; ratio ≥ 0, and 1 changes nothing. */
#ifndef DDPIPE_LOADER_COLOUR_H
#define DDPIPE_LOADER_COLOUR_H

#include <stddef.h>
#include <stdint.h>

/* Every value times ratio. */
void colour_brightness(uint8_t *pixels, size_t count, uint32_t c, double ratio);

/* Away from, or to, the mean grey of the image. */
void colour_contrast(uint8_t *pixels, size_t count, uint32_t c, double ratio);

/* Away from, or to, each pixel's own grey. Nothing to do for c = 1. */
void colour_saturation(uint8_t *pixels, size_t count, uint32_t c, double ratio);

#endif
