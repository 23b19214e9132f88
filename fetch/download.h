/* download: one file from an http, https or file URL, by libcurl. */
#ifndef DDPIPE_FETCH_DOWNLOAD_H
#define DDPIPE_FETCH_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>

struct download {
    const char *url;
    const char *folder;     /* of path: its room on disk is asked for */
    const char *path;       /* what is there already is continued */
    uint64_t reserve_bytes; /* that must be free beside the file, for what is done with it next */
    int64_t deadline_ns;
    double connect_seconds; /* per attempt */
    int retries;            /* attempts after the first, counted anew whenever bytes came */
};

/* May the URL be downloaded: http, https, file? And is it file? */
bool download_knows(const char *url);
bool download_is_local(const char *url);

/* Continues or begins path until it is complete. Less than 1 KB/s for 30 s counts as broken. After
 * a failure what came is left at path, to be continued by a later call. BAD_INPUT where trying
 * again will not help (no such file, HTTP 4xx), else SYSTEM_FAILED. *resumed: path began with bytes
 * of an earlier call. */
int download_file(const struct download *d, bool *resumed);

#endif
