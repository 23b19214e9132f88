/* batch: the messages between a loader and its trainer as bytes, and back.
 *
 * Every message is a header of 64 bytes and a body, all little-endian:
 *   0 "DDPB"   4 u16 version   6 u16 kind   8 u64 length of the body
 *  16 u32 phase, epoch, step, count (CREDIT: credits), c, h, w   44 zeros   60 u32 check
 * The check is the CRC-32 (IEEE 802.3) of the bytes before it, and of HELLO's body: no damaged
 * header is taken for a good one. Bodies: HELLO its fields in the struct's order, BATCH the pixels
 * and then the labels, the others none. */
#include "lib/batch.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lib/log.h"
#include "lib/pack.h"

static const uint8_t magic[4] = {'D', 'D', 'P', 'B'};
enum { CHECK_AT = 60, HELLO_SIZE_MAX = 2048, LABEL_SIZE = 2 };

static uint32_t crc32_add(uint32_t crc, const uint8_t *bytes, size_t size) {
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1));
    }
    return ~crc;
}

static uint32_t check_of(const uint8_t *message, enum batch_kind kind, size_t body) {
    uint32_t crc = crc32_add(0, message, CHECK_AT);
    return kind == BATCH_HELLO ? crc32_add(crc, message + BATCH_HEADER_SIZE, body) : crc;
}

/* Pixels and labels of a batch; 0 where that is no size. */
static uint64_t body_size(const struct batch *b) {
    uint64_t image, pixels;
    if (b->count < 1 || b->c < 1 || b->h < 1 || b->w < 1 ||
        __builtin_mul_overflow((uint64_t)b->c * b->h, b->w, &image) ||
        __builtin_mul_overflow(image, b->count, &pixels) || pixels > SIZE_MAX / 2)
        return 0;
    return pixels + (uint64_t)b->count * LABEL_SIZE;
}

/* A message with its header written, but for the check; the body is the caller's to fill. */
static int make(zmq_msg_t *m, enum batch_kind kind, const struct batch *b, uint64_t body) {
    if (zmq_msg_init_size(m, BATCH_HEADER_SIZE + body) < 0)
        return fail(SYSTEM_FAILED, "no memory for a message of %llu bytes: %s",
                    (unsigned long long)body, strerror(errno));
    struct pack p = pack_open(zmq_msg_data(m), CHECK_AT);
    pack_bytes(&p, magic, sizeof magic);
    pack_u16(&p, BATCH_VERSION);
    pack_u16(&p, (uint16_t)kind);
    pack_u64(&p, body);
    pack_u32(&p, (uint32_t)b->phase);
    pack_u32(&p, b->epoch);
    pack_u32(&p, b->step);
    pack_u32(&p, b->count);
    pack_u32(&p, b->c);
    pack_u32(&p, b->h);
    pack_u32(&p, b->w);
    memset(p.bytes + p.at, 0, CHECK_AT - p.at);
    return 0;
}

static int seal(zmq_msg_t *m, enum batch_kind kind) {
    uint8_t *bytes = zmq_msg_data(m);
    struct pack p = pack_open(bytes + CHECK_AT, BATCH_HEADER_SIZE - CHECK_AT);
    pack_u32(&p, check_of(bytes, kind, zmq_msg_size(m) - BATCH_HEADER_SIZE));
    return 0;
}

int batch_write_credit(zmq_msg_t *m, uint32_t credits) {
    int r = make(m, BATCH_CREDIT, &(struct batch){.count = credits}, 0);
    return r ? r : seal(m, BATCH_CREDIT);
}

int batch_write_end(zmq_msg_t *m, enum batch_phase phase, uint32_t epoch) {
    int r = make(m, BATCH_END, &(struct batch){.phase = phase, .epoch = epoch}, 0);
    return r ? r : seal(m, BATCH_END);
}

int batch_write_stop(zmq_msg_t *m) {
    int r = make(m, BATCH_STOP, &(struct batch){0}, 0);
    return r ? r : seal(m, BATCH_STOP);
}

int batch_write(zmq_msg_t *m, const struct batch *header, uint8_t **pixels, uint8_t **labels) {
    uint64_t body = body_size(header);
    if (!body)
        return fail(BAD_INPUT, "no batch can be %u images of %u×%u×%u", header->count, header->h,
                    header->w, header->c);
    int r = make(m, BATCH_BATCH, header, body);
    if (r)
        return r;
    *pixels = (uint8_t *)zmq_msg_data(m) + BATCH_HEADER_SIZE;
    *labels = *pixels + (body - (uint64_t)header->count * LABEL_SIZE);
    return seal(m, BATCH_BATCH);
}

void batch_set_label(uint8_t *labels, uint32_t i, uint16_t label) {
    labels[(size_t)i * LABEL_SIZE] = (uint8_t)label;
    labels[(size_t)i * LABEL_SIZE + 1] = (uint8_t)(label >> 8);
}

uint16_t batch_label(const uint8_t *labels, uint32_t i) {
    const uint8_t *at = labels + (size_t)i * LABEL_SIZE;
    return (uint16_t)(at[0] | at[1] << 8);
}

int batch_write_hello(zmq_msg_t *m, const struct batch_hello *hello) {
    uint8_t body[HELLO_SIZE_MAX];
    struct pack p = pack_open(body, sizeof body);
    const uint32_t numbers[] = {
        hello->n_train,    hello->n_val,          hello->c,           hello->h,
        hello->w,          hello->classes,        hello->rank,        hello->world_size,
        hello->batch_size, hello->val_batch_size, hello->train_steps, hello->val_steps,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        pack_u32(&p, numbers[i]);
    pack_u64(&p, hello->seed);
    pack_text(&p, hello->digest);
    pack_text(&p, hello->augment);
    for (int i = 0; i < 4; i++) {
        pack_f64(&p, hello->mean[i]);
        pack_f64(&p, hello->std[i]);
    }
    for (int i = 0; i < BATCH_PATCH; i++) {
        pack_f64(&p, hello->patch_mean[i]);
        for (int j = 0; j < BATCH_PATCH; j++)
            pack_f64(&p, hello->patch_moment[i][j]);
    }
    int r = make(m, BATCH_HELLO, &(struct batch){0}, p.at);
    if (r)
        return r;
    memcpy((uint8_t *)zmq_msg_data(m) + BATCH_HEADER_SIZE, body, p.at);
    return seal(m, BATCH_HELLO);
}

static bool all_finite(const double *v, int count) {
    for (int i = 0; i < count; i++)
        if (!isfinite(v[i]))
            return false;
    return true;
}

static int check_hello(const struct batch_hello *h) {
    if (h->world_size < 1 || h->rank >= h->world_size)
        return fail(BAD_INPUT, "HELLO: rank %u of a world of %u", h->rank, h->world_size);
    if (h->c < 1 || h->c > 4 || h->h < 1 || h->w < 1)
        return fail(BAD_INPUT, "HELLO: images of %u×%u×%u", h->h, h->w, h->c);
    if (h->classes < 1 || h->classes > BATCH_CLASSES_MAX)
        return fail(BAD_INPUT, "HELLO: %u classes, 1 to %d are possible", h->classes,
                    BATCH_CLASSES_MAX);
    if (h->batch_size < 1 || h->val_batch_size < 1)
        return fail(BAD_INPUT, "HELLO: batches of %u and %u images", h->batch_size,
                    h->val_batch_size);
    if (!all_finite(h->mean, 4) || !all_finite(h->std, 4) ||
        !all_finite(h->patch_mean, BATCH_PATCH) ||
        !all_finite(h->patch_moment[0], BATCH_PATCH * BATCH_PATCH))
        return fail(BAD_INPUT, "HELLO: a moment of the data set is not finite");
    return 0;
}

static int read_hello(const uint8_t *body, size_t size, struct batch_hello *h) {
    struct pack p = unpack_open(body, size);
    uint32_t *const numbers[] = {
        &h->n_train,    &h->n_val,          &h->c,           &h->h,
        &h->w,          &h->classes,        &h->rank,        &h->world_size,
        &h->batch_size, &h->val_batch_size, &h->train_steps, &h->val_steps,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *numbers[i] = unpack_u32(&p);
    h->seed = unpack_u64(&p);
    unpack_text(&p, h->digest, sizeof h->digest);
    unpack_text(&p, h->augment, sizeof h->augment);
    for (int i = 0; i < 4; i++) {
        h->mean[i] = unpack_f64(&p);
        h->std[i] = unpack_f64(&p);
    }
    for (int i = 0; i < BATCH_PATCH; i++) {
        h->patch_mean[i] = unpack_f64(&p);
        for (int j = 0; j < BATCH_PATCH; j++)
            h->patch_moment[i][j] = unpack_f64(&p);
    }
    if (!unpack_done(&p))
        return fail(BAD_INPUT, "HELLO: a body of %zu bytes at offset %d does not hold its fields",
                    size, BATCH_HEADER_SIZE);
    return check_hello(h);
}

/* Reads and checks what every message has; *body is its body's size. */
static int read_header(zmq_msg_t *m, struct batch_message *out, size_t *body) {
    const uint8_t *bytes = zmq_msg_data(m);
    size_t size = zmq_msg_size(m);
    if (size < BATCH_HEADER_SIZE)
        return fail(BAD_INPUT, "message of %zu bytes, shorter than its header of %d", size,
                    BATCH_HEADER_SIZE);
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return fail(BAD_INPUT, "message without \"DDPB\" at offset 0: no loader's or trainer's");
    struct pack p = unpack_open(bytes + sizeof magic, BATCH_HEADER_SIZE - sizeof magic);
    unsigned version = unpack_u16(&p), kind = unpack_u16(&p);
    uint64_t length = unpack_u64(&p);
    if (version != BATCH_VERSION)
        return fail(BAD_INPUT, "message of version %u at offset 4, this program speaks %d", version,
                    BATCH_VERSION);
    if (kind < BATCH_CREDIT || kind > BATCH_STOP)
        return fail(BAD_INPUT, "message of unknown kind %u at offset 6", kind);
    *body = size - BATCH_HEADER_SIZE;
    if (length != *body)
        return fail(BAD_INPUT, "message says %llu bytes at offset 8, but %zu follow its header",
                    (unsigned long long)length, *body);
    out->kind = (enum batch_kind)kind;
    uint32_t phase = unpack_u32(&p);
    struct batch *b = &out->batch;
    b->epoch = unpack_u32(&p);
    b->step = unpack_u32(&p);
    b->count = unpack_u32(&p);
    b->c = unpack_u32(&p);
    b->h = unpack_u32(&p);
    b->w = unpack_u32(&p);
    p = unpack_open(bytes + CHECK_AT, BATCH_HEADER_SIZE - CHECK_AT);
    uint32_t check = unpack_u32(&p);
    if (check != check_of(bytes, out->kind, *body))
        return fail(BAD_INPUT, "damaged message: its check at offset %d is wrong", CHECK_AT);
    if (phase > BATCH_VAL)
        return fail(BAD_INPUT, "message of unknown phase %u at offset 16", phase);
    b->phase = (enum batch_phase)phase;
    return 0;
}

static int read_batch(const uint8_t *body, size_t size, struct batch *b) {
    if (body_size(b) != size)
        return fail(BAD_INPUT, "BATCH: %u images of %u×%u×%u and labels are no %zu bytes", b->count,
                    b->h, b->w, b->c, size);
    b->pixels = body;
    b->labels = body + (size - (size_t)b->count * LABEL_SIZE);
    return 0;
}

int batch_read(zmq_msg_t *m, struct batch_message *out) {
    size_t size = 0;
    memset(out, 0, sizeof *out);
    int r = read_header(m, out, &size);
    if (r)
        return r;
    const uint8_t *body = (const uint8_t *)zmq_msg_data(m) + BATCH_HEADER_SIZE;
    bool timed = out->kind == BATCH_BATCH || out->kind == BATCH_END;
    if (timed && out->batch.epoch < 1)
        return fail(BAD_INPUT, "message of epoch 0 at offset 20: epochs begin at 1");
    if (out->kind == BATCH_HELLO)
        return read_hello(body, size, &out->hello);
    if (out->kind == BATCH_BATCH)
        return out->batch.step < 1 ? fail(BAD_INPUT, "BATCH: step 0 at offset 24: steps begin at 1")
                                   : read_batch(body, size, &out->batch);
    if (size > 0)
        return fail(BAD_INPUT, "message of kind %d with a body of %zu bytes", (int)out->kind, size);
    if (out->kind == BATCH_CREDIT)
        out->credits = out->batch.count;
    return 0;
}
