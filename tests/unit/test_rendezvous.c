/* Ranks find each other, exchange bytes, sum and broadcast (through Gloo); a missing rank, a
 * differing setting, a rank that comes twice, two ranks on one GPU, a key that is another and
 * another world size each end every rank that is there, within the timeout and with a code. Every
 * rank is a process of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h" /* before cmocka.h, which has a macro fail() */

#include <cmocka.h>

#include "lib/clock.h"
#include "lib/sock.h"
#include "trainer/comm.h"
#include "trainer/rendezvous.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 4 };

static int port;

/* What one rank does once it has joined; its result is the process's exit code. */
typedef int work(struct rendezvous *r, int rank, int world);

struct rank {
    int rank, world;
    const char *settings;
    double timeout;
    work *then;
    const char *device; /* NULL: "cpu" */
    const char *key;    /* DDPIPE_RUN_KEY; NULL: none */
};

static int be(const struct rank *k) {
    struct rendezvous *r;
    struct rendezvous_options o = {.rank = k->rank,
                                   .world_size = k->world,
                                   .port = port,
                                   .address = "127.0.0.1",
                                   .device = k->device ? k->device : "cpu",
                                   .timeout_seconds = k->timeout,
                                   .settings = k->settings};
    bool used;
    if (k->key)
        setenv("DDPIPE_RUN_KEY", k->key, 1);
    int rc = sock_use_run_key(&used);
    rc = rc ? rc : rendezvous_open(&r, &o);
    if (rc)
        return rc;
    rc = k->then ? k->then(r, k->rank, k->world) : 0;
    rendezvous_close(&r);
    return rc;
}

/* Runs the ranks at once; codes[i] is the exit code of ranks[i], 128 + n for signal n. */
static double run(const struct rank *ranks, int count, int codes[RANKS_MAX]) {
    pid_t pids[RANKS_MAX];
    int64_t began = clock_ns();
    port = 20000 + (int)((began / 1000 + getpid()) % 12000);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            alarm(30);
            log_open("rank", ranks[i].rank);
            _exit(be(&ranks[i]));
        }
    }
    for (int i = 0; i < count; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return (double)(clock_ns() - began) / 1e9;
}

/* Sums of values that floats hold exactly, whatever the order; bytes from a root. */
static int collectives(struct rendezvous *r, int rank, int world) {
    struct comm *c;
    float x[1000];
    double y[3] = {rank, 1, 1e15 + rank};
    char text[16] = "";
    int rc = comm_open(&c, rank, world, "127.0.0.1", 10, rendezvous_exchange, r);
    if (rc)
        return rc;
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(i + 1000 * rank);
    if (rank == 1)
        strcpy(text, "from one");
    if (comm_sum_f32(c, x, 1000) || comm_sum_f64(c, y, 3) ||
        comm_broadcast(c, text, sizeof text, 1) || comm_barrier(c))
        rc = 50;
    int ranks = world * (world - 1) / 2;
    for (int i = 0; i < 1000 && !rc; i++)
        if (x[i] < (float)(i * world + 1000 * ranks) || x[i] > (float)(i * world + 1000 * ranks))
            rc = 51;
    if (!rc && (y[0] < ranks || y[0] > ranks || y[1] < world || y[1] > world))
        rc = 52;
    if (!rc && (y[2] < 1e15 * world + ranks || y[2] > 1e15 * world + ranks))
        rc = 53;
    if (!rc && strcmp(text, "from one") != 0)
        rc = 54;
    comm_close(&c);
    return rc;
}

static void all_there(void **state) {
    (void)state;
    struct rank ranks[4];
    int codes[RANKS_MAX];
    for (int world = 1; world <= 4; world++) {
        for (int i = 0; i < world; i++)
            ranks[i] =
                (struct rank){i, world, "lr=1\n", 10, world > 1 ? collectives : NULL, NULL, NULL};
        run(ranks, world, codes);
        for (int i = 0; i < world; i++)
            assert_int_equal(codes[i], 0);
    }
}

static void one_missing(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took =
        run((struct rank[]){{0, 3, "", 1, NULL, NULL, NULL}, {2, 3, "", 1, NULL, NULL, NULL}}, 2,
            codes);
    assert_int_equal(codes[0], SYSTEM_FAILED);
    assert_int_equal(codes[1], SYSTEM_FAILED);
    assert_true(took >= .9 && took < 2.5);
}

static void nobody_at_rank_0(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took = run((struct rank[]){{1, 2, "", 1, NULL, NULL, NULL}}, 1, codes);
    assert_int_equal(codes[0], SYSTEM_FAILED);
    assert_true(took >= .9 && took < 2.5);
}

static void other_settings(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took = run((struct rank[]){{0, 2, "a=1\nlr=0.1\n", 20, NULL, NULL, NULL},
                                      {1, 2, "a=1\nlr=0.2\n", 20, NULL, NULL, NULL}},
                      2, codes);
    assert_int_equal(codes[0], BAD_USAGE);
    assert_int_equal(codes[1], BAD_USAGE);
    assert_true(took < 3);
}

static void other_world(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took =
        run((struct rank[]){{0, 2, "", 20, NULL, NULL, NULL}, {1, 3, "", 20, NULL, NULL, NULL}}, 2,
            codes);
    assert_int_equal(codes[0], BAD_USAGE);
    assert_int_equal(codes[1], BAD_USAGE);
    assert_true(took < 3);
}

static void twice(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took = run((struct rank[]){{0, 3, "", 20, NULL, NULL, NULL},
                                      {1, 3, "", 20, NULL, NULL, NULL},
                                      {1, 3, "", 20, NULL, NULL, NULL}},
                      3, codes);
    for (int i = 0; i < 3; i++)
        assert_int_equal(codes[i], BAD_USAGE);
    assert_true(took < 3);
}

static void one_gpu_for_two(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took = run((struct rank[]){{0, 3, "", 20, NULL, "GPU-a", NULL},
                                      {1, 3, "", 20, NULL, "GPU-b", NULL},
                                      {2, 3, "", 20, NULL, "GPU-a", NULL}},
                      3, codes);
    for (int i = 0; i < 3; i++)
        assert_int_equal(codes[i], BAD_USAGE);
    assert_true(took < 3);
    run((struct rank[]){{0, 2, "", 20, NULL, "GPU-a", NULL}, {1, 2, "", 20, NULL, "GPU-b", NULL}},
        2, codes);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0);
}

/* With the run's key all is as without; a rank with another one, or none, is not let in, and rank 0
 * waits in vain, for exactly its timeout. */
static void keys(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    run((struct rank[]){{0, 2, "", 10, collectives, NULL, "secret"},
                        {1, 2, "", 10, collectives, NULL, "secret"}},
        2, codes);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0);
    static const char *const others[] = {"Secret", NULL};
    for (int i = 0; i < 2; i++) {
        double took = run((struct rank[]){{0, 2, "", 1, NULL, NULL, "secret"},
                                          {1, 2, "", 1, NULL, NULL, others[i]}},
                          2, codes);
        assert_int_equal(codes[0], SYSTEM_FAILED);
        assert_int_equal(codes[1], SYSTEM_FAILED);
        assert_true(took >= .9 && took < 2);
    }
}

/* A peer that is killed between two collectives is noticed at once, not at the deadline. */
static int die_or_sum(struct rendezvous *r, int rank, int world) {
    struct comm *c;
    float x = 1;
    int rc = comm_open(&c, rank, world, "127.0.0.1", 20, rendezvous_exchange, r);
    if (rc)
        return rc;
    rc = comm_sum_f32(c, &x, 1);
    if (rank == 1)
        raise(SIGKILL);
    for (int i = 0; i < 3 && !rc; i++)
        rc = comm_sum_f32(c, &x, 1);
    return rc;
}

static void killed_peer(void **state) {
    (void)state;
    int codes[RANKS_MAX];
    double took = run((struct rank[]){{0, 2, "", 20, die_or_sum, NULL, NULL},
                                      {1, 2, "", 20, die_or_sum, NULL, NULL}},
                      2, codes);
    assert_int_equal(codes[0], SYSTEM_FAILED);
    assert_int_equal(codes[1], 128 + SIGKILL);
    assert_true(took < 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_there),        cmocka_unit_test(one_missing),
        cmocka_unit_test(nobody_at_rank_0), cmocka_unit_test(other_settings),
        cmocka_unit_test(other_world),      cmocka_unit_test(twice),
        cmocka_unit_test(one_gpu_for_two),  cmocka_unit_test(keys),
        cmocka_unit_test(killed_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
