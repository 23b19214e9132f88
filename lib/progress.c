/* progress.c: the line is drawn over itself with a carriage return, and cleared at the end. */
#include "lib/progress.h"
#include "lib/clock.h"
#include <stdio.h>
#include <unistd.h>

enum { REDRAW_NS = 200 * 1000 * 1000 };

struct progress progress_open(const char *label, const char *unit, double scale) {
    struct progress p = {.unit = unit, .scale = scale, .start_ns = clock_ns(), .first = -1};
    snprintf(p.label, sizeof p.label, "%s", label);
    return p;
}

void progress_show(struct progress *p, double done, double total) {
    int64_t now = clock_ns();
    if (!isatty(STDERR_FILENO))
        return;
    if (p->first < 0) {
        p->first = done;
        p->start_ns = now;
    }
    if (p->drawn_ns && now - p->drawn_ns < REDRAW_NS)
        return;
    double seconds = (double)(now - p->start_ns) * 1e-9;
    double rate = seconds > 0 ? (done - p->first) / seconds : 0;
    fprintf(stderr, "\r\033[K%s  %.1f", p->label, done / p->scale);
    if (total > 0)
        fprintf(stderr, " of %.1f", total / p->scale);
    fprintf(stderr, " %s", p->unit);
    if (rate > 0)
        fprintf(stderr, "  %.1f %s/s", rate / p->scale, p->unit);
    if (rate > 0 && total > done)
        fprintf(stderr, "  %.0f s left", (total - done) / rate);
    fflush(stderr);
    p->drawn_ns = now;
    p->shown = true;
}

void progress_close(struct progress *p) {
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}
