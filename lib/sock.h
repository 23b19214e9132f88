/* sock: ZeroMQ sockets with deadlines, and word of a peer that goes away.
 *
 * Roles are in the names: the side that binds owns the name (an ipc file is removed on close).
 * Endpoints are "ipc:///absolute/path" or "tcp://host:port". No call blocks past its deadline;
 * SIGINT/SIGTERM (stop.h) end a wait at once. A DUPLEX or PUSH socket has one peer: once it is gone
 * every later call says so. A MANY or PULL socket tells once of each peer that goes, in sock_recv.
 */
#ifndef DDPIPE_SOCK_H
#define DDPIPE_SOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

enum sock_kind {
    SOCK_DUPLEX, /* one peer each way (DEALER): loader and trainer */
    SOCK_MANY,   /* many to one, bound (ROUTER): messages carry the sender's identity */
    SOCK_PUSH,   /* to a SOCK_PULL */
    SOCK_PULL,   /* from many SOCK_PUSH */
};

/* What a wait ended with. Not failures: the caller decides and reports. */
enum sock_event {
    SOCK_OK = 0,
    SOCK_TIMEOUT = -1,     /* the deadline passed */
    SOCK_PEER_GONE = -2,   /* a connected peer closed or died, and nothing is left to receive */
    SOCK_INTERRUPTED = -3, /* stop_requested() */
};

struct sock;

/* Where the environment has DDPIPE_RUN_KEY, every tcp socket opened from now on encrypts, and talks
 * only to those that have the same text there (CURVE, curvezmq.org; both sides' key pair is made of
 * the text's SHA-256). *used: whether it has. Ipc sockets are guarded by the mode of their folder.
 */
int sock_use_run_key(bool *used);

/* Binds; the ipc path is created mode 0600 in a folder that must exist, a path over 107 bytes or
 * a name in use by a living process is refused; a dead one's name is taken over. */
int sock_bind(struct sock **s, enum sock_kind kind, const char *endpoint);

/* Connects; succeeds before the peer is there (waiting for it is recv's or send's deadline). */
int sock_connect(struct sock **s, enum sock_kind kind, const char *endpoint);

/* The endpoint as bound, with the port chosen where it was given as "*"; lives as long as s. */
const char *sock_endpoint(const struct sock *s);

/* Peers connected now, as far as is known. */
int sock_peers(struct sock *s);

/* Connections that failed before they counted as a peer: not ours, or without our key. */
int sock_strangers(struct sock *s);

/* Sends one message (or one frame with more to come); on SOCK_OK the message is taken over.
 * Waits for a peer, and for room in the queue, until the deadline. */
enum sock_event sock_send(struct sock *s, zmq_msg_t *message, int more, int64_t deadline_ns);
enum sock_event sock_send_bytes(struct sock *s, const void *bytes, size_t size, int more,
                                int64_t deadline_ns);

/* Receives one message into an initialised zmq_msg_t. */
enum sock_event sock_recv(struct sock *s, zmq_msg_t *message, int64_t deadline_ns);

/* "timed out", "peer closed the connection", "interrupted": for messages. */
const char *sock_event_text(enum sock_event event);

/* Sends what is queued (at most linger_ms), closes, removes the name. Clears the pointer. */
void sock_close(struct sock **s, int linger_ms);

#endif
