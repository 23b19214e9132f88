/* metric: a trainer's records as bytes, and back.
 *
 * Every kind carries the same fields in the same order, so one table of bytes describes them all:
 *   "DDPM", u16 version, u16 kind, u32 length of what follows,
 *   u32 rank, world_size, epoch, epochs, step, steps, phase, reason, u64 images, correct, count,
 *   f64 seconds, start_seconds, loss_sum, learning_rate, wait, compute, comm, hidden, text host.
 * Reading refuses what cannot be true of any rank, so that no sum is spoilt later. */
#include "lib/metric.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lib/log.h"
#include "lib/pack.h"

static const uint8_t magic[4] = {'D', 'D', 'P', 'M'};
enum { HEADER_SIZE = 12, LENGTH_AT = 8 };

size_t metric_write(uint8_t out[METRIC_SIZE_MAX], const struct metric *m) {
    struct pack p = pack_open(out, METRIC_SIZE_MAX);
    pack_bytes(&p, magic, sizeof magic);
    pack_u16(&p, METRIC_VERSION);
    pack_u16(&p, (uint16_t)m->kind);
    pack_u32(&p, 0);
    pack_u32(&p, m->rank);
    pack_u32(&p, m->world_size);
    pack_u32(&p, m->epoch);
    pack_u32(&p, m->epochs);
    pack_u32(&p, m->step);
    pack_u32(&p, m->steps);
    pack_u32(&p, (uint32_t)m->phase);
    pack_u32(&p, (uint32_t)m->reason);
    pack_u64(&p, m->images);
    pack_u64(&p, m->correct);
    pack_u64(&p, m->count);
    pack_f64(&p, m->seconds);
    pack_f64(&p, m->start_seconds);
    pack_f64(&p, m->loss_sum);
    pack_f64(&p, m->learning_rate);
    pack_f64(&p, m->wait_seconds);
    pack_f64(&p, m->compute_seconds);
    pack_f64(&p, m->comm_seconds);
    pack_f64(&p, m->hidden_seconds);
    pack_f64(&p, m->iteration_seconds);
    pack_text(&p, m->host);

    struct pack length = pack_open(out + LENGTH_AT, sizeof(uint32_t));
    pack_u32(&length, (uint32_t)(p.at - HEADER_SIZE));
    return p.at;
}

static int read_header(struct pack *p, struct metric *m) {
    uint8_t found[sizeof magic];
    unpack_bytes(p, found, sizeof found);
    unsigned version = unpack_u16(p), kind = unpack_u16(p);
    uint32_t length = unpack_u32(p);
    if (p->failed)
        return fail(BAD_INPUT, "metric record: %zu bytes, shorter than its header of %d", p->size,
                    HEADER_SIZE);
    if (memcmp(found, magic, sizeof magic) != 0)
        return fail(BAD_INPUT, "metric record: no \"DDPM\" at offset 0: not a trainer's record");
    if (version != METRIC_VERSION)
        return fail(BAD_INPUT, "metric record: version %u at offset 4, this program speaks %d",
                    version, METRIC_VERSION);
    if (kind < METRIC_HELLO || kind > METRIC_TOTAL)
        return fail(BAD_INPUT, "metric record: unknown kind %u at offset 6", kind);
    if (length != p->size - HEADER_SIZE)
        return fail(BAD_INPUT, "metric record: length %u at offset %d, but %zu bytes follow",
                    (unsigned)length, LENGTH_AT, p->size - HEADER_SIZE);
    m->kind = (enum metric_kind)kind;
    return 0;
}

static bool is_duration(double seconds) {
    return isfinite(seconds) && seconds >= 0;
}

/* loss_sum alone may be infinite or nan: that is how a training run goes wrong. */
static int check(const struct metric *m, uint32_t phase, uint32_t reason) {
    if (m->rank >= m->world_size)
        return fail(BAD_INPUT, "metric record: rank %u at offset 12 of a world of %u",
                    (unsigned)m->rank, (unsigned)m->world_size);
    if (phase > METRIC_VAL)
        return fail(BAD_INPUT, "metric record of rank %u: unknown phase %u at offset 36",
                    (unsigned)m->rank, (unsigned)phase);
    if (reason > METRIC_FAILED)
        return fail(BAD_INPUT, "metric record of rank %u: unknown reason %u at offset 40",
                    (unsigned)m->rank, (unsigned)reason);
    if (m->correct > m->count)
        return fail(
            BAD_INPUT, "metric record of rank %u: %llu correct at offset 52 of a count of %llu",
            (unsigned)m->rank, (unsigned long long)m->correct, (unsigned long long)m->count);
    if ((m->kind == METRIC_EPOCH || m->kind == METRIC_TOTAL) && m->epoch == 0)
        return fail(BAD_INPUT, "metric record of rank %u: epoch 0 at offset 20, the first is 1",
                    (unsigned)m->rank);
    if (!is_duration(m->seconds) || !is_duration(m->start_seconds) ||
        !is_duration(m->wait_seconds) || !is_duration(m->compute_seconds) ||
        !is_duration(m->comm_seconds) || !is_duration(m->hidden_seconds) ||
        !is_duration(m->iteration_seconds))
        return fail(BAD_INPUT, "metric record of rank %u: a time after offset 68 is not a duration",
                    (unsigned)m->rank);
    return 0;
}

int metric_read(const void *bytes, size_t size, struct metric *m) {
    *m = (struct metric){0};
    struct pack p = unpack_open(bytes, size);
    int error = read_header(&p, m);
    if (error)
        return error;
    m->rank = unpack_u32(&p);
    m->world_size = unpack_u32(&p);
    m->epoch = unpack_u32(&p);
    m->epochs = unpack_u32(&p);
    m->step = unpack_u32(&p);
    m->steps = unpack_u32(&p);
    uint32_t phase = unpack_u32(&p), reason = unpack_u32(&p);
    m->images = unpack_u64(&p);
    m->correct = unpack_u64(&p);
    m->count = unpack_u64(&p);
    m->seconds = unpack_f64(&p);
    m->start_seconds = unpack_f64(&p);
    m->loss_sum = unpack_f64(&p);
    m->learning_rate = unpack_f64(&p);
    m->wait_seconds = unpack_f64(&p);
    m->compute_seconds = unpack_f64(&p);
    m->comm_seconds = unpack_f64(&p);
    m->hidden_seconds = unpack_f64(&p);
    m->iteration_seconds = unpack_f64(&p);
    unpack_text(&p, m->host, sizeof m->host);
    if (!unpack_done(&p))
        return fail(BAD_INPUT, "metric record: its fields end at offset %zu, the record at %zu",
                    p.at, size);
    error = check(m, phase, reason);
    m->phase = (enum metric_phase)phase;
    m->reason = (enum metric_reason)reason;
    return error;
}
