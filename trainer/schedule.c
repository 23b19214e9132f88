/* schedule.c: learning-rate factors. u is the part of the run that is done, 0 ≤ u < 1. */
#include "trainer/schedule.h"
#include <math.h>
#include <string.h>

static double cosine(double from, double to, double part) {
    return to + (from - to) * (1 + cos(acos(-1.0) * part)) / 2;
}

static double factor(const struct schedule *s, int64_t step) {
    double u = (double)step / (double)s->total_steps;
    if (!strcmp(s->name, "step"))
        return pow(s->gamma, (double)(step / s->steps_per_epoch / s->step_epochs));
    if (!strcmp(s->name, "cosine"))
        return cosine(1, s->end, u);
    if (!strcmp(s->name, "triangular"))
        return u < s->peak_at ? s->start + (1 - s->start) * u / s->peak_at
                              : 1 - (1 - s->end) * (u - s->peak_at) / (1 - s->peak_at);
    if (!strcmp(s->name, "onecycle")) {
        /* its phases end on steps peak_at·total - 1 and total - 1 */
        double peak = s->peak_at * (double)s->total_steps - 1, last = (double)s->total_steps - 1;
        double at = (double)step;
        return at <= peak ? cosine(1 / 25., 1, at / peak)
                          : cosine(1, 1 / 250000., (at - peak) / (last - peak));
    }
    return 1;
}

double schedule_rate(const struct schedule *s, int64_t step) {
    double warm = step < s->warmup_steps ? (double)(step + 1) / (double)s->warmup_steps : 1;
    return s->rate * warm * factor(s, step);
}
