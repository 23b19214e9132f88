/* sock_ipc: makes the listening socket of an ipc endpoint.
 *
 * libzmq removes whatever has the name that it binds, a living process's socket too. So the socket
 * is bound here: under a private name, and linked to its own, which never replaces. A dead one's
 * name is removed under a lock on its folder, so that two that find it cannot remove each other's.
 */
#include "lib/sock_ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/log.h"

enum { BACKLOG = 16, NAME_SIZE = 40, PATH_BYTES = sizeof((struct sockaddr_un *)0)->sun_path - 1 };

int sock_ipc_check(const char *path) {
    size_t length = strlen(path);
    const char *base = strrchr(path, '/');
    if (path[0] != '/' || base[1] == '\0')
        return fail(BAD_USAGE, "ipc://%s: an absolute path is wanted, as in ipc:///folder/name",
                    path);
    if (length > PATH_BYTES)
        return fail(
            BAD_USAGE,
            "ipc://%s: the path has %zu bytes, the system allows %d: choose a shorter folder", path,
            length, (int)PATH_BYTES);
    return 0;
}

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

/* Listening under a private name in the folder. fchmod before bind gives the name its mode from
 * its first moment; /proc/self/fd keeps the address short whatever the folder's path is. */
static int listen_privately(int folder, const char *name, const char *path, int *fd) {
    char at[NAME_SIZE + 40];
    snprintf(at, sizeof at, "/proc/self/fd/%d/%s", folder, name);
    struct sockaddr_un address = address_of(at);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return fail(SYSTEM_FAILED, "cannot make a socket for %s: %s", path, strerror(errno));
    if (fchmod(*fd, 0600) == 0 && bind(*fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        listen(*fd, BACKLOG) == 0)
        return 0;
    int error = errno;
    close(*fd);
    return fail(SYSTEM_FAILED, "cannot bind %s: %s", path, strerror(error));
}

static bool is_dead(const char *path) {
    struct sockaddr_un address = address_of(path);
    struct stat st;
    if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool dead = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0 &&
                errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return dead;
}

/* Gives the private name its public one; a dead process's is removed first. */
static int publish(int folder, const char *name, const char *path) {
    const char *base = strrchr(path, '/') + 1;
    if (linkat(folder, name, folder, base, 0) == 0)
        return 0;
    if (errno != EEXIST)
        return fail(SYSTEM_FAILED, "cannot bind %s: %s", path, strerror(errno));
    if (flock(folder, LOCK_EX | LOCK_NB) < 0)
        return fail(SYSTEM_FAILED, "%s is just being taken over by another process", path);
    if (is_dead(path))
        unlinkat(folder, base, 0);
    if (linkat(folder, name, folder, base, 0) == 0)
        return 0;
    return fail(SYSTEM_FAILED, "cannot bind %s: %s", path,
                errno == EEXIST ? "it is in use by a living process, or is no socket"
                                : strerror(errno));
}

static int open_folder(const char *path, int *folder) {
    char name[sizeof((struct sockaddr_un *)0)->sun_path];
    int length = (int)(strrchr(path, '/') - path);
    snprintf(name, sizeof name, "%.*s/", length, path);
    *folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0)
        return fail(SYSTEM_FAILED, "cannot bind %s: the folder %s: %s", path, name,
                    strerror(errno));
    return 0;
}

int sock_ipc_listen(struct sock_ipc *ipc, const char *path, int *fd) {
    int folder;
    int r = sock_ipc_check(path);
    if (!r)
        r = open_folder(path, &folder);
    if (r)
        return r;
    char name[NAME_SIZE];
    struct stat st;
    snprintf(name, sizeof name, ".ddpipe.%ld.%d", (long)getpid(), folder);
    r = listen_privately(folder, name, path, fd);
    if (!r) {
        r = publish(folder, name, path);
        if (!r && fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            r = fail(SYSTEM_FAILED, "cannot look at %s: %s", path, strerror(errno));
        unlinkat(folder, name, 0);
        if (r)
            close(*fd);
    }
    close(folder);
    if (!r)
        *ipc = (struct sock_ipc){.path = path, .device = st.st_dev, .inode = st.st_ino};
    return r;
}

void sock_ipc_unlink(struct sock_ipc *ipc) {
    struct stat st;
    if (ipc->path && lstat(ipc->path, &st) == 0 && st.st_dev == ipc->device &&
        st.st_ino == ipc->inode)
        unlink(ipc->path);
    ipc->path = NULL;
}
