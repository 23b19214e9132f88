/* store_digest: sha256 of a store's content. One sha256 over everything would run on one core, so
 * pieces of 8 MiB are hashed in parallel and a last sha256 runs over geometry, names and the
 * pieces' digests. The pieces do not depend on the number of threads, so neither does the result.
 */
#include "lib/store_digest.h"

#include <stdlib.h>
#include <string.h>

#include "lib/digest.h"
#include "lib/log.h"
#include "lib/parallel.h"
#include "lib/store_layout.h"

#define PIECE_BYTES ((size_t)8 << 20)
enum { SECTIONS = 4 };

struct piece {
    const uint8_t *bytes;
    size_t size;
    char hex[DIGEST_HEX_SIZE];
};

static int hash_piece(void *context, size_t index) {
    struct piece *piece = (struct piece *)context + index;
    return digest_of_bytes(DIGEST_SHA256, piece->bytes, piece->size, piece->hex);
}

static size_t cut(const struct store *s, struct piece *pieces) {
    const struct store_geometry *g = &s->geometry;
    size_t image = store_layout_image(g);
    const struct piece sections[SECTIONS] = {
        {.bytes = s->train_images, .size = g->n_train * image},
        {.bytes = (const uint8_t *)s->train_labels, .size = g->n_train * sizeof(uint16_t)},
        {.bytes = s->val_images, .size = g->n_val * image},
        {.bytes = (const uint8_t *)s->val_labels, .size = g->n_val * sizeof(uint16_t)},
    };
    size_t count = 0;
    for (int i = 0; i < SECTIONS; i++)
        for (size_t at = 0; at < sections[i].size; at += PIECE_BYTES) {
            size_t left = sections[i].size - at;
            pieces[count].bytes = sections[i].bytes + at;
            pieces[count++].size = left < PIECE_BYTES ? left : PIECE_BYTES;
        }
    return count;
}

static int combine(struct store *s, const struct piece *pieces, size_t count) {
    static const char title[] = "ddpipe-store 1\n";
    uint8_t packed[STORE_HEADER_SIZE];
    struct pack p = pack_open(packed, sizeof packed);
    store_layout_pack_geometry(&p, &s->geometry);

    struct digest *d;
    int r = digest_open(&d, DIGEST_SHA256);
    if (r)
        return r;
    r = digest_add(d, title, sizeof title - 1);
    if (!r)
        r = digest_add(d, packed, p.at);
    for (size_t i = 0; i < count && !r; i++)
        r = digest_add(d, pieces[i].hex, strlen(pieces[i].hex));
    int closed = digest_close(&d, s->digest);
    return r ? r : closed;
}

int store_digest_compute(struct store *s) {
    size_t most = s->map_size / PIECE_BYTES + SECTIONS;
    struct piece *pieces = calloc(most, sizeof *pieces);
    if (!pieces)
        return fail(SYSTEM_FAILED, "out of memory for the digests of %zu pieces", most);
    size_t count = cut(s, pieces);
    int r = parallel_for(count, 0, hash_piece, pieces);
    if (!r)
        r = combine(s, pieces, count);
    free(pieces);
    return r;
}
