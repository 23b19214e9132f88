/* progress: one line on a terminal that says how far a long piece of work is; nothing at all where
 * stderr is no terminal. */
#ifndef DDPIPE_PROGRESS_H
#define DDPIPE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    char label[64];
    const char *unit; /* "MB", "images"; kept, not copied */
    double scale;     /* units of work to one `unit`: 1e6 for bytes shown as MB */
    int64_t start_ns, drawn_ns;
    double first; /* done at the first call: not counted in the rate */
    bool shown;   /* there is a line to clear */
};

/* label and unit are shown as they are: "data.tar.gz  12.3 of 170.5 MB  4.1 MB/s  39 s left". */
struct progress progress_open(const char *label, const char *unit, double scale);

/* Draws anew, at most 5 times a second. total 0: not known. */
void progress_show(struct progress *p, double done, double total);

/* Clears the line, so that what is said next stands alone. */
void progress_close(struct progress *p);

#endif
