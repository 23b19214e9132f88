/* clock.c: CLOCK_MONOTONIC as one number. */
#include "lib/clock.h"
#include <limits.h>
#include <time.h>

int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_deadline(double seconds) {
    return clock_ns() + (int64_t)(seconds * 1e9);
}

int clock_ms_left(int64_t deadline_ns) {
    int64_t ms = (deadline_ns - clock_ns() + 999999) / 1000000;
    return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}
