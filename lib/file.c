/* file.c: see file.h. */
#include "lib/file.h"
#include "lib/log.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(const char *path, const char *what) {
    int error = errno;
    bool absent = error == ENOENT || error == ENOTDIR || error == EACCES || error == EISDIR;
    return fail(absent ? BAD_INPUT : SYSTEM_FAILED, "cannot %s \"%s\": %s", what, path,
                strerror(error));
}

static int read_all(int fd, const char *path, size_t max_bytes, char **bytes, size_t *size) {
    struct stat s;
    if (fstat(fd, &s))
        return refuse(path, "stat");
    if (!S_ISREG(s.st_mode))
        return fail(BAD_INPUT, "\"%s\" is no regular file", path);
    if ((uint64_t)s.st_size > max_bytes)
        return fail(BAD_INPUT, "\"%s\" has %lld bytes, at most %zu are taken", path,
                    (long long)s.st_size, max_bytes);
    char *p = malloc((size_t)s.st_size + 1);
    if (!p)
        return fail(SYSTEM_FAILED, "out of memory for the %lld bytes of \"%s\"",
                    (long long)s.st_size, path);
    size_t done = 0;
    while (done < (size_t)s.st_size) {
        ssize_t n = read(fd, p + done, (size_t)s.st_size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int rc = n ? refuse(path, "read")
                       : fail(BAD_INPUT, "\"%s\" ends at offset %zu, its size was %lld", path, done,
                              (long long)s.st_size);
            free(p);
            return rc;
        }
        done += (size_t)n;
    }
    p[done] = '\0';
    *bytes = p;
    *size = done;
    return 0;
}

int file_read(const char *path, size_t max_bytes, char **bytes, size_t *size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refuse(path, "open");
    int rc = read_all(fd, path, max_bytes, bytes, size);
    close(fd);
    return rc;
}

static int write_all(int fd, const void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return -1;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int sync_folder(const char *path) {
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return refuse(slash ? dir : ".", "open");
    int rc = fsync(fd) && errno != EINVAL ? refuse(slash ? dir : ".", "sync") : 0;
    close(fd);
    return rc;
}

int file_publish(const char *path, const void *bytes, size_t size, mode_t mode) {
    char private[4096];
    if (snprintf(private, sizeof private, "%s.%ld.part", path, (long)getpid()) >=
        (int)sizeof private)
        return fail(BAD_INPUT, "the path \"%.60s…\" is too long", path);
    int fd = open(private, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return refuse(private, "create");
    int rc = 0;
    if (write_all(fd, bytes, size))
        rc = refuse(private, "write");
    else if (fsync(fd))
        rc = refuse(private, "sync");
    if (close(fd) && !rc)
        rc = refuse(private, "close");
    if (!rc && rename(private, path))
        rc = refuse(path, "publish");
    if (rc)
        unlink(private);
    return rc ? rc : sync_folder(path);
}

int file_make_folders(const char *path, mode_t mode) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return fail(BAD_INPUT, "the path \"%.60s…\" is too long", path);
    if (!*part)
        return fail(BAD_INPUT, "a folder's path is empty");
    for (char *at = part + 1;; at++) {
        char keep = *at;
        if (keep != '/' && keep != '\0')
            continue;
        *at = '\0';
        struct stat s;
        bool made = !mkdir(part, mode);
        if (!made && errno == EEXIST && !stat(part, &s)) {
            made = S_ISDIR(s.st_mode);
            errno = ENOTDIR;
        }
        if (!made)
            return refuse(part, "make the folder");
        *at = keep;
        if (!keep)
            return 0;
    }
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *place) {
    (void)s;
    (void)type;
    (void)place;
    return remove(path) && errno != ENOENT;
}

int file_remove_tree(const char *path) {
    struct stat s;
    if (lstat(path, &s) && errno == ENOENT)
        return 0;
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        return refuse(path, "remove");
    return 0;
}

int file_join(char *out, size_t size, const char *dir, const char *name) {
    int n = snprintf(out, size, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= size)
        return fail(BAD_INPUT, "the path of \"%s\" in \"%s\" takes over %zu bytes", name, dir,
                    size - 1);
    return 0;
}
