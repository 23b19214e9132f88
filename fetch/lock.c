/* lock.c: flock() has no deadline, so a thread of its own waits in it, and tells by a pipe that it
 * has got the lock; who waits for the pipe can stop waiting at any time. */
#include "fetch/lock.h"
#include "fetch/wait.h"
#include "lib/clock.h"
#include "lib/log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Not on the stack: a thread that is given up still has it, until the process ends. */
static struct waiter { int fd, done[2]; } waiter;

static void *wait_in_flock(void *context) {
    struct waiter *w = context;
    int error = 0;
    while (flock(w->fd, LOCK_EX)) {
        error = errno;
        if (error != EINTR)
            break;
        error = 0;
    }
    ssize_t written = write(w->done[1], &error, sizeof error);
    (void)written; /* a pipe that was just made has room */
    return NULL;
}

/* Empty for a moment after its holder took it. */
static const char *holder(int fd, char text[48]) {
    char number[24] = "";
    ssize_t n = pread(fd, number, sizeof number - 1, 0);
    long pid = n > 0 ? strtol(number, NULL, 10) : 0;
    snprintf(text, 48, pid > 0 ? "process %ld" : "another process", pid);
    return text;
}

static int start(pthread_t *thread) {
    sigset_t all, before;
    if (pipe2(waiter.done, O_CLOEXEC))
        return errno;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(thread, NULL, wait_in_flock, &waiter);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static int wait_for_holder(int fd, const char *path, double seconds) {
    pthread_t thread;
    char who[48];
    log_note("waiting for %s, which is fetching already (at most %.0f s, --lock-timeout)",
             holder(fd, who), seconds);
    waiter.fd = fd;
    int error = start(&thread);
    if (error)
        return fail(SYSTEM_FAILED, "cannot wait for \"%s\": %s", path, strerror(error));
    enum wait_end end = wait_until(waiter.done[0], clock_deadline(seconds));
    if (end != WAIT_READY) {
        pthread_detach(thread);
        return end == WAIT_STOPPED
                   ? fail(SYSTEM_FAILED, "stopped while waiting for \"%s\"", path)
                   : fail(SYSTEM_FAILED, "%s still holds \"%s\" after %.0f s (--lock-timeout)",
                          holder(fd, who), path, seconds);
    }
    pthread_join(thread, NULL);
    ssize_t n = read(waiter.done[0], &error, sizeof error);
    close(waiter.done[0]);
    close(waiter.done[1]);
    if (n != sizeof error || error)
        return fail(SYSTEM_FAILED, "cannot lock \"%s\": %s", path, strerror(error));
    return 0;
}

static int sign(int fd, const char *path) {
    char text[32];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)length, 0) != length)
        return fail(SYSTEM_FAILED, "cannot write \"%s\": %s", path, strerror(errno));
    return 0;
}

int lock_open(int *fd, const char *path, double seconds) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0)
        return fail(SYSTEM_FAILED, "cannot open \"%s\": %s (--data-dir chooses another place)",
                    path, strerror(errno));
    int rc = 0;
    if (flock(*fd, LOCK_EX | LOCK_NB))
        rc = errno == EWOULDBLOCK
                 ? wait_for_holder(*fd, path, seconds)
                 : fail(SYSTEM_FAILED, "cannot lock \"%s\": %s", path, strerror(errno));
    return rc ? rc : sign(*fd, path);
}

void lock_close(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
