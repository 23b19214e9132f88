/* sock: ZeroMQ sockets whose every wait has a deadline and hears of a peer's end.
 *
 * Each socket has a context of its own, so that sock_close returns when what was queued is sent (or
 * its time is over) and a port is free again. A monitor tells of handshakes and disconnections:
 * a connection counts as a peer from its handshake on, so a stranger who comes and goes is none.
 * Heartbeats turn a host that vanished into a disconnection. With a key, a tcp server has the
 * secret half of the pair and admits who knows the public half, which only the key's text tells. */
#include "lib/sock.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/address.h"
#include "lib/clock.h"
#include "lib/digest.h"
#include "lib/log.h"
#include "lib/sock_ipc.h"
#include "lib/stop.h"

enum {
    HEARTBEAT_MS = 2000,
    HEARTBEAT_TIMEOUT_MS = 8000,
    /* A signal between the look at its flag and the wait, or one that another thread took, does
     * not end the wait: the flag is looked at again after this long. */
    SLICE_MS = 200,
    ENDPOINT_SIZE = 256,
};

#define IPC "ipc://"
#define TCP "tcp://"

struct sock {
    enum sock_kind kind;
    void *context, *socket, *monitor;
    struct sock_ipc ipc;
    char endpoint[ENDPOINT_SIZE];
    int peers;        /* connected now */
    int departed;     /* gone, and not yet reported */
    int strangers;    /* handshakes that failed */
    bool failed_hand; /* the next disconnection is that of a handshake that failed */
};

static struct {
    bool set;
    char public[41], secret[41]; /* Z85 */
} key;

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* One peer: its departure is final. */
static bool has_one_peer(const struct sock *s) {
    return s->kind == SOCK_DUPLEX || s->kind == SOCK_PUSH;
}

static int set(struct sock *s, int option, int value) {
    if (zmq_setsockopt(s->socket, option, &value, sizeof value) < 0)
        return fail(SYSTEM_FAILED, "%s: cannot set option %d of the socket: %s", s->endpoint,
                    option, zmq_strerror(errno));
    return 0;
}

static int open_monitor(struct sock *s) {
    const int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                       ZMQ_EVENT_DISCONNECTED;
    /* No limit: a full queue would block libzmq's own thread. */
    int none = 0;
    s->monitor = zmq_socket(s->context, ZMQ_PAIR);
    if (!s->monitor || zmq_setsockopt(s->monitor, ZMQ_RCVHWM, &none, sizeof none) < 0 ||
        zmq_setsockopt(s->monitor, ZMQ_LINGER, &none, sizeof none) < 0 ||
        zmq_socket_monitor(s->socket, "inproc://monitor", events) < 0 ||
        zmq_connect(s->monitor, "inproc://monitor") < 0)
        return fail(SYSTEM_FAILED, "%s: cannot watch the socket: %s", s->endpoint,
                    zmq_strerror(errno));
    return 0;
}

int sock_use_run_key(bool *used) {
    const char *text = getenv("DDPIPE_RUN_KEY");
    char hex[DIGEST_HEX_SIZE];
    uint8_t secret[32];
    key.set = *used = text && *text;
    if (!key.set)
        return 0;
    int r = digest_of_bytes(DIGEST_SHA256, text, strlen(text), hex);
    for (int i = 0; i < 32 && !r; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};
        secret[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    if (!r && (!zmq_z85_encode(key.secret, secret, sizeof secret) ||
               zmq_curve_public(key.public, key.secret) < 0))
        r = fail(SYSTEM_FAILED, "libzmq has no CURVE: %s", zmq_strerror(errno));
    return r;
}

static int use_key(struct sock *s, bool server) {
    int one = 1;
    if (!key.set || !starts_with(s->endpoint, TCP))
        return 0;
    if ((server
             ? zmq_setsockopt(s->socket, ZMQ_CURVE_SERVER, &one, sizeof one)
             : zmq_setsockopt(s->socket, ZMQ_CURVE_SERVERKEY, key.public, sizeof key.public)) < 0 ||
        zmq_setsockopt(s->socket, ZMQ_CURVE_PUBLICKEY, key.public, sizeof key.public) < 0 ||
        zmq_setsockopt(s->socket, ZMQ_CURVE_SECRETKEY, key.secret, sizeof key.secret) < 0)
        return fail(SYSTEM_FAILED, "%s: cannot use the run's key: %s", s->endpoint,
                    zmq_strerror(errno));
    return 0;
}

static int open_socket(struct sock *s) {
    static const int types[] = {[SOCK_DUPLEX] = ZMQ_DEALER,
                                [SOCK_MANY] = ZMQ_ROUTER,
                                [SOCK_PUSH] = ZMQ_PUSH,
                                [SOCK_PULL] = ZMQ_PULL};
    s->context = zmq_ctx_new();
    s->socket = s->context ? zmq_socket(s->context, types[s->kind]) : NULL;
    if (!s->socket)
        return fail(SYSTEM_FAILED, "%s: cannot make a socket: %s", s->endpoint,
                    zmq_strerror(errno));
    int r = set(s, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
    if (!r)
        r = set(s, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS);
    if (!r && s->kind == SOCK_MANY)
        r = set(s, ZMQ_ROUTER_MANDATORY, 1);
    return r ? r : open_monitor(s);
}

/* libzmq would take the lower 16 bits of any number. */
static int check_port(const char *endpoint) {
    const char *port = strrchr(endpoint, ':') + 1;
    bool number = strspn(port, "0123456789") == strlen(port) && strlen(port) <= 5;
    if (strcmp(port, "*") == 0 || (number && atoi(port) >= 1 && atoi(port) <= 65535))
        return 0;
    return fail(BAD_USAGE, "endpoint %s: a port of 1 to 65535 is wanted", endpoint);
}

static int check_endpoint(const char *endpoint) {
    if (strlen(endpoint) >= ENDPOINT_SIZE)
        return fail(BAD_USAGE, "endpoint %s: longer than %d bytes", endpoint, ENDPOINT_SIZE - 1);
    if (starts_with(endpoint, IPC))
        return sock_ipc_check(endpoint + strlen(IPC));
    if (starts_with(endpoint, TCP))
        return check_port(endpoint);
    return fail(BAD_USAGE, "endpoint \"%s\": ipc:///absolute/path or tcp://host:port is wanted",
                endpoint);
}

static int bind_ipc(struct sock *s) {
    int fd;
    int r = sock_ipc_listen(&s->ipc, s->endpoint + strlen(IPC), &fd);
    if (r)
        return r;
    return set(s, ZMQ_USE_FD, fd);
}

/* libzmq binds addresses and interfaces, not names. */
static int resolve_host(struct sock *s) {
    char host[ENDPOINT_SIZE], address[ADDRESS_SIZE], *port = strrchr(s->endpoint, ':');
    snprintf(host, sizeof host, "%.*s", (int)(port - s->endpoint - (int)strlen(TCP)),
             s->endpoint + strlen(TCP));
    char rest[8];
    snprintf(rest, sizeof rest, "%s", port);
    if (strcmp(host, "*") == 0)
        return 0;
    int r = address_resolve(host, address);
    if (!r)
        snprintf(s->endpoint, sizeof s->endpoint, TCP "%s%s", address, rest);
    return r;
}

static int bind_tcp(struct sock *s) {
    int r = resolve_host(s);
    return r ? r : use_key(s, true);
}

static int bind_endpoint(struct sock *s) {
    bool ipc = starts_with(s->endpoint, IPC);
    int r = ipc ? bind_ipc(s) : bind_tcp(s);
    if (r)
        return r;
    if (zmq_bind(s->socket, s->endpoint) < 0)
        return fail(errno == EINVAL ? BAD_USAGE : SYSTEM_FAILED, "cannot bind %s: %s", s->endpoint,
                    errno == EADDRINUSE && !ipc ? "the port is in use, choose another"
                                                : zmq_strerror(errno));
    size_t size = sizeof s->endpoint;
    if (!ipc && zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, s->endpoint, &size) < 0)
        return fail(SYSTEM_FAILED, "cannot tell where %s was bound: %s", s->endpoint,
                    zmq_strerror(errno));
    return 0;
}

static int connect_endpoint(struct sock *s) {
    int r = use_key(s, false);
    if (r)
        return r;
    if (zmq_connect(s->socket, s->endpoint) < 0)
        return fail(errno == EINVAL ? BAD_USAGE : SYSTEM_FAILED, "cannot connect to %s: %s",
                    s->endpoint, zmq_strerror(errno));
    return 0;
}

static int open_with(struct sock **out, enum sock_kind kind, const char *endpoint,
                     int (*attach)(struct sock *)) {
    *out = NULL;
    int r = check_endpoint(endpoint);
    if (r)
        return r;
    struct sock *s = calloc(1, sizeof *s);
    if (!s)
        return fail(SYSTEM_FAILED, "out of memory");
    s->kind = kind;
    memcpy(s->endpoint, endpoint, strlen(endpoint) + 1);
    r = open_socket(s);
    if (!r)
        r = attach(s);
    if (r)
        sock_close(&s, 0);
    *out = s;
    return r;
}

int sock_bind(struct sock **s, enum sock_kind kind, const char *endpoint) {
    return open_with(s, kind, endpoint, bind_endpoint);
}

int sock_connect(struct sock **s, enum sock_kind kind, const char *endpoint) {
    return open_with(s, kind, endpoint, connect_endpoint);
}

const char *sock_endpoint(const struct sock *s) {
    return s->endpoint;
}

static void take_event(struct sock *s, uint16_t event) {
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        s->peers++;
    } else if (event != ZMQ_EVENT_DISCONNECTED) {
        s->failed_hand = true;
        s->strangers++;
    } else if (s->failed_hand) {
        s->failed_hand = false;
    } else {
        s->peers--;
        s->departed++;
    }
}

static void take_events(struct sock *s) {
    zmq_msg_t m;
    zmq_msg_init(&m);
    while (zmq_msg_recv(&m, s->monitor, ZMQ_DONTWAIT) >= 0) {
        uint16_t event;
        memcpy(&event, zmq_msg_data(&m), sizeof event);
        take_event(s, event);
        zmq_msg_recv(&m, s->monitor, ZMQ_DONTWAIT); /* the address */
    }
    zmq_msg_close(&m);
}

int sock_peers(struct sock *s) {
    take_events(s);
    return s->peers;
}

int sock_strangers(struct sock *s) {
    take_events(s);
    return s->strangers;
}

/* Until the socket may be ready, something is known of a peer, or it is time to look again. */
static enum sock_event wait_for(struct sock *s, short what, int64_t deadline_ns) {
    if (stop_requested())
        return SOCK_INTERRUPTED;
    int ms = clock_ms_left(deadline_ns);
    if (ms == 0)
        return SOCK_TIMEOUT;
    zmq_pollitem_t items[] = {{.socket = s->socket, .events = what},
                              {.socket = s->monitor, .events = ZMQ_POLLIN}};
    zmq_poll(items, 2, ms < SLICE_MS ? ms : SLICE_MS);
    return SOCK_OK;
}

/* A message waits here for its one peer, not in the queue of a connection that may never be.
 * (ZMQ_IMMEDIATE would do it too, but drops, when a peer goes, what it sent and nobody read yet.)
 */
enum sock_event sock_send(struct sock *s, zmq_msg_t *message, int more, int64_t deadline_ns) {
    for (;;) {
        take_events(s);
        if (has_one_peer(s) && s->departed > 0)
            return SOCK_PEER_GONE;
        bool nobody = has_one_peer(s) && s->peers == 0;
        if (!nobody &&
            zmq_msg_send(message, s->socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0)
            return SOCK_OK;
        if (!nobody && errno == EHOSTUNREACH)
            return SOCK_PEER_GONE;
        assert(nobody || errno == EAGAIN || errno == EINTR);
        enum sock_event e = wait_for(s, nobody ? 0 : ZMQ_POLLOUT, deadline_ns);
        if (e != SOCK_OK)
            return e;
    }
}

enum sock_event sock_send_bytes(struct sock *s, const void *bytes, size_t size, int more,
                                int64_t deadline_ns) {
    zmq_msg_t m;
    if (zmq_msg_init_size(&m, size) < 0) {
        fail(SYSTEM_FAILED, "%s: no memory for a message of %zu bytes", s->endpoint, size);
        return SOCK_TIMEOUT;
    }
    if (size)
        memcpy(zmq_msg_data(&m), bytes, size);
    enum sock_event e = sock_send(s, &m, more, deadline_ns);
    if (e != SOCK_OK)
        zmq_msg_close(&m);
    return e;
}

enum sock_event sock_recv(struct sock *s, zmq_msg_t *message, int64_t deadline_ns) {
    for (;;) {
        /* First the events, then the messages: what a peer sent before it went is there. */
        take_events(s);
        if (zmq_msg_recv(message, s->socket, ZMQ_DONTWAIT) >= 0)
            return SOCK_OK;
        assert(errno == EAGAIN || errno == EINTR);
        if (errno == EAGAIN && s->departed > 0) {
            if (!has_one_peer(s))
                s->departed--;
            return SOCK_PEER_GONE;
        }
        enum sock_event e = wait_for(s, ZMQ_POLLIN, deadline_ns);
        if (e != SOCK_OK)
            return e;
    }
}

const char *sock_event_text(enum sock_event event) {
    switch (event) {
    case SOCK_OK: return "done";
    case SOCK_TIMEOUT: return "timed out";
    case SOCK_PEER_GONE: return "peer closed the connection";
    case SOCK_INTERRUPTED: return "interrupted";
    }
    return "unknown";
}

void sock_close(struct sock **sock, int linger_ms) {
    struct sock *s = *sock;
    if (!s)
        return;
    sock_ipc_unlink(&s->ipc);
    if (s->monitor)
        take_events(s);
    if (has_one_peer(s) && s->peers == 0)
        linger_ms = 0; /* nothing is on its way to nobody */
    if (s->socket) {
        /* Before the monitor's own end: events without a reader would block libzmq. */
        zmq_socket_monitor(s->socket, NULL, 0);
        zmq_setsockopt(s->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    }
    if (s->monitor)
        zmq_close(s->monitor);
    if (s->socket)
        zmq_close(s->socket);
    if (s->context)
        while (zmq_ctx_term(s->context) < 0 && errno == EINTR)
            ;
    free(s);
    *sock = NULL;
}
