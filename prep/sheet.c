/* sheet: draws a row per class, its name in a built-in 3×5 font and then its images, as an RGB
 * picture in memory, which libpng encodes and file_publish writes. */
#include "prep/sheet.h"

#include <ctype.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "lib/file.h"
#include "lib/log.h"

enum { COLUMNS = 10, CELL = 64, GAP = 4, DOT = 2, GLYPH_W = 4 * DOT, GLYPH_H = 5 * DOT };

/* Five octal digits a glyph, top row first; in a digit the high bit is the left dot. */
static const uint16_t digits[10] = {075557, 026227, 071747, 071717, 055711,
                                    074717, 074757, 071122, 075757, 075717};
static const uint16_t letters[26] = {025755, 065656, 034443, 065556, 074647, 074644, 034553,
                                     055755, 072227, 011152, 055655, 044447, 057755, 065555,
                                     025552, 065644, 025563, 065655, 034216, 072222, 055557,
                                     055522, 055775, 055255, 055222, 071247};

struct picture {
    uint8_t *rgb; /* (h,w,3) */
    size_t h, w;
};

static uint16_t glyph_of(char text) {
    unsigned char k = (unsigned char)text;
    if (isdigit(k))
        return digits[k - '0'];
    if (isalpha(k))
        return letters[toupper(k) - 'A'];
    return k == ' ' ? 0 : k == '_' ? 07 : 0700; /* anything else is a dash */
}

static void draw_text(struct picture *p, size_t top, size_t left, const char *text) {
    for (; *text; text++, left += GLYPH_W) {
        uint16_t glyph = glyph_of(*text);
        for (size_t y = 0; y < GLYPH_H; y++)
            for (size_t x = 0; x < 3 * DOT; x++)
                if (glyph >> (14 - y / DOT * 3 - x / DOT) & 1)
                    memset(p->rgb + ((top + y) * p->w + left + x) * 3, 0, 3);
    }
}

/* The image enlarged `grow` times, or every `thin`-th pixel of it. */
static void draw_image(struct picture *p, size_t top, size_t left, const uint8_t *image,
                       const struct store_geometry *g, size_t grow, size_t thin) {
    for (size_t y = 0; y < g->h / thin * grow; y++)
        for (size_t x = 0; x < g->w / thin * grow; x++) {
            const uint8_t *from = image + (y / grow * thin * g->w + x / grow * thin) * g->c;
            uint8_t *to = p->rgb + ((top + y) * p->w + left + x) * 3;
            for (size_t c = 0; c < 3; c++)
                to[c] = from[g->c >= 3 ? c : 0];
        }
}

static int publish(const struct picture *p, const char *path) {
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)p->w,
                       .height = (png_uint_32)p->h,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    void *bytes = malloc(size);
    int r = 0;
    if (!bytes)
        r = fail(SYSTEM_FAILED, "out of memory for the contact sheet");
    else if (!png_image_write_to_memory(&image, bytes, &size, 0, p->rgb, 0, NULL))
        r = fail(SYSTEM_FAILED, "cannot encode the contact sheet: %s", image.message);
    else
        r = file_publish(path, bytes, size, 0644);
    free(bytes);
    return r;
}

int sheet_write(const struct store *s, const char *path) {
    const struct store_geometry *g = &s->geometry;
    size_t side = g->h > g->w ? g->h : g->w;
    size_t thin = (side + CELL - 1) / CELL;
    size_t grow = side >= CELL ? 1 : CELL / side;
    size_t cell_h = (g->h + thin - 1) / thin * grow + GAP;
    size_t cell_w = (g->w + thin - 1) / thin * grow + GAP;
    size_t longest = 0;
    for (uint32_t k = 0; k < g->classes; k++)
        if (strlen(g->class_names[k]) > longest)
            longest = strlen(g->class_names[k]);
    if (cell_h < GLYPH_H + GAP)
        cell_h = GLYPH_H + GAP;
    size_t margin = longest * GLYPH_W + 2 * GAP;
    struct picture p = {.h = g->classes * cell_h + GAP, .w = margin + COLUMNS * cell_w};
    p.rgb = malloc(p.h * p.w * 3);
    if (!p.rgb)
        return fail(SYSTEM_FAILED, "out of memory for the contact sheet");
    memset(p.rgb, 255, p.h * p.w * 3);

    size_t drawn[STORE_CLASSES_MAX] = {0};
    for (uint32_t k = 0; k < g->classes; k++)
        draw_text(&p, GAP + k * cell_h + (cell_h - GAP - GLYPH_H) / 2, GAP, g->class_names[k]);
    for (size_t n = 0; n < g->n_train; n++) {
        uint16_t k = s->train_labels[n];
        if (k >= g->classes || drawn[k] == COLUMNS)
            continue;
        draw_image(&p, GAP + k * cell_h, margin + drawn[k]++ * cell_w,
                   s->train_images + n * g->h * g->w * g->c, g, grow, thin);
    }
    int r = publish(&p, path);
    free(p.rgb);
    return r;
}
