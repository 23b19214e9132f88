/* store_layout: where a store's sections lie, and its header as bytes: packed field by field,
 * little-endian, into the first STORE_HEADER_SIZE bytes, the rest of them zero. Reading refuses
 * whatever store_layout_write_header would not have written. */
#include "lib/store_layout.h"

#include <string.h>

#include "lib/log.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "labels are mapped as they are stored: little-endian");

enum { ALIGNMENT = 4096 };

static uint64_t align(uint64_t at) {
    return (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t store_layout_image(const struct store_geometry *g) {
    return (size_t)g->h * g->w * g->c;
}

struct store_layout store_layout(const struct store_geometry *g) {
    struct store_layout at;
    at.train_images = STORE_HEADER_SIZE;
    at.train_labels = align(at.train_images + g->n_train * store_layout_image(g));
    at.val_images = align(at.train_labels + g->n_train * sizeof(uint16_t));
    at.val_labels = align(at.val_images + g->n_val * store_layout_image(g));
    at.size = align(at.val_labels + g->n_val * sizeof(uint16_t));
    return at;
}

int store_layout_check(const struct store_geometry *g, const char *what) {
    if (g->n_train < 1 || g->n_val < 1)
        return fail(BAD_INPUT,
                    "%s: %u train and %u validation images: at least 1 of each is needed", what,
                    g->n_train, g->n_val);
    if (g->c < 1 || g->c > STORE_CHANNELS_MAX)
        return fail(BAD_INPUT, "%s: %u channels: 1 to %d are possible", what, g->c,
                    STORE_CHANNELS_MAX);
    if (g->h < 1 || g->w < 1 || g->h > STORE_SIDE_MAX || g->w > STORE_SIDE_MAX)
        return fail(BAD_INPUT, "%s: images of %u x %u: sides of 1 to %d are possible", what, g->h,
                    g->w, STORE_SIDE_MAX);
    if (g->classes < 1 || g->classes > STORE_CLASSES_MAX)
        return fail(BAD_INPUT, "%s: %u classes: 1 to %d are possible", what, g->classes,
                    STORE_CLASSES_MAX);
    return 0;
}

void store_layout_map(struct store *s) {
    struct store_layout at = store_layout(&s->geometry);
    uint8_t *base = s->map;
    s->train_images = base + at.train_images;
    s->train_labels = (uint16_t *)(void *)(base + at.train_labels);
    s->val_images = base + at.val_images;
    s->val_labels = (uint16_t *)(void *)(base + at.val_labels);
}

void store_layout_pack_geometry(struct pack *p, const struct store_geometry *g) {
    pack_u32(p, g->n_train);
    pack_u32(p, g->n_val);
    pack_u32(p, g->c);
    pack_u32(p, g->h);
    pack_u32(p, g->w);
    pack_u32(p, g->classes);
    for (uint32_t k = 0; k < g->classes; k++)
        pack_text(p, g->class_names[k]);
}

static void unpack_geometry(struct pack *p, struct store_geometry *g) {
    g->n_train = unpack_u32(p);
    g->n_val = unpack_u32(p);
    g->c = unpack_u32(p);
    g->h = unpack_u32(p);
    g->w = unpack_u32(p);
    g->classes = unpack_u32(p);
    for (uint32_t k = 0; k < g->classes && k < STORE_CLASSES_MAX; k++)
        unpack_text(p, g->class_names[k], STORE_NAME_MAX);
}

int store_layout_write_header(struct store *s) {
    memset(s->map, 0, STORE_HEADER_SIZE);
    struct pack p = pack_open(s->map, STORE_HEADER_SIZE);
    pack_bytes(&p, STORE_MAGIC, STORE_MAGIC_SIZE);
    pack_u32(&p, STORE_VERSION);
    pack_u32(&p, STORE_SEALED);
    for (int i = 0; i < STORE_OWNERS_MAX; i++) {
        pack_u32(&p, (uint32_t)s->owners[i].pid);
        pack_u64(&p, s->owners[i].start);
    }
    pack_u64(&p, s->map_size);
    store_layout_pack_geometry(&p, &s->geometry);
    pack_text(&p, s->digest);
    for (int c = 0; c < STORE_CHANNELS_MAX; c++) {
        pack_f64(&p, s->mean[c]);
        pack_f64(&p, s->std[c]);
    }
    for (int i = 0; i < STORE_PATCH; i++) {
        pack_f64(&p, s->patch_mean[i]);
        for (int j = 0; j < STORE_PATCH; j++)
            pack_f64(&p, s->patch_moment[i][j]);
    }
    if (p.failed)
        return fail(SYSTEM_FAILED, "the header of a store does not fit its %d bytes",
                    STORE_HEADER_SIZE);
    return 0;
}

int store_layout_read_header(struct store *s, uint64_t file_size) {
    struct pack p = unpack_open(s->map, STORE_HEADER_SIZE);
    char magic[STORE_MAGIC_SIZE];
    unpack_bytes(&p, magic, sizeof magic);
    if (memcmp(magic, STORE_MAGIC, sizeof magic) != 0)
        return fail(BAD_INPUT, "%s: no store: offset 0 does not say %s", s->path, STORE_MAGIC);
    uint32_t version = unpack_u32(&p);
    if (version != STORE_VERSION)
        return fail(BAD_INPUT,
                    "%s: a store of version %u; this program reads version %d: make it "
                    "anew with prep",
                    s->path, version, STORE_VERSION);
    if (unpack_u32(&p) != STORE_SEALED)
        return fail(BAD_INPUT, "%s: the store is not sealed: whoever made it did not finish",
                    s->path);
    for (int i = 0; i < STORE_OWNERS_MAX; i++) {
        s->owners[i].pid = (pid_t)unpack_u32(&p);
        s->owners[i].start = unpack_u64(&p);
    }
    uint64_t size = unpack_u64(&p);
    unpack_geometry(&p, &s->geometry);
    int r = store_layout_check(&s->geometry, s->path);
    if (r)
        return r;
    unpack_text(&p, s->digest, sizeof s->digest);
    for (int c = 0; c < STORE_CHANNELS_MAX; c++) {
        s->mean[c] = unpack_f64(&p);
        s->std[c] = unpack_f64(&p);
    }
    for (int i = 0; i < STORE_PATCH; i++) {
        s->patch_mean[i] = unpack_f64(&p);
        for (int j = 0; j < STORE_PATCH; j++)
            s->patch_moment[i][j] = unpack_f64(&p);
    }
    uint64_t expected = store_layout(&s->geometry).size;
    if (p.failed || size != expected)
        return fail(BAD_INPUT, "%s: the header is damaged (%zu bytes read)", s->path, p.at);
    if (file_size != expected)
        return fail(BAD_INPUT, "%s: %llu bytes where its header says %llu: cut short or damaged",
                    s->path, (unsigned long long)file_size, (unsigned long long)expected);
    return 0;
}
