/* stage.c: files are digested while they are written; nothing is published that was not compared.
 */
#include "fetch/stage.h"
#include "fetch/gunzip.h"
#include "lib/file.h"
#include "lib/log.h"
#include "lib/stop.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int stage_name(struct stage *s, const char *data, const struct catalog *catalog) {
    char hidden[64];
    *s = (struct stage){.catalog = catalog};
    snprintf(hidden, sizeof hidden, ".%s.new", catalog->name);
    snprintf(s->data, sizeof s->data, "%s", data); /* too long a one fails below */
    int rc = file_join(s->dir, sizeof s->dir, data, hidden);
    if (!rc)
        rc = file_join(s->final, sizeof s->final, data, catalog->name);
    return rc ? rc : file_join(s->scratch, sizeof s->scratch, s->dir, "scratch");
}

int stage_open(struct stage *s) {
    memset(s->taken, 0, sizeof s->taken);
    int rc = file_remove_tree(s->dir);
    return rc ? rc : file_make_folders(s->scratch, 0755);
}

void stage_close(struct stage *s) {
    file_remove_tree(s->dir);
}

static const struct catalog_file *find(const struct stage *s, const char *name, size_t *form,
                                       size_t *place) {
    for (size_t i = 0; i < s->catalog->form_count; i++)
        for (size_t k = 0; k < s->catalog->forms[i].count; k++)
            if (!strcmp(s->catalog->forms[i].files[k].name, name)) {
                *form = i;
                *place = k;
                return &s->catalog->forms[i].files[k];
            }
    return NULL;
}

bool stage_wants(const struct stage *s, const char *name) {
    size_t form, place;
    return find(s, name, &form, &place) != NULL;
}

int stage_file_open(struct stage_file *f, struct stage *s, const char *name, const char *from) {
    *f = (struct stage_file){.stage = s, .from = from, .fd = -1};
    f->known = find(s, name, &f->form, &f->place);
    if (!f->known)
        return fail(BAD_INPUT, "%s: \"%s\" is no file of %s", from, name, s->catalog->name);
    if (s->taken[f->form][f->place])
        return fail(BAD_INPUT, "%s holds \"%s\" twice", from, name);
    int rc = file_join(f->path, sizeof f->path, s->dir, name);
    if (rc)
        return rc;
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return fail(SYSTEM_FAILED, "cannot create \"%s\": %s", f->path, strerror(errno));
    rc = digest_open(&f->sha256, DIGEST_SHA256);
    if (!rc && f->known->kind == DIGEST_MD5)
        rc = digest_open(&f->md5, DIGEST_MD5);
    if (rc)
        stage_file_drop(f);
    return rc;
}

int stage_file_add(struct stage_file *f, const void *bytes, size_t size) {
    if (stop_requested())
        return fail(SYSTEM_FAILED, "stopped while writing \"%s\"", f->path);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(f->fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return fail(SYSTEM_FAILED, "cannot write \"%s\" at offset %" PRIu64 ": %s", f->path,
                        f->size + done, strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    f->size += size;
    int rc = digest_add(f->sha256, bytes, size);
    return !rc && f->md5 ? digest_add(f->md5, bytes, size) : rc;
}

void stage_file_drop(struct stage_file *f) {
    char unused[DIGEST_HEX_SIZE];
    if (f->sha256)
        digest_close(&f->sha256, unused);
    if (f->md5)
        digest_close(&f->md5, unused);
    if (f->fd >= 0)
        close(f->fd);
    if (!f->stage->taken[f->form][f->place])
        unlink(f->path);
    f->fd = -1;
}

static int compare(const struct stage_file *f, uint64_t size, const char *digest) {
    if (size != f->known->size)
        return fail(BAD_INPUT, "%s: \"%s\" %s %" PRIu64 " bytes, the published one %" PRIu64,
                    f->from, f->known->name, f->known->gzipped ? "unpacks to" : "has", size,
                    f->known->size);
    if (strcmp(digest, f->known->digest) != 0)
        return fail(BAD_INPUT, "%s: \"%s\" is not the published one: %s %s, expected %s", f->from,
                    f->known->name, f->known->kind == DIGEST_MD5 ? "md5" : "sha256", digest,
                    f->known->digest);
    return 0;
}

int stage_file_close(struct stage_file *f) {
    struct dataset_file *out = &f->stage->files[f->form][f->place];
    const struct catalog_file *known = f->known;
    char hex[DIGEST_HEX_SIZE] = "";
    uint64_t size = f->size;
    snprintf(out->name, sizeof out->name, "%s", known->name);
    out->size = f->size;
    int rc = digest_close(&f->sha256, out->sha256);
    if (!rc && f->md5)
        rc = digest_close(&f->md5, hex);
    if (!rc && fsync(f->fd))
        rc = fail(SYSTEM_FAILED, "cannot sync \"%s\": %s", f->path, strerror(errno));
    if (!rc && known->gzipped)
        rc = gunzip_digest(f->path, f->from, known->size, known->kind, hex, &size);
    if (!rc)
        rc = compare(f, size, *hex ? hex : out->sha256);
    f->stage->taken[f->form][f->place] = !rc;
    stage_file_drop(f);
    return rc;
}

int stage_copy(struct stage *s, const char *name, const char *path, const char *from) {
    static char block[1 << 16];
    struct stage_file f;
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return fail(BAD_INPUT, "cannot open \"%s\": %s", path, strerror(errno));
    int rc = stage_file_open(&f, s, name, from);
    if (rc) {
        close(in);
        return rc;
    }
    for (;;) {
        ssize_t n = read(in, block, sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = fail(SYSTEM_FAILED, "cannot read \"%s\" at offset %" PRIu64 ": %s", path, f.size,
                      strerror(errno));
        if (n <= 0 || (rc = stage_file_add(&f, block, (size_t)n)))
            break;
    }
    close(in);
    if (!rc)
        return stage_file_close(&f);
    stage_file_drop(&f);
    return rc;
}

static size_t count_taken(const struct stage *s, size_t form) {
    size_t count = 0;
    for (size_t k = 0; k < s->catalog->forms[form].count; k++)
        count += s->taken[form][k];
    return count;
}

static int list_missing(const struct stage *s, size_t form, const char *from) {
    const struct catalog_form *c = &s->catalog->forms[form];
    char list[512] = "";
    for (size_t k = 0; k < c->count; k++)
        if (!s->taken[form][k])
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "",
                     c->files[k].name);
    return fail(BAD_INPUT, "%s holds no whole %s: missing are %s", from, s->catalog->name, list);
}

/* Which one form is there, and nothing of another? */
static int choose_form(const struct stage *s, const char *from, size_t *form) {
    size_t begun = 0;
    *form = 0;
    for (size_t i = 0; i < s->catalog->form_count; i++)
        if (count_taken(s, i)) {
            *form = i;
            begun++;
        }
    if (begun > 1)
        return fail(BAD_INPUT, "%s mixes %s and %s", from,
                    dataset_format_name(s->catalog->forms[0].format),
                    dataset_format_name(s->catalog->forms[1].format));
    return count_taken(s, *form) < s->catalog->forms[*form].count ? list_missing(s, *form, from)
                                                                  : 0;
}

static int sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || (fsync(fd) && errno != EINVAL);
    int error = errno;
    if (fd >= 0)
        close(fd);
    return failed ? fail(SYSTEM_FAILED, "cannot sync \"%s\": %s", path, strerror(error)) : 0;
}

int stage_publish(struct stage *s, const char *from) {
    size_t form;
    int rc = choose_form(s, from, &form);
    if (rc)
        return rc;
    struct dataset_manifest m = {.format = s->catalog->forms[form].format,
                                 .count = s->catalog->forms[form].count,
                                 .files = s->files[form]};
    snprintf(m.name, sizeof m.name, "%s", s->catalog->name);
    rc = file_remove_tree(s->scratch);
    if (!rc)
        rc = dataset_manifest_write(s->dir, &m);
    if (rc)
        return rc;
    if (stop_requested())
        return fail(SYSTEM_FAILED, "stopped before \"%s\" was published", s->final);
    if (rename(s->dir, s->final))
        return fail(SYSTEM_FAILED, "cannot publish \"%s\": %s", s->final, strerror(errno));
    return sync_folder(s->data);
}
