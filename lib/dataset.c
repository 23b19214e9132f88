/* dataset.c: what is known of CIFAR-10, and the manifest of a directory, as text.
 * The md5 digests are those of the published cifar-10-binary.tar.gz's members. */
#include "lib/dataset.h"
#include "lib/digest.h"
#include "lib/file.h"
#include "lib/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct dataset_part dataset_cifar10[DATASET_CIFAR10_PARTS] = {
    {"data_batch_1.bin", "data_batch_1.png", "5dd7e06a14cb22eb9f671a540d1b7c25", true},
    {"data_batch_2.bin", "data_batch_2.png", "5ea93a67294ea407fff1d09f752e9692", true},
    {"data_batch_3.bin", "data_batch_3.png", "942cd6a4bcdd0dd3c604fbe906cb4421", true},
    {"data_batch_4.bin", "data_batch_4.png", "ae636b3ba5c66a11e91e8cb52e771fcb", true},
    {"data_batch_5.bin", "data_batch_5.png", "53f37980c15c3d472c316c40844f3f0d", true},
    {"test_batch.bin", "test_batch.png", "803d5f7f4d78ea53de84dbe85f74fb6d", false},
};

const char *const dataset_cifar10_classes[10] = {
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
};

static const char *const format_names[] = {
    [DATASET_CIFAR_BINARY] = "cifar-binary",
    [DATASET_CIFAR100_BINARY] = "cifar100-binary",
    [DATASET_PNG_SPRITES] = "png-sprites",
    [DATASET_PNG_FOLDERS] = "png-folders",
    [DATASET_IDX] = "idx",
};
enum {
    FORMATS = sizeof format_names / sizeof *format_names,
    FILES_MAX = 1 << 20,
    MANIFEST_MAX = 1 << 26,
};

const char *dataset_format_name(enum dataset_format format) {
    return (size_t)format < FORMATS ? format_names[format] : "unknown";
}

int dataset_format_of(const char *word) {
    for (int i = 0; i < FORMATS; i++)
        if (!strcmp(word, format_names[i]))
            return i;
    return -1;
}

int dataset_manifest_write(const char *dir, const struct dataset_manifest *m) {
    char path[4096], *text = NULL;
    size_t size = 0;
    int rc = file_join(path, sizeof path, dir, DATASET_MANIFEST);
    if (rc)
        return rc;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return fail(SYSTEM_FAILED, "out of memory for \"%s\"", path);
    fprintf(out, "ddpipe-dataset 1\nname %s\nformat %s\n", m->name, dataset_format_name(m->format));
    for (size_t i = 0; i < m->count; i++)
        fprintf(out, "file %" PRIu64 " %s %s\n", m->files[i].size, m->files[i].sha256,
                m->files[i].name);
    rc = fclose(out) ? fail(SYSTEM_FAILED, "out of memory for \"%s\"", path)
                     : file_publish(path, text, size, 0644);
    free(text);
    return rc;
}

/* The files of a manifest lie below its directory. */
static bool name_stays_inside(const char *name) {
    if (*name == '/' || !*name)
        return false;
    for (const char *at = name; *at; at += strcspn(at, "/"), at += *at == '/') {
        size_t length = strcspn(at, "/");
        if (length == 2 && !memcmp(at, "..", 2))
            return false;
    }
    return true;
}

static bool parse_file(const char *line, struct dataset_file *f) {
    int end = 0;
    if (sscanf(line, "file %20" SCNu64 " %64[0-9a-f] %n", &f->size, f->sha256, &end) != 2 || !end)
        return false;
    if (strlen(f->sha256) != 64 || strlen(line + end) >= sizeof f->name)
        return false;
    strcpy(f->name, line + end);
    return name_stays_inside(f->name);
}

/* Line number `number` (from 1) into m, whose files have room for it. */
static bool parse_line(char *line, size_t number, struct dataset_manifest *m) {
    if (number == 1)
        return !strcmp(line, "ddpipe-dataset 1");
    if (number == 2)
        return sscanf(line, "name %63[a-zA-Z0-9._-]", m->name) == 1;
    if (number == 3) {
        int format = strncmp(line, "format ", 7) ? -1 : dataset_format_of(line + 7);
        if (format >= 0)
            m->format = (enum dataset_format)format;
        return format >= 0;
    }
    return parse_file(line, &m->files[m->count]) && ++m->count;
}

static int parse(const char *path, char *text, size_t size, struct dataset_manifest *m) {
    size_t lines = 0;
    for (const char *c = text; c < text + size; c++)
        lines += *c == '\n';
    if (lines < 4 || lines > FILES_MAX || strlen(text) != size || text[size - 1] != '\n')
        return fail(BAD_INPUT, "\"%s\" is no whole manifest: %zu bytes, %zu lines", path, size,
                    lines);
    m->files = calloc(lines, sizeof *m->files);
    if (!m->files)
        return fail(SYSTEM_FAILED, "out of memory for the %zu files of \"%s\"", lines, path);
    char *line = text;
    for (size_t number = 1; number <= lines; number++) {
        char *end = strchr(line, '\n');
        *end = '\0';
        if (!parse_line(line, number, m))
            return fail(BAD_INPUT, "\"%s\" line %zu: \"%.80s\" is not understood", path, number,
                        line);
        line = end + 1;
    }
    return 0;
}

static int check_file(const char *dir, const struct dataset_file *f, bool check_digest) {
    char path[4096], hex[DIGEST_HEX_SIZE];
    struct stat s;
    int rc = file_join(path, sizeof path, dir, f->name);
    if (rc)
        return rc;
    if (stat(path, &s))
        return fail(BAD_INPUT, "\"%s\", named in %s: %s", path, DATASET_MANIFEST, strerror(errno));
    if (!S_ISREG(s.st_mode) || (uint64_t)s.st_size != f->size)
        return fail(BAD_INPUT, "\"%s\" has %lld bytes, %s has %" PRIu64, path, (long long)s.st_size,
                    DATASET_MANIFEST, f->size);
    if (!check_digest)
        return 0;
    rc = digest_of_file(DIGEST_SHA256, path, hex);
    if (!rc && strcmp(hex, f->sha256) != 0)
        rc = fail(BAD_INPUT, "\"%s\" has sha256 %s, %s has %s", path, hex, DATASET_MANIFEST,
                  f->sha256);
    return rc;
}

int dataset_manifest_read(const char *dir, bool check_digests, struct dataset_manifest *m,
                          bool *found) {
    char path[4096], *text;
    size_t size;
    *m = (struct dataset_manifest){0};
    *found = false;
    int rc = file_join(path, sizeof path, dir, DATASET_MANIFEST);
    if (rc || (access(path, F_OK) && (errno == ENOENT || errno == ENOTDIR)))
        return rc;
    rc = file_read(path, MANIFEST_MAX, &text, &size);
    if (rc)
        return rc;
    rc = parse(path, text, size, m);
    free(text);
    for (size_t i = 0; i < m->count && !rc; i++)
        rc = check_file(dir, &m->files[i], check_digests);
    if (rc)
        dataset_manifest_close(m);
    *found = !rc;
    return rc;
}

void dataset_manifest_close(struct dataset_manifest *m) {
    free(m->files);
    *m = (struct dataset_manifest){0};
}
