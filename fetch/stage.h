/* stage: a data set's directory in the making, DATA/.NAME.new, which becomes DATA/NAME by rename
 * when every file of one form is in it and has the published content. One process at a time may
 * have it: who holds the lock (lock.h). */
#ifndef DDPIPE_FETCH_STAGE_H
#define DDPIPE_FETCH_STAGE_H

#include "fetch/catalog.h"
#include <stdbool.h>

enum { STAGE_PATH_MAX = 1024 };

struct stage {
    const struct catalog *catalog;
    char data[STAGE_PATH_MAX];    /* DATA */
    char dir[STAGE_PATH_MAX];     /* DATA/.NAME.new */
    char scratch[STAGE_PATH_MAX]; /* DATA/.NAME.new/scratch: for whatever a source needs */
    char final[STAGE_PATH_MAX];   /* DATA/NAME */
    struct dataset_file files[CATALOG_FORMS_MAX][CATALOG_FILES_MAX];
    bool taken[CATALOG_FORMS_MAX][CATALOG_FILES_MAX];
};

/* Fills in the names; makes nothing. */
int stage_name(struct stage *s, const char *data, const struct catalog *catalog);

/* Makes it, empty, with its scratch folder; what an earlier process left there is removed. */
int stage_open(struct stage *s);

/* Removes what was not published. */
void stage_close(struct stage *s);

/* A file on its way into the stage. */
struct stage_file {
    struct stage *stage;
    const struct catalog_file *known;
    const char *from; /* for messages: where it comes from; kept */
    char path[STAGE_PATH_MAX];
    size_t form, place;
    int fd;
    uint64_t size;
    struct digest *sha256, *md5; /* md5 only where the published digest is one */
};

/* Does the data set have a file of that name? */
bool stage_wants(const struct stage *s, const char *name);

/* Begins the file of that name (one the stage wants; twice is BAD_INPUT), takes its bytes, ends it:
 * BAD_INPUT with both figures where size or digest is not the published one. After a failure
 * of add, or to break off, call drop instead of close. What failed is gone from the stage. */
int stage_file_open(struct stage_file *f, struct stage *s, const char *name, const char *from);
int stage_file_add(struct stage_file *f, const void *bytes, size_t size);
int stage_file_close(struct stage_file *f);
void stage_file_drop(struct stage_file *f);

/* All of that with the content of the file at path. */
int stage_copy(struct stage *s, const char *name, const char *path, const char *from);

/* Writes the manifest and renames. BAD_INPUT, naming what is missing of `from`, unless exactly one
 * form is there. */
int stage_publish(struct stage *s, const char *from);

#endif
