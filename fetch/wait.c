/* wait.c: the signals of lib/stop.h are let in only while ppoll() sleeps: none can fall between the
 * look at the flag and the sleep. */
#include "fetch/wait.h"
#include "lib/clock.h"
#include "lib/stop.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

enum wait_end wait_until(int fd, int64_t deadline_ns) {
    sigset_t ours, before;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    enum wait_end end = WAIT_TIMEOUT;
    for (;;) {
        if (stop_requested()) {
            end = WAIT_STOPPED;
            break;
        }
        int64_t left = deadline_ns - clock_ns();
        if (left < 0)
            left = 0;
        struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        int ready = ppoll(&p, fd >= 0, &t, &before);
        if (ready > 0) {
            end = WAIT_READY;
            break;
        }
        if (ready == 0 && clock_ns() >= deadline_ns)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return end;
}
