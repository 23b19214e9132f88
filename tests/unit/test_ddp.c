/* The ranks' replicas: accumulated gradients are the sum of their passes, for every strategy and on
 * one rank or two; ranks of a host read each other's memory, or say that they cannot; a value that
 * differs on one rank is found, and the rank and tensor are named; so is another order of weights
 * in memory. Every rank is a process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h" /* before cmocka.h, which has a macro fail() */

#include <cmocka.h>

#include "lib/clock.h"
#include "lib/rng.h"
#include "trainer/ddp.h"
#include "trainer/init.h"
#include "trainer/peers.h"
#include "trainer/rendezvous.h"
#include "trainer/replicas.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 3, IMAGES = 4, PIXELS = IMAGES * 8 * 8 * 3 };

static int port;

/* A rank's part; its result is the exit code of its process. */
typedef int part(struct comm *comm, struct net *net, int rank);

static part peer_hangs;

static int open_net(struct backend **b, struct net **net) {
    static const struct layer layers[] = {
        {.kind = LAYER_CONV, .name = "a", .in = LAYER_INPUT, .channels = 5, .kernel = 3, .pad = 1},
        {.kind = LAYER_BATCHNORM,
         .name = "b",
         .in = 0,
         .channels = 5,
         .eps = 1e-5f,
         .momentum = .1f},
        {.kind = LAYER_MAXPOOL, .name = "c", .in = 1, .channels = 5},
        {.kind = LAYER_BATCHNORM,
         .name = "e",
         .in = 2,
         .channels = 5,
         .eps = 1e-5f,
         .momentum = .1f},
        {.kind = LAYER_LINEAR, .name = "d", .in = 3, .channels = 3, .bias = true}};
    struct model m = {.name = "small", .channels = 3, .classes = 3, .count = 5};
    memcpy(m.layers, layers, sizeof layers);
    int rc = backend_cpu_open(b, 1);
    rc = rc ? rc : net_open(net, &m, *b, (struct shape){IMAGES, 3, 8, 8});
    return rc ? rc : init_weights(*net, 1, NULL);
}

static int be(int rank, int world, part *p) {
    struct rendezvous *r;
    struct comm *comm = NULL;
    struct backend *b;
    struct net *net = NULL;
    struct rendezvous_options o = {.rank = rank,
                                   .world_size = world,
                                   .port = port,
                                   .device = "cpu",
                                   .address = "127.0.0.1",
                                   .timeout_seconds = 10,
                                   .settings = ""};
    int rc = rendezvous_open(&r, &o);
    rc = rc ? rc
            : comm_open(&comm, rank, world, "127.0.0.1", p == peer_hangs ? 1 : 10,
                        rendezvous_exchange, r);
    rc = rc ? rc : open_net(&b, &net);
    rc = rc ? rc : p(comm, net, rank);
    return rc;
}

/* codes[r]: exit code of rank r. text: what the ranks wrote on stderr. */
static void run(int world, part *p, int codes[RANKS_MAX], char *text, size_t size) {
    pid_t pids[RANKS_MAX];
    FILE *err = tmpfile();
    assert_non_null(err);
    port = 20000 + (int)((clock_ns() / 1000 + getpid()) % 12000);
    for (int r = 0; r < world; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            alarm(30);
            dup2(fileno(err), STDERR_FILENO);
            log_open("rank", r);
            _exit(be(r, world, p));
        }
    }
    for (int r = 0; r < world; r++) {
        int status;
        waitpid(pids[r], &status, 0);
        codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    rewind(err);
    text[fread(text, 1, size - 1, err)] = '\0';
    fclose(err);
}

static void backward(struct net *net, struct ddp *d, uint32_t seed) {
    struct plan *plan = net_plan(net, (struct shape){IMAGES, 3, 8, 8}, true);
    uint8_t pixels[PIXELS];
    int32_t labels[IMAGES];
    struct rng rng = rng_at(seed, RNG_TEST, 0, 0);
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = (uint8_t)rng_u32(&rng);
    for (int i = 0; i < IMAGES; i++)
        labels[i] = (int32_t)rng_below(&rng, 3);
    net_forward(net, plan, pixels, 0);
    net_loss(net, plan, labels, 0);
    net_backward(net, plan, d ? ddp_ready : NULL, d);
}

/* Three passes, the last with ddp_ready or kept too (as at the end of an epoch), against the sums
 * of the same passes, in floats and in the same order. */
static int accumulated(struct comm *comm, struct net *net, int rank) {
    size_t bytes = net->trained_count * sizeof(float);
    float *sum = calloc(1, bytes), *other = malloc(bytes * 2);
    for (uint32_t pass = 0; pass < 3; pass++) {
        backward(net, NULL, 10 * (uint32_t)rank + pass);
        for (size_t i = 0; i < net->trained_count; i++)
            sum[i] = net->grads[i] + sum[i];
    }
    int rc = comm_allgather(comm, sum, bytes, other);
    if (comm_world_size(comm) == 2)
        for (size_t i = 0; i < net->trained_count; i++)
            sum[i] = other[i] + other[net->trained_count + i];
    for (int sync = DDP_DDP; sync <= DDP_GATHER_SCATTER && !rc; sync++)
        for (int kind = 0; kind < 4 && !rc; kind++) {
            int kept = 2 + kind / 2;
            struct ddp *d;
            int64_t busy = 0, exposed = 0;
            struct ddp_options o = {.sync = (enum ddp_sync)sync,
                                    .first_bucket_bytes = 64,
                                    .bucket_bytes = 256,
                                    .accumulate = true,
                                    .by_memory = kind % 2};
            rc = ddp_open(&d, comm, net, &o);
            for (int pass = 0; pass < 3 && !rc; pass++) {
                backward(net, pass < kept ? NULL : d, 10 * (uint32_t)rank + (uint32_t)pass);
                if (pass < kept)
                    ddp_accumulate(d);
            }
            rc = rc ? rc : ddp_finish(d, &busy, &exposed);
            if (!rc && memcmp(sum, net->grads, bytes) != 0)
                rc = 50 + sync * 4 + kind;
            ddp_close(&d);
        }
    free(sum);
    free(other);
    return rc;
}

static void passes_are_added_up(void **state) {
    (void)state;
    char text[4096];
    int codes[RANKS_MAX];
    for (int world = 1; world <= 2; world++) {
        run(world, accumulated, codes, text, sizeof text);
        for (int r = 0; r < world; r++)
            assert_int_equal(codes[r], 0);
    }
}

enum { FLOATS = 200003 }; /* several chunks, and no whole line */

static struct peers *open_peers(struct comm *comm, int rank, float *x, int *rc) {
    struct peers *p;
    for (int i = 0; i < FLOATS; i++)
        x[i] = (float)((i % 101 + 1) * (rank + 1)); /* sums are exact */
    *rc = peers_open(&p, comm, x, FLOATS);
    return p;
}

/* Ranges with shares of unlike size, some of them empty; what lies outside stays. */
static int peers_add_up(struct comm *comm, struct net *net, int rank) {
    (void)net;
    static float x[FLOATS], all[3 * 7];
    static const int ranges[][2] = {{0, 1}, {1, 34}, {34, 34}, {50, FLOATS - 16}};
    int rc, world = comm_world_size(comm), factor = world * (world + 1) / 2;
    struct peers *p = open_peers(comm, rank, x, &rc);
    if (!p)
        return rc ? rc : 40;
    for (int i = 0; i < 4 && !rc; i++)
        rc = peers_sum(p, (size_t)ranges[i][0], (size_t)ranges[i][1]);
    for (int i = 0; i < FLOATS && !rc; i++) {
        int summed = i < 34 || (i >= 50 && i < FLOATS - 16);
        if (x[i] != (float)((i % 101 + 1) * (summed ? factor : rank + 1)))
            rc = 41;
    }
    rc = rc ? rc : peers_gather(p, all, 40, 7, 1);
    for (int r = 0; r < world && rank == 1 && !rc; r++)
        for (int i = 0; i < 7; i++)
            rc = all[r * 7 + i] != (float)((41 + i) * (r + 1)) ? 42 : rc;
    rc = rc ? rc : peers_take(p, 40, 42, 1);
    if (!rc && (x[39] != (float)(40 * (rank + 1)) || x[40] != 82 || x[41] != 84 ||
                x[42] != (float)(43 * (rank + 1))))
        rc = 43;
    peers_close(&p);
    return rc;
}

static int peer_ends(struct comm *comm, struct net *net, int rank) {
    (void)net;
    static float x[FLOATS];
    int rc;
    struct peers *p = open_peers(comm, rank, x, &rc);
    if (!p || rank == 1)
        return rc;
    int64_t began = clock_ns();
    rc = peers_sum(p, 0, FLOATS);
    return clock_ns() - began < 1000000000 ? rc : 44;
}

static int given_up[2]; /* a pipe: rank 0 has */

/* Rank 1 does not come before rank 0 has given up. */
static int peer_hangs(struct comm *comm, struct net *net, int rank) {
    (void)net;
    static float x[FLOATS];
    struct pollfd word = {.fd = given_up[0], .events = POLLIN};
    int rc;
    struct peers *p = open_peers(comm, rank, x, &rc);
    if (!p)
        return rc ? rc : 40;
    if (rank == 1)
        return poll(&word, 1, 20000) == 1 ? 0 : 47;
    rc = peers_sum(p, 0, FLOATS);
    return write(given_up[1], "", 1) == 1 ? rc : 48;
}

/* Rank 1 is another user, whom the kernel does not let read. */
static int may_not_read(struct comm *comm, struct net *net, int rank) {
    (void)net;
    static float x[FLOATS];
    int rc;
    if (rank == 1 && (setgid(65534) || setuid(65534)))
        return 45;
    struct peers *p = open_peers(comm, rank, x, &rc);
    return rc ? rc : p ? 46 : 0;
}

static void peers_read_each_other(void **state) {
    (void)state;
    char text[4096];
    int codes[RANKS_MAX];
    for (int world = 2; world <= 3; world++) {
        run(world, peers_add_up, codes, text, sizeof text);
        for (int r = 0; r < world; r++)
            assert_int_equal(codes[r], 0);
    }
    run(2, peer_ends, codes, text, sizeof text);
    assert_int_equal(codes[0], SYSTEM_FAILED);
    assert_non_null(strstr(text, "rank 1 of this host has ended"));
    assert_int_equal(pipe(given_up), 0);
    run(2, peer_hangs, codes, text, sizeof text);
    assert_int_equal(codes[0], SYSTEM_FAILED);
    assert_int_equal(codes[1], 0);
    close(given_up[0]);
    close(given_up[1]);
    assert_non_null(strstr(text, "1 of the 2 ranks of this host came within 1 s"));
    if (getuid() != 0)
        return; /* only root can be someone else */
    run(2, may_not_read, codes, text, sizeof text);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0);
    assert_non_null(strstr(text, "rank 1 cannot read the memory of another rank of this host"));
}

static int check(struct comm *comm, struct net *net) {
    char digest[REPLICAS_DIGEST_SIZE] = "";
    int rc = replicas_check(comm, net, digest);
    return rc ? rc : strlen(digest) == REPLICAS_DIGEST_SIZE - 1 ? 0 : 60;
}

static int equal(struct comm *comm, struct net *net, int rank) {
    (void)rank;
    int rc = check(comm, net);
    return rc ? rc : replicas_check_layout(comm, net);
}

/* The last bit of one weight, of rank 1 alone. */
static int weight_differs(struct comm *comm, struct net *net, int rank) {
    uint32_t bits;
    memcpy(&bits, &net->weights[1], sizeof bits);
    bits ^= rank == 1;
    memcpy(&net->weights[1], &bits, sizeof bits);
    return check(comm, net);
}

static int statistic_differs(struct comm *comm, struct net *net, int rank) {
    if (rank == 0)
        net->stats[net->stat_floats - 1] += 1e-3f;
    return check(comm, net);
}

/* A rank whose backend keeps two filters the other way round. */
static void (*put)(struct backend *b, const struct weight *w, const float *plain, float *native);
static void put_swapped(struct backend *b, const struct weight *w, const float *plain,
                        float *native) {
    put(b, w, plain, native);
    float first = native[0];
    native[0] = native[1];
    native[1] = first;
}

static int order_differs(struct comm *comm, struct net *net, int rank) {
    static struct backend_table table;
    table = *net->backend->call;
    put = table.weight_put;
    table.weight_put = put_swapped;
    if (rank == 2)
        net->backend->call = &table;
    return replicas_check_layout(comm, net);
}

static void differences_are_named(void **state) {
    (void)state;
    static const struct {
        int world;
        part *p;
        int code;
        const char *words;
    } cases[] = {{1, equal, 0, ""},
                 {3, equal, 0, ""},
                 {2, weight_differs, BAD_INPUT, "rank 1 has other values of \"d."},
                 {3, weight_differs, BAD_INPUT, "rank 1 has other values of \"d."},
                 {3, statistic_differs, BAD_INPUT, "rank 0 has other values of \"e\" than most"},
                 {3, order_differs, BAD_USAGE, "rank 2 keeps \"a.weight\" in another order"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        int codes[RANKS_MAX];
        run(cases[i].world, cases[i].p, codes, text, sizeof text);
        for (int r = 0; r < cases[i].world; r++)
            assert_int_equal(codes[r], cases[i].code);
        int told = 0; /* every rank says it */
        for (const char *at = text; *cases[i].words && (at = strstr(at, cases[i].words)); at++)
            told++;
        if (*cases[i].words && told != cases[i].world)
            fail_msg("case %zu: %s", i, text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_added_up),
        cmocka_unit_test(peers_read_each_other),
        cmocka_unit_test(differences_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
