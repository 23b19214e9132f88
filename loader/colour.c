/* colour: brightness, contrast and saturation as blends of an image with black, with its mean
 * grey, and with its greys. The first two give every value v a new one: a table of 256. */
#include "loader/colour.h"

static uint8_t blend(float ratio, float rest, float v, float with) {
    float mixed = ratio * v + rest * with;
    return (uint8_t)(mixed < 0 ? 0 : mixed > 255 ? 255 : mixed);
}

static uint8_t grey(const uint8_t *p) {
    return (uint8_t)(0.2989f * (float)p[0] + 0.587f * (float)p[1] + 0.114f * (float)p[2]);
}

static void blend_all(uint8_t *values, size_t count, double ratio, float with) {
    uint8_t table[256];
    for (int v = 0; v < 256; v++)
        table[v] = blend((float)ratio, (float)(1 - ratio), (float)v, with);
    for (size_t i = 0; i < count; i++)
        values[i] = table[values[i]];
}

void colour_brightness(uint8_t *pixels, size_t count, uint32_t c, double ratio) {
    blend_all(pixels, count * c, ratio, 0);
}

void colour_contrast(uint8_t *pixels, size_t count, uint32_t c, double ratio) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += c == 3 ? grey(pixels + i * 3) : pixels[i];
    blend_all(pixels, count * c, ratio, (float)((double)sum / (double)count));
}

void colour_saturation(uint8_t *pixels, size_t count, uint32_t c, double ratio) {
    if (c != 3)
        return;
    float r = (float)ratio, rest = (float)(1 - ratio);
    for (uint8_t *p = pixels; p < pixels + count * 3; p += 3) {
        float g = (float)grey(p);
        for (int k = 0; k < 3; k++)
            p[k] = blend(r, rest, (float)p[k], g);
    }
}
