/* test_parallel: every piece once, and the end at the first failure or signal. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/parallel.h"
#include "lib/stop.h"

#include <cmocka.h> /* last: its fail() would hide the one of lib/log.h */

enum { PIECES = 1000 };
static atomic_int calls[PIECES];

static int count_call(void *context, size_t index) {
    size_t *failing = context;
    atomic_fetch_add(&calls[index], 1);
    return failing && index == *failing ? 42 : 0;
}

static int total(void) {
    int sum = 0;
    for (int i = 0; i < PIECES; i++)
        sum += atomic_exchange(&calls[i], 0);
    return sum;
}

/* Proves: each piece is done exactly once, whatever the number of threads. */
static void test_every_piece_once(void **state) {
    (void)state;
    for (int threads = 0; threads <= 5; threads++) {
        assert_int_equal(parallel_for(PIECES, threads, count_call, NULL), 0);
        for (int i = 0; i < PIECES; i++)
            assert_int_equal(atomic_load(&calls[i]), 1);
        assert_int_equal(total(), PIECES);
    }
    assert_int_equal(parallel_for(0, 3, count_call, NULL), 0);
    assert_true(parallel_cpus() >= 1);
}

/* Proves: a failure is returned, and on one thread nothing is begun after it. */
static void test_failure_ends_it(void **state) {
    (void)state;
    size_t failing = 10;
    assert_int_equal(parallel_for(PIECES, 1, count_call, &failing), 42);
    assert_int_equal(total(), 11);
    assert_int_equal(parallel_for(PIECES, 4, count_call, &failing), 42);
    total();
}

static int raise_once(void *context, size_t index) {
    (void)context;
    if (index == 3)
        raise(SIGTERM);
    return count_call(NULL, index);
}

/* Proves: after SIGTERM no further piece is begun. In a child, since the flag stays set. */
static void test_signal_ends_it(void **state) {
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        stop_install();
        int r = parallel_for(PIECES, 1, raise_once, NULL);
        _exit(r == SYSTEM_FAILED && total() == 4 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void) {
    log_open("test_parallel", -1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_piece_once),
        cmocka_unit_test(test_failure_ends_it),
        cmocka_unit_test(test_signal_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
