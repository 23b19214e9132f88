/* clock: monotonic time, in nanoseconds, and deadlines on it. */
#ifndef DDPIPE_CLOCK_H
#define DDPIPE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some fixed point; never goes back. */
int64_t clock_ns(void);

/* The point in time `seconds` from now. */
int64_t clock_deadline(double seconds);

/* Milliseconds left until the deadline, rounded up, clamped to 0..INT_MAX: for poll(). */
int clock_ms_left(int64_t deadline_ns);

#endif
