/* stop: SIGINT, SIGTERM and SIGHUP set a flag; loops look at it, blocking calls return early
 * (no SA_RESTART). The process then cleans up what it named and ends by the same signal. */
#ifndef DDPIPE_STOP_H
#define DDPIPE_STOP_H

void stop_install(void);

/* The signal asked for, or 0. */
int stop_requested(void);

/* After cleaning up: resets the handler and raises the signal again, so that the parent sees
 * the true cause. Returns only when no signal came. */
void stop_finish(void);

#endif
