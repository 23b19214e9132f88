/* sock_ipc: the name of an ipc socket in the file system. For lib/sock.c only.
 *
 * The name appears when the socket already listens, so who finds one that refuses connections has
 * found a dead one's, and may take it over. */
#ifndef DDPIPE_SOCK_IPC_H
#define DDPIPE_SOCK_IPC_H

#include <sys/types.h>

struct sock_ipc {
    const char *path; /* the caller's */
    dev_t device;     /* of the name, to remove no other's */
    ino_t inode;
};

/* BAD_USAGE, with a hint, for a path that is not absolute or over 107 bytes. */
int sock_ipc_check(const char *path);

/* Listens at path; *fd is the caller's. SYSTEM_FAILED for a name in use by a living process. */
int sock_ipc_listen(struct sock_ipc *ipc, const char *path, int *fd);

/* Removes the name if it is still this socket's. */
void sock_ipc_unlink(struct sock_ipc *ipc);

#endif
