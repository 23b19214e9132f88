/* The simulation of CUDA on the CPU runs right kernels, and names the mistake of wrong ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include <string.h>

/* planted.cu */
int planted_run(int kernel, int mistake, float *out, const float *in);
const char *planted_error(void);
enum { NONE, NO_BARRIER, SOME_WAIT, SOME_ENDED, TWO_BARRIERS, NO_WARP_BARRIER, UNWRITTEN, BEYOND };
enum { TREE, WARP_TREE, SHUFFLES };

static float out, in[64];

static void right_kernels(void **state) {
    (void)state;
    for (int i = 0; i < 64; i++)
        in[i] = (float)i;
    for (int kernel = TREE; kernel <= SHUFFLES; kernel++)
        for (int order = 0; order < 20; order++) {
            out = -1;
            assert_int_equal(planted_run(kernel, NONE, &out, in), 0);
            assert_int_equal((int)out, 63 * 64 / 2);
        }
}

static void refuses(int kernel, int mistake, const char *reason) {
    for (int order = 0; order < 20; order++) {
        assert_int_equal(planted_run(kernel, mistake, &out, in), SYSTEM_FAILED);
        if (!strstr(planted_error(), reason))
            fail_msg("\"%s\" does not say \"%s\"", planted_error(), reason);
    }
    /* What it gave up leaves nothing behind. */
    right_kernels(NULL);
}

static void races(void **state) {
    (void)state;
    refuses(TREE, UNWRITTEN, "before it was written");
    refuses(TREE, BEYOND, "beyond its end");
    refuses(TREE, NO_BARRIER, "race: ");
    refuses(WARP_TREE, NO_WARP_BARRIER, "race: ");
}

static void divergence(void **state) {
    (void)state;
    refuses(TREE, SOME_ENDED, "has ended");
    refuses(TREE, TWO_BARRIERS, "divergence: ");
    refuses(TREE, SOME_WAIT, "divergence: ");
    refuses(SHUFFLES, SOME_ENDED, "has ended");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels),
        cmocka_unit_test(races),
        cmocka_unit_test(divergence),
    };
    return cmocka_run_group_tests_name("cuda_cpu", tests, NULL, NULL);
}
