/* decode_png: reads one PNG by libpng. The file is read as a whole first, so that an error can name
 * the offset, and a file changing meanwhile cannot hurt. libpng reports errors by longjmp: what
 * must survive it lives in struct reader, and only run() calls setjmp.
 * Source of the transformations: the libpng manual, section "Input transformations". */
#include "prep/decode_png.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/file.h"
#include "lib/log.h"

struct reader {
    const char *path;
    char *bytes;
    size_t size, at;
    png_structp png;
    png_infop info;
    uint32_t h, w;
    uint8_t **rows; /* (h), NULL: the size is all that is wanted */
    char reason[160];
};

static void on_error(png_structp png, png_const_charp message) {
    struct reader *reader = png_get_error_ptr(png);
    if (!reader->reason[0])
        snprintf(reader->reason, sizeof reader->reason, "%s", message);
    longjmp(png_jmpbuf(png), 1);
}

/* libpng warns about what does not touch the pixels, such as a colour profile it doubts. */
static void on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep out, size_t count) {
    struct reader *reader = png_get_io_ptr(png);
    if (count > reader->size - reader->at) {
        reader->at = reader->size;
        png_error(png, "the file is cut short");
    }
    memcpy(out, reader->bytes + reader->at, count);
    reader->at += count;
}

static void read_rows(struct reader *reader) {
    png_structp png = reader->png;
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, reader->info);
    if (png_get_rowbytes(png, reader->info) != (size_t)reader->w * 3)
        png_error(png, "not convertible to 8-bit RGB");
    png_read_image(png, reader->rows);
    png_read_end(png, NULL);
}

static int run(struct reader *reader) {
    if (setjmp(png_jmpbuf(reader->png)))
        return fail(BAD_INPUT, "%s: offset %zu: %s", reader->path, reader->at, reader->reason);
    png_set_read_fn(reader->png, reader, on_read);
    png_set_crc_action(reader->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_user_limits(reader->png, DECODE_PNG_SIDE_MAX, DECODE_PNG_SIDE_MAX);
    png_read_info(reader->png, reader->info);
    uint32_t h = png_get_image_height(reader->png, reader->info);
    uint32_t w = png_get_image_width(reader->png, reader->info);
    if (!reader->rows) {
        reader->h = h;
        reader->w = w;
        return 0;
    }
    if (h != reader->h || w != reader->w)
        return fail(BAD_INPUT, "%s: %u x %u pixels (height x width), expected %u x %u",
                    reader->path, h, w, reader->h, reader->w);
    read_rows(reader);
    return 0;
}

static int read_png(struct reader *reader) {
    int r = file_read(reader->path, DECODE_PNG_FILE_MAX, &reader->bytes, &reader->size);
    if (r)
        return r;
    reader->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reader, on_error, on_warning);
    if (reader->png)
        reader->info = png_create_info_struct(reader->png);
    if (!reader->info)
        r = fail(SYSTEM_FAILED, "%s: out of memory", reader->path);
    else if (reader->size < 8 || png_sig_cmp((png_const_bytep)reader->bytes, 0, 8) != 0)
        r = fail(BAD_INPUT, "%s: offset 0: no PNG signature", reader->path);
    else
        r = run(reader);
    png_destroy_read_struct(&reader->png, &reader->info, NULL);
    free(reader->bytes);
    return r;
}

int decode_png_size(const char *path, uint32_t *h, uint32_t *w) {
    struct reader reader = {.path = path};
    int r = read_png(&reader);
    *h = reader.h;
    *w = reader.w;
    return r;
}

int decode_png_read(const char *path, uint32_t h, uint32_t w, uint8_t *pixels) {
    struct reader reader = {.path = path, .h = h, .w = w};
    reader.rows = malloc(h * sizeof *reader.rows);
    if (!reader.rows)
        return fail(SYSTEM_FAILED, "%s: out of memory for %u rows", path, h);
    for (uint32_t y = 0; y < h; y++)
        reader.rows[y] = pixels + (size_t)y * w * 3;
    int r = read_png(&reader);
    free(reader.rows);
    return r;
}
