/* decode_png: one PNG file as 8-bit RGB.
 *
 * Every PNG is taken as Pillow's convert("RGB") takes it: palettes and grey are expanded, of 16
 * bits the high 8 are kept, alpha and tRNS are dropped, gamma and colour profiles are ignored;
 * interlaced or not makes no difference. */
#ifndef DDPIPE_DECODE_PNG_H
#define DDPIPE_DECODE_PNG_H

#include <stdint.h>

/* Reads the size alone. BAD_INPUT for what is no PNG, or has a side over DECODE_PNG_SIDE_MAX. */
enum { DECODE_PNG_SIDE_MAX = 1000000, DECODE_PNG_FILE_MAX = 1 << 30 };
int decode_png_size(const char *path, uint32_t *h, uint32_t *w);

/* Reads the image into pixels (h,w,3). BAD_INPUT names the file, and the offset in it where
 * reading ended: another size than h × w (found before any memory is taken for pixels), a chunk
 * with a wrong CRC, a file cut short, and anything else libpng rejects. */
int decode_png_read(const char *path, uint32_t h, uint32_t w, uint8_t *pixels);

#endif
