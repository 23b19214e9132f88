/* parallel: work in pieces over threads. */
#ifndef DDPIPE_PARALLEL_H
#define DDPIPE_PARALLEL_H

#include <stddef.h>

/* CPUs this process may use, at least 1. */
int parallel_cpus(void);

/* Calls piece(context, 0 … count-1), each once, on at most `threads` threads (0: one per CPU).
 * Pieces are taken in order as threads come free. The first failure, or a signal (stop.h), keeps
 * further pieces from being begun; its code is returned. */
int parallel_for(size_t count, int threads, int (*piece)(void *context, size_t index),
                 void *context);

#endif
