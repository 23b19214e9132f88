/* unpack: the wanted files of a tar archive, plain or gzipped, into the stage. */
#ifndef DDPIPE_FETCH_UNPACK_H
#define DDPIPE_FETCH_UNPACK_H

#include "fetch/stage.h"

/* Takes the members whose last name the stage wants, whatever folder they are in. BAD_INPUT, naming
 * `from` and the member, for an archive that is damaged or cut short, that unpacks to over 1 GiB,
 * or that has any member (wanted or not) with "..", with an absolute path, or that is no plain
 * file or folder. */
int unpack_archive(struct stage *s, const char *path, const char *from);

#endif
