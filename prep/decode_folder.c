/* decode_folder: PNG files in <split>/<class>/, splits train and test (or val). Classes are the
 * names of the folders, sorted; images come class by class, sorted by file name. Both splits must
 * have the same classes, each with an image. A piece of work is a run of files. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/log.h"
#include "prep/decode.h"
#include "prep/decode_png.h"
#include "prep/resize.h"

enum { PIECE_FILES = 256, SIDE_MAX = 8192 };

struct folder {
    struct folder_split {
        char dir[1024];
        char **paths; /* (count) */
        uint16_t *labels;
        uint32_t count, room;
    } splits[2];
    uint32_t ignored; /* files that are no PNG by their name */
};

/* Sorted names of what is in dir: folders, or PNG files. Freed by the caller, each and all. */
static int list(const char *dir, bool folders, struct dirent ***entries, int *count,
                uint32_t *ignored) {
    *count = scandir(dir, entries, NULL, alphasort);
    if (*count < 0)
        return fail(BAD_INPUT, "cannot read the folder %s: %s", dir, strerror(errno));
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        struct dirent *entry = (*entries)[i];
        const char *dot = strrchr(entry->d_name, '.');
        char path[2048];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
        bool wanted = folders ? is_folder : !is_folder && dot && strcasecmp(dot, ".png") == 0;
        if (entry->d_name[0] != '.' && wanted) {
            (*entries)[kept++] = entry;
            continue;
        }
        *ignored += entry->d_name[0] != '.';
        free(entry);
    }
    *count = kept;
    return 0;
}

static void free_list(struct dirent **entries, int count) {
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

static int add_image(struct folder_split *split, const char *dir, const char *name,
                     uint16_t label) {
    if (split->count == split->room) {
        uint32_t room = split->room ? split->room * 2 : 1024;
        char **paths = realloc(split->paths, room * sizeof *paths);
        if (paths)
            split->paths = paths;
        uint16_t *labels = realloc(split->labels, room * sizeof *labels);
        if (labels)
            split->labels = labels;
        if (!paths || !labels)
            return fail(SYSTEM_FAILED, "out of memory for the names of %u files", room);
        split->room = room;
    }
    if (asprintf(&split->paths[split->count], "%s/%s", dir, name) < 0)
        return fail(SYSTEM_FAILED, "out of memory for the name of a file");
    split->labels[split->count++] = label;
    return 0;
}

static int add_class(struct folder *folder, struct folder_split *split, const char *name,
                     uint16_t label) {
    char dir[1024];
    struct dirent **entries = NULL;
    int count = 0;
    int r = file_join(dir, sizeof dir, split->dir, name);
    if (!r)
        r = list(dir, false, &entries, &count, &folder->ignored);
    if (!r && count == 0)
        r = fail(BAD_INPUT, "%s holds no PNG file", dir);
    for (int i = 0; i < count && !r; i++)
        r = add_image(split, dir, entries[i]->d_name, label);
    free_list(entries, count);
    return r;
}

/* The train split names the classes; a class that only one split has is refused. */
static int add_split(struct decode *d, enum decode_split which) {
    struct folder *folder = d->state;
    struct folder_split *split = &folder->splits[which];
    struct dirent **entries = NULL;
    int count = 0;
    int r = list(split->dir, true, &entries, &count, &folder->ignored);
    for (int k = 0; k < count && !r && which == DECODE_TRAIN; k++)
        r = decode_name_class(d, (uint32_t)k, entries[k]->d_name);
    uint32_t classes = d->geometry.classes;
    if (!r && classes == 0)
        r = fail(BAD_INPUT, "%s holds no folder of a class", split->dir);
    for (uint32_t k = 0; !r && (k < classes || k < (uint32_t)count); k++) {
        const char *name = k < classes ? d->geometry.class_names[k] : NULL;
        const char *found = k < (uint32_t)count ? entries[k]->d_name : NULL;
        int order = !name ? 1 : !found ? -1 : strcmp(name, found);
        if (order < 0)
            r = fail(BAD_INPUT, "%s/%s is missing, but %s has that class", split->dir, name,
                     folder->splits[DECODE_TRAIN].dir);
        else if (order > 0)
            r = fail(BAD_INPUT, "%s/%s is a class that %s does not have", split->dir, found,
                     folder->splits[DECODE_TRAIN].dir);
        else
            r = add_class(folder, split, name, (uint16_t)k);
    }
    free_list(entries, count);
    for (uint32_t first = 0; first < split->count && !r; first += PIECE_FILES) {
        uint32_t left = split->count - first;
        r = decode_add_piece(
            d, (struct decode_piece){.split = which,
                                     .count = left < PIECE_FILES ? left : PIECE_FILES});
    }
    return r;
}

static int find_splits(struct decode *d) {
    struct folder *folder = d->state;
    char test[1024], val[1024];
    size_t size = sizeof test;
    int r = file_join(folder->splits[DECODE_TRAIN].dir, size, d->options.dir, "train");
    if (!r)
        r = file_join(test, size, d->options.dir, "test");
    if (!r)
        r = file_join(val, size, d->options.dir, "val");
    if (r)
        return r;
    bool has_test = access(test, F_OK) == 0, has_val = access(val, F_OK) == 0;
    if (has_test == has_val)
        return fail(BAD_INPUT, "%s holds %s: one of the two must hold the validation images",
                    d->options.dir, has_test ? "both test and val" : "neither test nor val");
    memcpy(folder->splits[DECODE_VAL].dir, has_test ? test : val, size);
    return 0;
}

static int size_of(const char *path, uint32_t *h, uint32_t *w) {
    int r = decode_png_size(path, h, w);
    if (!r && (*h > SIDE_MAX || *w > SIDE_MAX))
        r = fail(BAD_INPUT, "%s: %u x %u pixels: sides of at most %d are taken", path, *h, *w,
                 SIDE_MAX);
    return r;
}

static int open_folders(struct decode *d) {
    struct folder *folder = calloc(1, sizeof *folder);
    if (!folder)
        return fail(SYSTEM_FAILED, "out of memory");
    d->state = folder;
    int r = find_splits(d);
    if (!r)
        r = add_split(d, DECODE_TRAIN);
    if (!r)
        r = add_split(d, DECODE_VAL);
    if (r)
        return r;
    if (folder->ignored)
        log_note("%s: %u entries are no PNG by their name, and not read", d->options.dir,
                 folder->ignored);
    d->geometry.c = 3;
    d->geometry.h = d->options.resize_h;
    d->geometry.w = d->options.resize_w;
    if (d->geometry.h)
        return 0;
    /* All images must be as large as the first. */
    return size_of(folder->splits[DECODE_TRAIN].paths[0], &d->geometry.h, &d->geometry.w);
}

static int read_resized(const struct decode *d, const char *path, uint8_t *pixels) {
    uint32_t h, w;
    int r = size_of(path, &h, &w);
    if (r)
        return r;
    uint8_t *source = malloc((size_t)h * w * 3);
    if (!source)
        return fail(SYSTEM_FAILED, "%s: out of memory for %u x %u pixels", path, h, w);
    r = decode_png_read(path, h, w, source);
    if (!r)
        r = resize_rgb(source, h, w, pixels, d->geometry.h, d->geometry.w);
    free(source);
    return r;
}

static int fill(const struct decode *d, const struct decode_piece *piece, uint8_t *pixels,
                uint16_t *labels) {
    const struct folder *folder = d->state;
    const struct folder_split *split = &folder->splits[piece->split];
    const struct store_geometry *g = &d->geometry;
    int r = 0;
    for (uint32_t i = 0; i < piece->count && !r; i++) {
        const char *path = split->paths[piece->first + i];
        uint8_t *to = pixels + (size_t)i * g->h * g->w * 3;
        labels[i] = split->labels[piece->first + i];
        r = d->options.resize_h ? read_resized(d, path, to) : decode_png_read(path, g->h, g->w, to);
    }
    return r;
}

static void close_folders(struct decode *d) {
    struct folder *folder = d->state;
    for (int i = 0; folder && i < 2; i++) {
        for (uint32_t k = 0; k < folder->splits[i].count; k++)
            free(folder->splits[i].paths[k]);
        free(folder->splits[i].paths);
        free(folder->splits[i].labels);
    }
    free(folder);
}

const struct decode_format decode_folder = {open_folders, fill, close_folders};
