/* pack.c: little-endian fields into and out of bytes. */
#include "lib/pack.h"
#include <string.h>

struct pack pack_open(void *bytes, size_t size) {
    return (struct pack){bytes, size, 0, false};
}

/* Where the next count bytes are, or NULL where they would not fit. */
static uint8_t *advance(struct pack *p, size_t count) {
    if (p->failed || count > p->size - p->at) {
        p->failed = true;
        return NULL;
    }
    p->at += count;
    return p->bytes + p->at - count;
}

static void put(struct pack *p, uint64_t v, size_t count) {
    uint8_t *b = advance(p, count);
    for (size_t i = 0; b && i < count; i++)
        b[i] = (uint8_t)(v >> 8 * i);
}

void pack_u8(struct pack *p, uint8_t v) {
    put(p, v, 1);
}
void pack_u16(struct pack *p, uint16_t v) {
    put(p, v, 2);
}
void pack_u32(struct pack *p, uint32_t v) {
    put(p, v, 4);
}
void pack_u64(struct pack *p, uint64_t v) {
    put(p, v, 8);
}

void pack_f64(struct pack *p, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put(p, bits, 8);
}

void pack_bytes(struct pack *p, const void *v, size_t count) {
    uint8_t *b = advance(p, count);
    if (b && count)
        memcpy(b, v, count);
}

void pack_text(struct pack *p, const char *v) {
    size_t length = strlen(v);
    if (length > UINT16_MAX)
        p->failed = true;
    pack_u16(p, (uint16_t)length);
    pack_bytes(p, v, length);
}

struct pack unpack_open(const void *bytes, size_t size) {
    return (struct pack){(uint8_t *)(uintptr_t)bytes, size, 0, false};
}

static uint64_t get(struct pack *p, size_t count) {
    const uint8_t *b = advance(p, count);
    uint64_t v = 0;
    for (size_t i = 0; b && i < count; i++)
        v |= (uint64_t)b[i] << 8 * i;
    return v;
}

uint8_t unpack_u8(struct pack *p) {
    return (uint8_t)get(p, 1);
}
uint16_t unpack_u16(struct pack *p) {
    return (uint16_t)get(p, 2);
}
uint32_t unpack_u32(struct pack *p) {
    return (uint32_t)get(p, 4);
}
uint64_t unpack_u64(struct pack *p) {
    return get(p, 8);
}

double unpack_f64(struct pack *p) {
    uint64_t bits = get(p, 8);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void unpack_bytes(struct pack *p, void *v, size_t count) {
    const uint8_t *b = advance(p, count);
    if (b && count)
        memcpy(v, b, count);
    else if (!b)
        memset(v, 0, count);
}

void unpack_text(struct pack *p, char *v, size_t size) {
    size_t length = unpack_u16(p);
    v[0] = '\0';
    if (length >= size || (length && memchr(p->bytes + p->at, 0,
                                            length < p->size - p->at ? length : p->size - p->at))) {
        p->failed = true;
        return;
    }
    unpack_bytes(p, v, length);
    v[p->failed ? 0 : length] = '\0';
}

bool unpack_done(const struct pack *p) {
    return !p->failed && p->at == p->size;
}
