/* rendezvous.c: see rendezvous.h. Rank 0 keeps the identity of each rank's connection, so that
 * every answer finds its way; frames are {identity,} message. */
#include "trainer/rendezvous.h"
#include "lib/address.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/pack.h"
#include "lib/sock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 2, SETTINGS_MAX = 8192, MESSAGE_MAX = SETTINGS_MAX + 256, IDENTITY_MAX = 255 };
static const double answer_seconds = 0.5;
static const double linger_seconds = 2; /* for ranks that come after the run was refused */
enum kind { JOIN = 1, WELCOME, REFUSE, BLOB };
static const char magic[4] = {'D', 'D', 'P', 'R'};

struct peer {
    bool joined;
    char host[64], device[64];
    size_t identity_size;
    uint8_t identity[IDENTITY_MAX];
};

struct rendezvous {
    struct rendezvous_options options;
    struct sock *sock;
    struct peer *peers; /* rank 0: of each rank, itself among them */
    struct peer caller; /* rank 0: who sent the JOIN that is looked at */
};

struct join {
    uint32_t rank, world_size;
    char host[64], device[64];
    char settings[SETTINGS_MAX];
};

static struct pack header(void *bytes, size_t size, enum kind kind) {
    struct pack p = pack_open(bytes, size);
    pack_bytes(&p, magic, sizeof magic);
    pack_u16(&p, VERSION);
    pack_u16(&p, (uint16_t)kind);
    return p;
}

/* The kind, or 0 where the message is none of this version, which *version tells (0: no message of
 * any). */
static int read_header(struct pack *p, int *version) {
    char found[sizeof magic];
    unpack_bytes(p, found, sizeof found);
    uint16_t spoken = unpack_u16(p), kind = unpack_u16(p);
    *version = p->failed || memcmp(found, magic, sizeof magic) != 0 ? 0 : spoken;
    return *version == VERSION ? kind : 0;
}

static int send_to(struct rendezvous *r, const struct peer *peer, const void *bytes, size_t size,
                   int64_t deadline) {
    enum sock_event e = sock_send_bytes(r->sock, peer->identity, peer->identity_size, 1, deadline);
    if (e == SOCK_OK)
        e = sock_send_bytes(r->sock, bytes, size, 0, deadline);
    return e == SOCK_OK ? 0
                        : fail(SYSTEM_FAILED, "cannot answer the rank on %s: %s", peer->host,
                               sock_event_text(e));
}

/* Receives one message and whom it is from; both are initialised and the caller's to close. */
static enum sock_event receive(struct rendezvous *r, zmq_msg_t *identity, zmq_msg_t *body,
                               int64_t deadline) {
    zmq_msg_init(identity);
    zmq_msg_init(body);
    enum sock_event e = sock_recv(r->sock, identity, deadline);
    return e == SOCK_OK ? sock_recv(r->sock, body, deadline) : e;
}

static struct peer sender(const zmq_msg_t *identity) {
    struct peer p = {.joined = true, .identity_size = zmq_msg_size(identity)};
    memcpy(p.identity, zmq_msg_data((zmq_msg_t *)(uintptr_t)identity), p.identity_size);
    return p;
}

/* Tells whoever still comes, until all have been told or it takes too long; then waits until those
 * who were told have closed: closing first could take the answer from them. */
static void tell_late(struct rendezvous *r, const void *bytes, size_t size, int64_t deadline) {
    for (int gone = 0; gone < r->options.world_size - 1;) {
        zmq_msg_t identity, body;
        enum sock_event e = receive(r, &identity, &body, deadline);
        struct peer p = sender(&identity);
        if (e == SOCK_OK)
            send_to(r, &p, bytes, size, deadline);
        gone += e == SOCK_PEER_GONE;
        zmq_msg_close(&identity);
        zmq_msg_close(&body);
        if (e == SOCK_TIMEOUT || e == SOCK_INTERRUPTED)
            break;
    }
}

/* Tells every joined rank, the caller, and for a while who comes late, why there will be no run;
 * then reports it here. */
static int refuse(struct rendezvous *r, int code, const char *reason, double linger) {
    uint8_t bytes[MESSAGE_MAX];
    struct pack p = header(bytes, sizeof bytes, REFUSE);
    pack_u32(&p, (uint32_t)code);
    pack_text(&p, reason);
    fail(code, "%s", reason);
    int64_t deadline = clock_deadline(linger);
    for (int i = 1; i < r->options.world_size; i++)
        if (r->peers[i].joined)
            send_to(r, &r->peers[i], bytes, p.at, deadline);
    if (r->caller.joined)
        send_to(r, &r->caller, bytes, p.at, deadline);
    tell_late(r, bytes, p.at, deadline);
    return code;
}

/* The first line that differs between two settings texts, as "name: ours here, theirs there". */
static bool differ(const char *ours, const char *theirs, char *out, size_t size, int rank) {
    while (*ours || *theirs) {
        size_t a = strcspn(ours, "\n"), b = strcspn(theirs, "\n");
        if (a != b || memcmp(ours, theirs, a) != 0) {
            size_t name = strcspn(ours, "=\n");
            const char *value = ours + name + (ours[name] == '=');
            size_t same = b > name && !memcmp(ours, theirs, name) ? name + 1 : 0;
            snprintf(out, size, "%.*s differs: rank 0 has %.*s, rank %d has %.*s", (int)name, ours,
                     (int)(ours + a - value), value, rank, (int)(b - same), theirs + same);
            return true;
        }
        ours += a + (ours[a] == '\n');
        theirs += b + (theirs[b] == '\n');
    }
    return false;
}

/* The rank that uses the same GPU of the same host, or -1. */
static int shares_device(const struct rendezvous *r, const struct join *j) {
    if (!strcmp(j->device, "cpu"))
        return -1;
    for (int i = 0; i < r->options.world_size; i++) {
        const struct peer *p = &r->peers[i];
        if (p->joined && !strcmp(p->host, j->host) && !strcmp(p->device, j->device))
            return i;
    }
    return -1;
}

static int check_join(struct rendezvous *r, const struct join *j) {
    const struct rendezvous_options *o = &r->options;
    char reason[512], difference[400];
    int other;
    if (j->world_size != (uint32_t)o->world_size)
        snprintf(reason, sizeof reason,
                 "rank %u on %s was started with world size %u, rank 0 with %d", j->rank, j->host,
                 j->world_size, o->world_size);
    else if (j->rank == 0 || j->rank >= j->world_size)
        snprintf(reason, sizeof reason,
                 "rank %u joined from %s: ranks of world size %d are 0 to %d"
                 "%s",
                 j->rank, j->host, o->world_size, o->world_size - 1,
                 j->rank == 0 ? ", and rank 0 is here already" : "");
    else if (r->peers[j->rank].joined)
        snprintf(reason, sizeof reason, "rank %u joined twice, from %s and from %s", j->rank,
                 r->peers[j->rank].host, j->host);
    else if ((other = shares_device(r, j)) >= 0)
        snprintf(reason, sizeof reason, "ranks %d and %u both use %s of %s: one rank a GPU", other,
                 j->rank, j->device, j->host);
    else if (differ(o->settings, j->settings, difference, sizeof difference, (int)j->rank))
        snprintf(reason, sizeof reason, "%s", difference);
    else
        return 0;
    return refuse(r, BAD_USAGE, reason, linger_seconds);
}

static int timed_out(struct rendezvous *r, enum sock_event e) {
    char reason[512] = "", *at = reason;
    size_t left = sizeof reason;
    for (int i = 1; i < r->options.world_size && left > 16; i++)
        if (!r->peers[i].joined) {
            int n = snprintf(at, left, "%s%d", at == reason ? "" : ", ", i);
            at += n;
            left -= (size_t)n;
        }
    char line[700];
    snprintf(line, sizeof line, "%s after %g s while waiting at %s:%d for rank %s of %d%s",
             sock_event_text(e), r->options.timeout_seconds, r->options.address, r->options.port,
             reason, r->options.world_size,
             sock_strangers(r->sock) ? "; someone called without the run's key" : "");
    return refuse(r, SYSTEM_FAILED, line, 0.2);
}

/* Reads a JOIN; joined tells whether it was one, and acceptable. */
static int take_join(struct rendezvous *r, zmq_msg_t *identity, zmq_msg_t *body, bool *joined) {
    struct join j = {0};
    struct pack p = unpack_open(zmq_msg_data(body), zmq_msg_size(body));
    int version, kind = read_header(&p, &version);
    if (version && version != VERSION) {
        char reason[128];
        r->caller = sender(identity);
        snprintf(reason, sizeof reason,
                 "a rank speaks version %d of the protocol, rank 0 version %d: use the same build",
                 version, VERSION);
        return refuse(r, BAD_USAGE, reason, linger_seconds);
    }
    j.rank = unpack_u32(&p);
    j.world_size = unpack_u32(&p);
    unpack_text(&p, j.host, sizeof j.host);
    unpack_text(&p, j.device, sizeof j.device);
    unpack_text(&p, j.settings, sizeof j.settings);
    if (kind != JOIN || !unpack_done(&p)) {
        log_note("a connection to %s:%d sent something that is no JOIN of version %d: ignored",
                 r->options.address, r->options.port, VERSION);
        return 0;
    }
    r->caller = sender(identity);
    memcpy(r->caller.host, j.host, sizeof j.host);
    memcpy(r->caller.device, j.device, sizeof j.device);
    int rc = check_join(r, &j);
    if (rc)
        return rc;
    r->peers[j.rank] = r->caller;
    r->caller.joined = false;
    *joined = true;
    return 0;
}

static int gather_joins(struct rendezvous *r, int64_t deadline) {
    int rc = 0;
    for (int count = 1; count < r->options.world_size && !rc;) {
        zmq_msg_t identity, body;
        bool joined = false;
        enum sock_event e = receive(r, &identity, &body, deadline);
        if (e == SOCK_OK)
            rc = take_join(r, &identity, &body, &joined);
        else if (e != SOCK_PEER_GONE) /* one that left may come again */
            rc = timed_out(r, e);
        count += joined;
        zmq_msg_close(&identity);
        zmq_msg_close(&body);
    }
    return rc;
}

static int take_answer(struct rendezvous *r, zmq_msg_t *m) {
    const struct rendezvous_options *o = &r->options;
    struct pack answer = unpack_open(zmq_msg_data(m), zmq_msg_size(m));
    char reason[1024] = "";
    int version, kind = read_header(&answer, &version);
    if (kind == WELCOME)
        return 0;
    if (kind == REFUSE) {
        uint32_t code = unpack_u32(&answer);
        unpack_text(&answer, reason, sizeof reason);
        return fail(code ? (int)code : SYSTEM_FAILED, "rank 0 ended the run: %s", reason);
    }
    if (version && version != VERSION)
        return fail(BAD_USAGE,
                    "rank 0 speaks version %d of the protocol, this rank version %d: "
                    "use the same build",
                    version, VERSION);
    return fail(SYSTEM_FAILED, "%s:%d answered with something that is no rank 0", o->address,
                o->port);
}

static int no_answer(struct rendezvous *r, enum sock_event e) {
    const struct rendezvous_options *o = &r->options;
    if (e != SOCK_TIMEOUT)
        return fail(SYSTEM_FAILED, "%s while joining rank 0 at %s:%d", sock_event_text(e),
                    o->address, o->port);
    if (sock_peers(r->sock) > 0)
        return fail(
            SYSTEM_FAILED,
            "rank 0 at %s:%d did not say within %g s that all ranks are there: its own line "
            "names those that are missing",
            o->address, o->port, o->timeout_seconds);
    if (sock_strangers(r->sock))
        return fail(SYSTEM_FAILED,
                    "who listens at %s:%d did not let this rank in within %g s: "
                    "is the port another program's, or the run's key another?",
                    o->address, o->port, o->timeout_seconds);
    return fail(SYSTEM_FAILED, "rank 0 did not answer at %s:%d within %g s: %s", o->address,
                o->port, o->timeout_seconds, address_probe(o->address, o->port));
}

static int join(struct rendezvous *r, int64_t deadline) {
    const struct rendezvous_options *o = &r->options;
    uint8_t bytes[MESSAGE_MAX];
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    struct pack p = header(bytes, sizeof bytes, JOIN);
    pack_u32(&p, (uint32_t)o->rank);
    pack_u32(&p, (uint32_t)o->world_size);
    pack_text(&p, host);
    pack_text(&p, o->device);
    pack_text(&p, o->settings);
    zmq_msg_t m;
    zmq_msg_init(&m);
    enum sock_event e = sock_send_bytes(r->sock, bytes, p.at, 0, deadline);
    if (e == SOCK_OK) /* rank 0 comes to its own deadline first, and says why */
        e = sock_recv(r->sock, &m, deadline + (int64_t)(answer_seconds * 1e9));
    int rc = e == SOCK_OK ? take_answer(r, &m) : no_answer(r, e);
    zmq_msg_close(&m);
    return rc;
}

/* Rank 0: waits for all, welcomes all. */
static int host(struct rendezvous *r, int64_t deadline, const char *endpoint) {
    const struct rendezvous_options *o = &r->options;
    uint8_t bytes[16];
    r->peers = calloc((size_t)o->world_size, sizeof *r->peers);
    if (!r->peers)
        return fail(SYSTEM_FAILED, "out of memory for %d ranks", o->world_size);
    r->peers[0].joined = true;
    gethostname(r->peers[0].host, sizeof r->peers[0].host - 1);
    snprintf(r->peers[0].device, sizeof r->peers[0].device, "%s", o->device);
    int rc = sock_bind(&r->sock, SOCK_MANY, endpoint);
    rc = rc ? rc : gather_joins(r, deadline);
    struct pack p = header(bytes, sizeof bytes, WELCOME);
    for (int i = 1; i < o->world_size && !rc; i++)
        rc = send_to(r, &r->peers[i], bytes, p.at, deadline);
    return rc;
}

int rendezvous_open(struct rendezvous **out, const struct rendezvous_options *o) {
    struct rendezvous *r = calloc(1, sizeof *r);
    char endpoint[300];
    if (!r)
        return fail(SYSTEM_FAILED, "out of memory");
    r->options = *o;
    snprintf(endpoint, sizeof endpoint, "tcp://%s:%d", o->address, o->port);
    int64_t deadline = clock_deadline(o->timeout_seconds);
    int rc = 0;
    if (o->world_size > 1 && o->rank == 0) {
        rc = host(r, deadline, endpoint);
    } else if (o->world_size > 1) {
        rc = sock_connect(&r->sock, SOCK_DUPLEX, endpoint);
        rc = rc ? rc : join(r, deadline);
    }
    if (rc)
        rendezvous_close(&r);
    else
        *out = r;
    return rc;
}

/* BLOB: header, rank, bytes. */
static int receive_blob(struct rendezvous *r, size_t size, uint32_t *rank, uint8_t *bytes,
                        int64_t deadline) {
    zmq_msg_t m;
    zmq_msg_init(&m);
    enum sock_event e = SOCK_OK;
    if (r->options.rank == 0)
        e = sock_recv(r->sock, &m, deadline); /* identity */
    if (e == SOCK_OK)
        e = sock_recv(r->sock, &m, deadline);
    int rc = 0, version;
    if (e != SOCK_OK) {
        rc = fail(SYSTEM_FAILED, "%s while the ranks exchanged addresses", sock_event_text(e));
    } else {
        struct pack p = unpack_open(zmq_msg_data(&m), zmq_msg_size(&m));
        int kind = read_header(&p, &version);
        *rank = unpack_u32(&p);
        unpack_bytes(&p, bytes, size);
        if (kind != BLOB || !unpack_done(&p) || *rank >= (uint32_t)r->options.world_size)
            rc = fail(SYSTEM_FAILED, "a message of %zu bytes is no BLOB of %zu", zmq_msg_size(&m),
                      size);
    }
    zmq_msg_close(&m);
    return rc;
}

int rendezvous_exchange(void *arg, const void *mine, size_t size, void *all) {
    struct rendezvous *r = arg;
    const struct rendezvous_options *o = &r->options;
    int64_t deadline = clock_deadline(o->timeout_seconds);
    size_t total = size * (size_t)o->world_size, room = total + 64;
    memcpy((uint8_t *)all + size * (size_t)o->rank, mine, size);
    if (o->world_size == 1)
        return 0;
    uint8_t *bytes = malloc(room);
    if (!bytes)
        return fail(SYSTEM_FAILED, "out of memory for %zu bytes", room);
    struct pack p = header(bytes, room, BLOB);
    pack_u32(&p, (uint32_t)o->rank);
    int rc = 0;
    uint32_t from;
    if (o->rank > 0) {
        pack_bytes(&p, mine, size);
        enum sock_event e = sock_send_bytes(r->sock, bytes, p.at, 0, deadline);
        rc = e == SOCK_OK ? receive_blob(r, total, &from, all, deadline)
                          : fail(SYSTEM_FAILED, "%s while the ranks exchanged addresses",
                                 sock_event_text(e));
    } else {
        uint8_t *one = malloc(size);
        if (!one)
            rc = fail(SYSTEM_FAILED, "out of memory for %zu bytes", size);
        for (int i = 1; i < o->world_size && !rc; i++) {
            rc = receive_blob(r, size, &from, one, deadline);
            if (!rc)
                memcpy((uint8_t *)all + size * from, one, size);
        }
        free(one);
        pack_bytes(&p, all, total);
        for (int i = 1; i < o->world_size && !rc; i++)
            rc = send_to(r, &r->peers[i], bytes, p.at, deadline);
    }
    free(bytes);
    return rc;
}

void rendezvous_close(struct rendezvous **r) {
    if (!*r)
        return;
    if ((*r)->sock)
        sock_close(&(*r)->sock, 1000);
    free((*r)->peers);
    free(*r);
    *r = NULL;
}
