/* values.c: arrays between guards, and the three types' arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "lib/rng.h"
#include "tests/cuda/values.h"
#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ARRAYS_MAX = 64 };

static struct array {
    uint8_t *map, *begin;
    size_t bytes, map_bytes; /* of map, without the page behind it */
} arrays[ARRAYS_MAX];
static int array_count;
static struct rng rng;

void *values_bytes(size_t bytes) {
    struct array a = {.bytes = bytes, .map_bytes = (bytes + 16 + PAGE - 1) / PAGE * PAGE};
    a.map =
        mmap(NULL, a.map_bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(a.map, MAP_FAILED);
    assert_int_equal(mprotect(a.map + a.map_bytes, PAGE, PROT_NONE), 0);
    a.begin = a.map + a.map_bytes - (bytes + 15) / 16 * 16;
    assert_true(array_count < ARRAYS_MAX);
    memset(a.map, array_count, a.map_bytes); /* guards differ, so that exchanging them shows */
    memset(a.begin, 0xff, bytes);
    arrays[array_count++] = a;
    return a.begin;
}

void values_free(void) {
    while (array_count) {
        struct array a = arrays[--array_count];
        size_t written = 0;
        for (const uint8_t *p = a.map; p < a.map + a.map_bytes; p++)
            written += (p < a.begin || p >= a.begin + a.bytes) && *p != array_count;
        munmap(a.map, a.map_bytes + PAGE);
        assert_int_equal(written, 0);
    }
}

void *values_new(enum kernels_type type, size_t count) {
    return values_bytes(count * (type == KERNELS_FP32 ? 4 : 2));
}

void values_seed(uint32_t seed) {
    rng = rng_at(seed, RNG_TEST, 0, 0);
}

uint32_t values_below(uint32_t below) {
    return rng_below(&rng, below);
}

void values_random(void *array, enum kernels_type type, size_t count, double largest) {
    for (size_t i = 0; i < count; i++) {
        uint32_t r = rng_u32(&rng);
        values_set(array, type, i, r % 16 ? (r / 2147483648.0 - 1) * largest : 0);
    }
}

double values_get(const void *array, enum kernels_type type, size_t i) {
    if (type == KERNELS_FP32)
        return (double)((const float *)array)[i];
    if (type == KERNELS_FP16)
        return (double)((const _Float16 *)array)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)array)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

void values_set(void *array, enum kernels_type type, size_t i, double x) {
    if (type == KERNELS_FP32) {
        ((float *)array)[i] = (float)x;
    } else if (type == KERNELS_FP16) {
        ((_Float16 *)array)[i] = (_Float16)x;
    } else { /* round to 8 significant bits */
        int exponent;
        double fraction = frexp(x, &exponent);
        float rounded = (float)ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        ((uint16_t *)array)[i] = (uint16_t)(bits >> 16);
    }
}

double values_roundoff(enum kernels_type type) {
    return ldexp(1, type == KERNELS_FP32 ? -24 : type == KERNELS_BF16 ? -8 : -11);
}

void values_check(const char *what, const void *array, enum kernels_type type, size_t i,
                  double exact, double slack) {
    double u = values_roundoff(type), got = values_get(array, type, i);
    double bound = u * fabs(exact) + (1 + u) * slack + (type == KERNELS_FP16 ? ldexp(1, -25) : 0);
    if (!(fabs(got - exact) <= bound))
        fail_msg("%s, type %d, value %zu: %.9g, not %.9g; allowed %g", what, (int)type, i, got,
                 exact, bound);
}
