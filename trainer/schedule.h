/* schedule: the learning rate as a function of the step. */
#ifndef DDPIPE_SCHEDULE_H
#define DDPIPE_SCHEDULE_H

#include <stdint.h>

struct schedule {
    /* "constant"; "step": × gamma every step_epochs (torch StepLR); "cosine": from 1 to end (torch
     * CosineAnnealingLR); "onecycle": torch OneCycleLR's cosine form, from 1/25 over 1 at peak_at
     * to 1/250,000; "triangular": from start over 1 at peak_at to end, straight lines. */
    const char *name;
    double rate; /* the factor 1 */
    double start, peak_at, end;
    double gamma;
    int64_t step_epochs;
    int64_t warmup_steps; /* × (step+1)/warmup_steps while below 1 */
    int64_t total_steps, steps_per_epoch;
};

/* step from 0, below total_steps. */
double schedule_rate(const struct schedule *s, int64_t step);

#endif
