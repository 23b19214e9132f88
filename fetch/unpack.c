/* unpack.c: libarchive reads; where a file lands is decided here alone: under its known name in the
 * stage. Members are refused rather than skipped when they look like an attack, since an archive
 * with such a member is not the published one. */
#include "fetch/unpack.h"
#include "lib/log.h"
#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <string.h>

enum { BLOCK = 1 << 16 };
#define UNPACKED_MAX ((int64_t)1 << 30)

static bool climbs(const char *name) {
    for (const char *at = name; *at; at += *at == '/') {
        size_t length = strcspn(at, "/");
        if (length == 2 && !memcmp(at, "..", 2))
            return true;
        at += length;
    }
    return false;
}

static int check_member(struct archive_entry *e, const char *from, const char **name) {
    *name = archive_entry_pathname(e);
    if (!*name || !**name)
        return fail(BAD_INPUT, "%s: a member has no readable name", from);
    if (**name == '/')
        return fail(BAD_INPUT, "%s: member \"%s\" has an absolute path", from, *name);
    if (climbs(*name))
        return fail(BAD_INPUT, "%s: member \"%s\" leaves the directory by \"..\"", from, *name);
    if (archive_entry_hardlink(e) || archive_entry_symlink(e))
        return fail(BAD_INPUT, "%s: member \"%s\" is a link", from, *name);
    if (archive_entry_filetype(e) != AE_IFREG && archive_entry_filetype(e) != AE_IFDIR)
        return fail(BAD_INPUT, "%s: member \"%s\" is neither file nor folder", from, *name);
    return 0;
}

static int check_total(struct archive *a, struct archive_entry *e, const char *from,
                       const char *name) {
    if (archive_entry_size(e) > UNPACKED_MAX - archive_filter_bytes(a, 0))
        return fail(BAD_INPUT,
                    "%s: with member \"%s\" of %" PRId64 " bytes it unpacks to over 1 GiB", from,
                    name, (int64_t)archive_entry_size(e));
    return 0;
}

static int take(struct archive *a, struct stage *s, const char *from, const char *member,
                const char *name) {
    static char block[BLOCK];
    struct stage_file f;
    int rc = stage_file_open(&f, s, name, from);
    if (rc)
        return rc;
    la_ssize_t n = 0;
    while (!rc && (n = archive_read_data(a, block, sizeof block)) > 0)
        rc = stage_file_add(&f, block, (size_t)n);
    if (!rc && n < 0)
        rc = fail(BAD_INPUT, "%s: member \"%s\" at offset %" PRIu64 ": %s", from, member, f.size,
                  archive_error_string(a));
    if (!rc)
        return stage_file_close(&f);
    stage_file_drop(&f);
    return rc;
}

static int read_members(struct archive *a, struct stage *s, const char *from) {
    struct archive_entry *e;
    const char *member, *last = NULL;
    char before[256] = "";
    int end;
    while ((end = archive_read_next_header(a, &e)) == ARCHIVE_OK) {
        int rc = check_member(e, from, &member);
        if (!rc)
            rc = check_total(a, e, from, member);
        if (rc)
            return rc;
        last = strrchr(member, '/');
        last = last ? last + 1 : member;
        snprintf(before, sizeof before, "%s", member);
        if (archive_entry_filetype(e) == AE_IFREG && stage_wants(s, last))
            rc = take(a, s, from, member, last);
        if (rc)
            return rc;
    }
    if (end == ARCHIVE_EOF)
        return 0;
    return fail(BAD_INPUT, "%s: after %s%s%s: %s", from, *before ? "member \"" : "its beginning",
                before, *before ? "\"" : "", archive_error_string(a));
}

int unpack_archive(struct stage *s, const char *path, const char *from) {
    struct archive *a = archive_read_new();
    if (!a)
        return fail(SYSTEM_FAILED, "out of memory for unpacking %s", from);
    int rc;
    if (archive_read_support_filter_gzip(a) != ARCHIVE_OK ||
        archive_read_support_format_tar(a) != ARCHIVE_OK ||
        archive_read_open_filename(a, path, BLOCK) != ARCHIVE_OK)
        rc = fail(BAD_INPUT, "%s is no tar archive: %s", from, archive_error_string(a));
    else
        rc = read_members(a, s, from);
    archive_read_free(a);
    return rc;
}
