/* rendezvous.c: see rendezvous.h. Rank 0 keeps the identity of each rank's connection, so that
 * every answer finds its way; frames are {identity,} message. */
#include "trainer/rendezvous.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/pack.h"
#include "lib/sock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 1, SETTINGS_MAX = 8192, MESSAGE_MAX = SETTINGS_MAX + 256, IDENTITY_MAX = 255 };
enum kind { JOIN = 1, WELCOME, REFUSE, BLOB };
static const char magic[4] = {'D', 'D', 'P', 'R'};

struct peer {
    bool joined;
    char host[64];
    size_t identity_size;
    uint8_t identity[IDENTITY_MAX];
};

struct rendezvous {
    struct rendezvous_options options;
    struct sock *sock;
    struct peer *peers; /* rank 0: of each rank */
    struct peer caller; /* rank 0: who sent the JOIN that is looked at */
};

struct join {
    uint32_t rank, world_size;
    char host[64];
    char settings[SETTINGS_MAX];
};

static struct pack header(void *bytes, size_t size, enum kind kind) {
    struct pack p = pack_open(bytes, size);
    pack_bytes(&p, magic, sizeof magic);
    pack_u16(&p, VERSION);
    pack_u16(&p, (uint16_t)kind);
    return p;
}

/* The kind, or 0 where the message is none of ours. */
static int read_header(struct pack *p) {
    char found[sizeof magic];
    unpack_bytes(p, found, sizeof found);
    uint16_t version = unpack_u16(p), kind = unpack_u16(p);
    if (p->failed || memcmp(found, magic, sizeof magic) != 0 || version != VERSION)
        return 0;
    return kind;
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

/* Until the ranks that were told have closed: closing first could take the answer from them. */
static void wait_until_gone(struct rendezvous *r, int told) {
    int64_t deadline = clock_deadline(1);
    zmq_msg_t m;
    zmq_msg_init(&m);
    while (told > 0) {
        enum sock_event e = sock_recv(r->sock, &m, deadline);
        if (e == SOCK_TIMEOUT || e == SOCK_INTERRUPTED)
            break;
        told -= e == SOCK_PEER_GONE;
    }
    zmq_msg_close(&m);
}

/* Tells every joined rank, and the caller, why there will be no run, then reports it here. */
static int refuse(struct rendezvous *r, int code, const char *reason) {
    uint8_t bytes[MESSAGE_MAX];
    int told = 0;
    struct pack p = header(bytes, sizeof bytes, REFUSE);
    pack_u32(&p, (uint32_t)code);
    pack_text(&p, reason);
    fail(code, "%s", reason);
    for (int i = 1; i < r->options.world_size; i++)
        if (r->peers[i].joined)
            told += !send_to(r, &r->peers[i], bytes, p.at, clock_deadline(1));
    if (r->caller.joined)
        told += !send_to(r, &r->caller, bytes, p.at, clock_deadline(1));
    wait_until_gone(r, told);
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

static int check_join(struct rendezvous *r, const struct join *j) {
    const struct rendezvous_options *o = &r->options;
    char reason[512], difference[400];
    if (j->world_size != (uint32_t)o->world_size) {
        snprintf(reason, sizeof reason,
                 "rank %u on %s was started with world size %u, rank 0 "
                 "with %d",
                 j->rank, j->host, j->world_size, o->world_size);
        return refuse(r, BAD_USAGE, reason);
    }
    if (j->rank == 0 || j->rank >= j->world_size || r->peers[j->rank].joined) {
        bool twice = j->rank < j->world_size;
        snprintf(reason, sizeof reason, "rank %u joined %s (from %s)", j->rank,
                 twice ? "twice" : "but the world ends before it", j->host);
        return refuse(r, BAD_USAGE, reason);
    }
    if (differ(o->settings, j->settings, difference, sizeof difference, (int)j->rank))
        return refuse(r, BAD_USAGE, difference);
    return 0;
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
    char line[600];
    snprintf(line, sizeof line, "%s after %g s while waiting at %s:%d for rank %s of %d",
             sock_event_text(e), r->options.timeout_seconds, r->options.address, r->options.port,
             reason, r->options.world_size);
    return refuse(r, SYSTEM_FAILED, line);
}

/* Reads a JOIN; joined tells whether it was one, and acceptable. */
static int take_join(struct rendezvous *r, zmq_msg_t *identity, zmq_msg_t *body, bool *joined) {
    struct join j = {0};
    struct pack p = unpack_open(zmq_msg_data(body), zmq_msg_size(body));
    int kind = read_header(&p);
    j.rank = unpack_u32(&p);
    j.world_size = unpack_u32(&p);
    unpack_text(&p, j.host, sizeof j.host);
    unpack_text(&p, j.settings, sizeof j.settings);
    if (kind != JOIN || !unpack_done(&p)) {
        log_note("a connection to %s:%d sent something that is no JOIN of version %d: ignored",
                 r->options.address, r->options.port, VERSION);
        return 0;
    }
    r->caller = (struct peer){.joined = true, .identity_size = zmq_msg_size(identity)};
    memcpy(r->caller.identity, zmq_msg_data(identity), r->caller.identity_size);
    memcpy(r->caller.host, j.host, sizeof r->caller.host);
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
        zmq_msg_init(&identity);
        zmq_msg_init(&body);
        bool joined = false;
        enum sock_event e = sock_recv(r->sock, &identity, deadline);
        if (e == SOCK_OK)
            e = sock_recv(r->sock, &body, deadline);
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

static int join(struct rendezvous *r, int64_t deadline) {
    const struct rendezvous_options *o = &r->options;
    uint8_t bytes[MESSAGE_MAX];
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    struct pack p = header(bytes, sizeof bytes, JOIN);
    pack_u32(&p, (uint32_t)o->rank);
    pack_u32(&p, (uint32_t)o->world_size);
    pack_text(&p, host);
    pack_text(&p, o->settings);
    zmq_msg_t m;
    zmq_msg_init(&m);
    enum sock_event e = sock_send_bytes(r->sock, bytes, p.at, 0, deadline);
    if (e == SOCK_OK)
        e = sock_recv(r->sock, &m, deadline);
    int rc = 0;
    if (e != SOCK_OK) {
        rc = fail(SYSTEM_FAILED,
                  "%s after at most %g s while joining rank 0 at %s:%d: is it "
                  "started, and can this host reach that address?",
                  sock_event_text(e), o->timeout_seconds, o->address, o->port);
    } else {
        struct pack answer = unpack_open(zmq_msg_data(&m), zmq_msg_size(&m));
        int kind = read_header(&answer);
        if (kind == REFUSE) {
            char reason[1024] = "";
            uint32_t code = unpack_u32(&answer);
            unpack_text(&answer, reason, sizeof reason);
            rc = fail(code ? (int)code : SYSTEM_FAILED, "rank 0 ended the run: %s", reason);
        } else if (kind != WELCOME) {
            rc = fail(SYSTEM_FAILED,
                      "%s:%d answered with something that is no rank 0 of this "
                      "version",
                      o->address, o->port);
        }
    }
    zmq_msg_close(&m);
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
    if (o->world_size == 1) {
        *out = r;
        return 0;
    }
    if (o->rank > 0) {
        rc = sock_connect(&r->sock, SOCK_DUPLEX, endpoint);
        rc = rc ? rc : join(r, deadline);
    } else {
        r->peers = calloc((size_t)o->world_size, sizeof *r->peers);
        rc = r->peers ? sock_bind(&r->sock, SOCK_MANY, endpoint)
                      : fail(SYSTEM_FAILED, "out of memory");
        rc = rc ? rc : gather_joins(r, deadline);
        uint8_t bytes[16];
        struct pack p = header(bytes, sizeof bytes, WELCOME);
        for (int i = 1; i < o->world_size && !rc; i++)
            rc = send_to(r, &r->peers[i], bytes, p.at, deadline);
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
    int rc = 0;
    if (e != SOCK_OK) {
        rc = fail(SYSTEM_FAILED, "%s while the ranks exchanged addresses", sock_event_text(e));
    } else {
        struct pack p = unpack_open(zmq_msg_data(&m), zmq_msg_size(&m));
        int kind = read_header(&p);
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
