/* augment: draws the numbers of a recipe for one image and applies its steps.
 * The numbers of an image are those of the stream (seed, RNG_AUGMENT, epoch, index) in the order in
 * which the steps are listed in the header; adding a step at the end changes none before it. */
#include "loader/augment.h"

#include <string.h>

#include "lib/log.h"
#include "lib/rng.h"
#include "loader/colour.h"

enum { STANDARD_PAD = 4, SPEED_PAD = 2 };
static const double degrees_max = 10, scale_range = 0.2, jitter_range = 0.2;

static const char *const names[] = {"none", "standard", "course", "speed"};

const char *augment_name(enum augment_kind kind) {
    return names[kind];
}

enum augment_kind augment_kind_of(const char *name) {
    enum augment_kind kind = AUGMENT_NONE;
    for (enum augment_kind k = AUGMENT_NONE; k <= AUGMENT_SPEED; k++)
        if (strcmp(name, names[k]) == 0)
            kind = k;
    return kind;
}

int augment_check(const struct augment *a) {
    uint32_t side = a->size.h < a->size.w ? a->size.h : a->size.w;
    if (a->kind == AUGMENT_SPEED && side <= SPEED_PAD)
        return fail(BAD_USAGE,
                    "--augment speed: images of %u×%u cannot be padded by %d reflected "
                    "pixels",
                    a->size.h, a->size.w, SPEED_PAD);
    if (a->kind == AUGMENT_COURSE && a->size.c != 1 && a->size.c != 3)
        return fail(BAD_USAGE, "--augment course: images have %u channels, 1 or 3 are wanted",
                    a->size.c);
    if (a->cutout > side)
        return fail(BAD_USAGE, "--cutout %u: larger than images of %u×%u", a->cutout, a->size.h,
                    a->size.w);
    return 0;
}

/* centre ± range, evenly. */
static double around(struct rng *r, double centre, double range) {
    return centre + range * (2 * (double)rng_uniform(r) - 1);
}

static int shift_by(struct rng *r, int pad) {
    return (int)rng_below(r, (uint32_t)(2 * pad + 1)) - pad;
}

static bool flips_alternately(const struct augment *a, uint32_t epoch, uint32_t index) {
    struct rng r = rng_at(a->seed, RNG_FLIP, 0, index);
    return (rng_u32(&r) & 1) != ((epoch - 1) & 1);
}

static void jitter(const struct augment *a, struct rng *r, uint8_t *image) {
    static void (*const steps[])(uint8_t *, size_t, uint32_t,
                                 double) = {colour_brightness, colour_contrast, colour_saturation};
    static const uint8_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const uint8_t *order = orders[rng_below(r, 6)];
    double ratio[3];
    for (int i = 0; i < 3; i++)
        ratio[i] = around(r, 1, jitter_range);
    for (int i = 0; i < 3; i++)
        steps[order[i]](image, (size_t)a->size.h * a->size.w, a->size.c, ratio[order[i]]);
}

static void course(const struct augment *a, struct rng *r, const uint8_t *in, uint8_t *out,
                   uint8_t *scratch) {
    geometry_shift(&a->size, in, out, 0, 0, rng_u32(r) & 1, GEOMETRY_ZERO);
    struct geometry_map map = geometry_rotation(around(r, 0, degrees_max));
    geometry_warp(&a->size, out, scratch, &map);
    double scale = around(r, 1, scale_range);
    map = geometry_scale_shear(scale, around(r, 0, degrees_max));
    geometry_warp(&a->size, scratch, out, &map);
    jitter(a, r, out);
}

void augment_image(const struct augment *a, uint32_t epoch, uint32_t index, const uint8_t *in,
                   uint8_t *out, uint8_t *scratch) {
    struct rng r = rng_at(a->seed, RNG_AUGMENT, epoch, index);
    int dy, dx;
    switch (a->kind) {
    case AUGMENT_NONE: memcpy(out, in, geometry_bytes(&a->size)); break;
    case AUGMENT_STANDARD:
        dy = shift_by(&r, STANDARD_PAD);
        dx = shift_by(&r, STANDARD_PAD);
        geometry_shift(&a->size, in, out, dy, dx, rng_u32(&r) & 1, GEOMETRY_ZERO);
        break;
    case AUGMENT_COURSE: course(a, &r, in, out, scratch); break;
    case AUGMENT_SPEED:
        dy = shift_by(&r, SPEED_PAD);
        dx = shift_by(&r, SPEED_PAD);
        geometry_shift(&a->size, in, out, dy, dx, flips_alternately(a, epoch, index),
                       GEOMETRY_REFLECT);
        break;
    }
    if (a->cutout > 0) {
        uint32_t y = rng_below(&r, a->size.h - a->cutout + 1);
        uint32_t x = rng_below(&r, a->size.w - a->cutout + 1);
        geometry_cut(&a->size, out, y, x, a->cutout, a->fill);
    }
}
