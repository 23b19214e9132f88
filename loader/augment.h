/* augment: a training image becomes one of its many likenesses, uint8 (H,W,C) to the same size.
 * Which one is a function of (seed, epoch, sample index) and nothing else.
 *
 *   none      the image
 *   standard  crop out of the image padded by 4 zeros, then flipped with p = ½
 *   course    flip p = ½; rotation ±10°; shear ±10° and scale 0.8 … 1.2; brightness, contrast and
 *             saturation 0.8 … 1.2 in random order (torchvision's RandomHorizontalFlip,
 *             RandomRotation(10), RandomAffine(0, shear=10, scale=(.8, 1.2)), ColorJitter(.2, .2,
 * .2)) speed     crop out of the image padded by 2 reflected pixels; flipped in the first epoch
 * with p = ½, and in every epoch from then on the other way round (airbench94, arXiv 2404.00498,
 * section 3.6) Then, if cutout > 0, a square of that side inside the image gets the mean colour. */
#ifndef DDPIPE_LOADER_AUGMENT_H
#define DDPIPE_LOADER_AUGMENT_H

#include <stdint.h>

#include "loader/geometry.h"

enum augment_kind { AUGMENT_NONE, AUGMENT_STANDARD, AUGMENT_COURSE, AUGMENT_SPEED };
#define AUGMENT_CHOICES "none|standard|course|speed" /* in the order of the enum */

struct augment {
    enum augment_kind kind;
    uint32_t cutout; /* side; 0: none */
    uint8_t fill[4]; /* colour of the hole */
    uint64_t seed;
    struct geometry size;
};

/* The word for a kind, and back (the word is one of AUGMENT_CHOICES). */
const char *augment_name(enum augment_kind kind);
enum augment_kind augment_kind_of(const char *name);

/* BAD_USAGE where the kind or the hole does not go with images of this size. */
int augment_check(const struct augment *a);

/* scratch: bytes of one image, which each thread brings. in, out, scratch do not overlap. */
void augment_image(const struct augment *a, uint32_t epoch, uint32_t index, const uint8_t *in,
                   uint8_t *out, uint8_t *scratch);

#endif
