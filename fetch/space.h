/* space: is there room on the disk? */
#ifndef DDPIPE_FETCH_SPACE_H
#define DDPIPE_FETCH_SPACE_H

#include <stdint.h>

/* SYSTEM_FAILED, with the bytes needed and free, where dir's file system has less for this user. */
int space_check(const char *dir, uint64_t needed_bytes, const char *what);

#endif
