/* lock: one fetch per data set and data directory at a time. */
#ifndef DDPIPE_FETCH_LOCK_H
#define DDPIPE_FETCH_LOCK_H

/* Takes the lock file at path (made if need be), and writes this process's id into it. While
 * another process has it: says so once, with that one's id, and waits for `seconds`; then
 * SYSTEM_FAILED, or at once when a signal came. *fd is then the caller's, to be closed: that, or
 * the end of the process, gives the lock back; the file stays. */
int lock_open(int *fd, const char *path, double seconds);
void lock_close(int *fd);

#endif
