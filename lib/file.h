/* file: whole files, read and published. A file appears under its name complete or not at all:
 * written under a private name beside it, fsync, rename, fsync of the folder. */
#ifndef DDPIPE_FILE_H
#define DDPIPE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads the whole file; *bytes is the caller's to free (NUL-terminated beyond *size). Refuses more
 * than max_bytes. Errors name the path. */
int file_read(const char *path, size_t max_bytes, char **bytes, size_t *size);

/* Publishes size bytes as path with the given mode. Nothing is left on failure. */
int file_publish(const char *path, const void *bytes, size_t size, mode_t mode);

/* mkdir -p. */
int file_make_folders(const char *path, mode_t mode);

/* Removes path and all below it (no links followed); a missing path is no error. */
int file_remove_tree(const char *path);

/* dir + "/" + name into out[size]; too long is an error that names both. */
int file_join(char *out, size_t size, const char *dir, const char *name);

#endif
