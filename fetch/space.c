/* space.c: asks the file system before the work starts, so that it does not end half-way. */
#include "fetch/space.h"
#include "lib/log.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>

int space_check(const char *dir, uint64_t needed_bytes, const char *what) {
    struct statvfs s;
    if (statvfs(dir, &s))
        return fail(SYSTEM_FAILED, "cannot ask how much room \"%s\" has: %s", dir, strerror(errno));
    uint64_t free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    if (free_bytes >= needed_bytes)
        return 0;
    return fail(SYSTEM_FAILED,
                "%s needs %" PRIu64 " bytes in \"%s\", %" PRIu64
                " are free: make room, or choose another --data-dir",
                what, needed_bytes, dir, free_bytes);
}
