/* resize: images to another size, smoothed where they shrink. */
#ifndef DDPIPE_RESIZE_H
#define DDPIPE_RESIZE_H

#include <stdint.h>

/* from (from_h,from_w,3) to (h,w,3), uint8. Separable triangle filter around output centre
 * (i + 1/2) · scale, of half-width max(scale, 1), weights normalised, float32 in between, rounded
 * to nearest: the "antialiased bilinear" of Pillow and torchvision. SYSTEM_FAILED without memory.
 */
int resize_rgb(const uint8_t *from, uint32_t from_h, uint32_t from_w, uint8_t *to, uint32_t h,
               uint32_t w);

#endif
