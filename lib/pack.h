/* pack: records as bytes, field by field, little-endian, without padding.
 *
 * Both directions keep an error flag, so a record is written or read in one go and checked once. */
#ifndef DDPIPE_PACK_H
#define DDPIPE_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pack {
    uint8_t *bytes; /* the caller's */
    size_t size;    /* of bytes */
    size_t at;      /* next byte to write or read */
    bool failed;    /* a field did not fit: nothing after it counts */
};

struct pack pack_open(void *bytes, size_t size);
void pack_u8(struct pack *p, uint8_t v);
void pack_u16(struct pack *p, uint16_t v);
void pack_u32(struct pack *p, uint32_t v);
void pack_u64(struct pack *p, uint64_t v);
void pack_f64(struct pack *p, double v);
void pack_bytes(struct pack *p, const void *v, size_t count);
/* A string as u16 length and its bytes, no NUL. */
void pack_text(struct pack *p, const char *v);

/* Past the end these set failed and return 0. Reading does not write to bytes. */
struct pack unpack_open(const void *bytes, size_t size);
uint8_t unpack_u8(struct pack *p);
uint16_t unpack_u16(struct pack *p);
uint32_t unpack_u32(struct pack *p);
uint64_t unpack_u64(struct pack *p);
double unpack_f64(struct pack *p);
void unpack_bytes(struct pack *p, void *v, size_t count);
/* Into v[size], NUL-terminated; a longer text sets failed. */
void unpack_text(struct pack *p, char *v, size_t size);
/* Everything read, nothing left over, no field missing? */
bool unpack_done(const struct pack *p);

#endif
