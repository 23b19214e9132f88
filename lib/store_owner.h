/* store_owner: who owns a store, in its file. For the store's own modules only.
 *
 * Changes to a store's owners, and its removal, happen under a write lock (fcntl) on its file:
 * nobody can become an owner of a store that is just being removed. */
#ifndef DDPIPE_STORE_OWNER_H
#define DDPIPE_STORE_OWNER_H

#include "lib/store.h"

/* The owner that a living process makes; SYSTEM_FAILED if there is no such process. */
int store_owner_of(pid_t pid, struct store_owner *owner);

/* Adds an owner to the published store at path, in the place of a dead one. *gone: nothing
 * was done, since the store was removed meanwhile. */
int store_owner_add(const char *path, const struct store_owner *owner, bool *gone);

/* Takes `leaving` (pid 0: nobody) and the dead from the owners. *removed: the store had none left
 * (or owners do not count: force) and no reader, and its name is gone. Otherwise *why tells,
 * or is NULL where there was nothing to remove. A file that is no store is left. */
int store_owner_release(const char *path, pid_t leaving, bool force, bool *removed,
                        const char **why);

#endif
