/* stop.c: the handler stores the signal and nothing else. */
#include "lib/stop.h"
#include <signal.h>
#include <string.h>

static volatile sig_atomic_t signal_seen;
static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

static void on_signal(int number) {
    signal_seen = number;
}

void stop_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

int stop_requested(void) {
    return signal_seen;
}

void stop_finish(void) {
    if (!signal_seen)
        return;
    signal(signal_seen, SIG_DFL);
    raise(signal_seen);
}
