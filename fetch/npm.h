/* npm: packages by the npm that is installed, with whatever registry and proxy it is set up for. */
#ifndef DDPIPE_FETCH_NPM_H
#define DDPIPE_FETCH_NPM_H

#include <stdint.h>

/* Runs `npm pack PACKAGE` in folder, which then holds the package's archive. No script of the
 * package is run. SYSTEM_FAILED where there is no npm, where it fails (with what it says), or has
 * not ended by the deadline; it is ended then, and when a signal came. */
int npm_pack(const char *package, const char *folder, int64_t deadline_ns);

#endif
