/* replay: the epoch lines of an earlier run, from its metrics file. */
#ifndef DDPIPE_AGGREGATOR_REPLAY_H
#define DDPIPE_AGGREGATOR_REPLAY_H

/* Prints the line of every "epoch" object; BAD_INPUT names file, line and what is wrong. */
int replay_print(const char *path);

#endif
