/* Learning rates at chosen steps, worked out by hand from each schedule's definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trainer/schedule.h"
#include <math.h>

static void near(double a, double b) {
    assert_true(fabs(a - b) <= 1e-12 * fmax(1, fabs(b)));
}

static struct schedule base(const char *name) {
    return (struct schedule){.name = name,
                             .rate = 2,
                             .start = .2,
                             .peak_at = .25,
                             .end = .1,
                             .gamma = .5,
                             .step_epochs = 2,
                             .total_steps = 100,
                             .steps_per_epoch = 10};
}

static void each(void **state) {
    (void)state;
    struct schedule s = base("constant");
    near(schedule_rate(&s, 0), 2);
    near(schedule_rate(&s, 99), 2);
    s = base("step"); /* torch StepLR(step_size=2 epochs, gamma=.5) */
    near(schedule_rate(&s, 19), 2);
    near(schedule_rate(&s, 20), 1);
    near(schedule_rate(&s, 99), 2 * pow(.5, 4));
    s = base("cosine"); /* torch CosineAnnealingLR(T_max=100, eta_min=.1·2) */
    near(schedule_rate(&s, 0), 2);
    near(schedule_rate(&s, 50), 2 * .55);
    near(schedule_rate(&s, 99), 2 * (.1 + .45 * (1 + cos(acos(-1) * .99))));
    s = base("triangular");
    near(schedule_rate(&s, 0), .4);
    near(schedule_rate(&s, 25), 2);
    near(schedule_rate(&s, 10), 2 * (.2 + .8 * .1 / .25));
    near(schedule_rate(&s, 85), 2 * (1 - .9 * .6 / .75));
    s = base("onecycle"); /* torch OneCycleLR(max_lr=2, total_steps=100, pct_start=.25) */
    near(schedule_rate(&s, 0), 2 / 25.);
    near(schedule_rate(&s, 24), 2);
    near(schedule_rate(&s, 99), 2 / 250000.);
}

static void warmup(void **state) {
    (void)state;
    struct schedule s = base("constant");
    s.warmup_steps = 4;
    near(schedule_rate(&s, 0), .5);
    near(schedule_rate(&s, 3), 2);
    near(schedule_rate(&s, 4), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each), cmocka_unit_test(warmup)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
