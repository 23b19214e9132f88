/* store_sweep: removes from a folder what dead processes of this user left there: published stores
 * without a living owner or reader, and private files whose maker is gone (it held a shared flock
 * as long as it lived). Names of others, and files that are no stores, are left alone. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/store.h"
#include "lib/store_owner.h"

static void sweep_private(const char *path) {
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0)
        log_note("removed %s: whoever was making it is gone", path);
    close(fd);
}

static int sweep_published(const char *path) {
    bool removed;
    const char *why;
    int r = store_owner_release(path, 0, false, &removed, &why);
    if (!r && removed)
        log_note("removed %s: its owners are gone", path);
    return r;
}

int store_sweep(const char *dir) {
    DIR *folder = opendir(dir);
    if (!folder)
        return fail(SYSTEM_FAILED, "cannot open the store's folder %s: %s", dir, strerror(errno));
    char prefix[32];
    int length = snprintf(prefix, sizeof prefix, "ddpipe.%u.", (unsigned)getuid());
    int r = 0;
    struct dirent *entry;
    while (!r && (entry = readdir(folder))) {
        char path[512];
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0 || entry->d_type != DT_REG)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (strncmp(entry->d_name + length, "new.", 4) == 0)
            sweep_private(path);
        else
            r = sweep_published(path);
    }
    closedir(folder);
    return r;
}
