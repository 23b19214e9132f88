/* wait: for a descriptor or a point in time, ended at once by a signal (lib/stop.h). */
#ifndef DDPIPE_FETCH_WAIT_H
#define DDPIPE_FETCH_WAIT_H

#include <stdint.h>

enum wait_end { WAIT_READY, WAIT_TIMEOUT, WAIT_STOPPED };

/* Until fd can be read, the deadline has passed, or a signal came, also one that came just before.
 * fd -1: only until the deadline. */
enum wait_end wait_until(int fd, int64_t deadline_ns);

#endif
