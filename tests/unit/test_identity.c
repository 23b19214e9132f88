/* Who am I: what each source says alone, which comes first, and that two that differ are refused. A
 * case is the options and the environment, and what must come of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h" /* before cmocka.h, which has a macro fail() */

#include <cmocka.h>

#include "trainer/cores.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const variables[] = {
    "RANK",         "WORLD_SIZE",           "LOCAL_RANK",          "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",  "MASTER_PORT",          "SLURM_PROCID",        "SLURM_STEP_NUM_TASKS",
    "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_LOCALID",       "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS", "SLURM_NPROCS",         "SLURM_CPUS_PER_TASK",
};

/* environment: "NAME=VALUE NAME=VALUE". */
static void set_environment(const char *environment) {
    char text[512], *save, *word;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    snprintf(text, sizeof text, "%s", environment);
    for (word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
}

/* Four numbers of the command line (-1: not given), master host and port; the same of the result.
 */
struct who {
    int rank, world, local_rank, local_world;
    const char *addr;
    int port;
};

#define NOTHING                                                                                    \
    { -1, -1, -1, -1, NULL, -1 }
#define STEP(rank, tasks, node, nodes, local, per_node)                                            \
    "SLURM_PROCID=" #rank " SLURM_STEP_NUM_TASKS=" #tasks " SLURM_NODEID=" #node                   \
    " SLURM_STEP_NUM_NODES=" #nodes " SLURM_LOCALID=" #local                                       \
    " SLURM_STEP_TASKS_PER_NODE=" per_node

static struct identity of(const struct who *w) {
    return (struct identity){.rank = w->rank,
                             .world_size = w->world,
                             .local_rank = w->local_rank,
                             .local_world_size = w->local_world,
                             .master_addr = w->addr,
                             .master_port = w->port};
}

static void answers(void **state) {
    (void)state;
    static const struct {
        struct who options;
        const char *environment;
        struct who want;
        bool slurm_task;
    } cases[] = {
        {NOTHING, "", {0, 1, 0, 1, "127.0.0.1", 29500}, false},
        /* at a loopback address all are on this node */
        {{1, 3, -1, -1, NULL, -1}, "", {1, 3, 1, 3, "127.0.0.1", 29500}, false},
        {{1, 3, -1, -1, "10.0.0.1", 7}, "", {1, 3, 0, 1, "10.0.0.1", 7}, false},
        {NOTHING,
         "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=9",
         {5, 8, 1, 4, "h", 9},
         false},
        /* equal words agree, and each may say what the other leaves open */
        {{5, 8, -1, -1, "h", -1},
         "RANK=5 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h",
         {5, 8, 1, 4, "h", 29500},
         false},
        {NOTHING, STEP(3, 4, 1, 2, 1, "2(x2)") " MASTER_ADDR=h", {3, 4, 1, 2, "h", 29500}, true},
        {NOTHING, STEP(4, 5, 2, 3, 0, "2(x2),1") " MASTER_ADDR=h", {4, 5, 0, 1, "h", 29500}, true},
        /* the job's variables, outside a step */
        {NOTHING,
         "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_NPROCS=8",
         {0, 1, 0, 1, "127.0.0.1", 29500},
         false},
        /* torchrun as the one task of each node */
        {NOTHING,
         STEP(1, 2, 1, 2, 0,
              "1(x2)") " RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h",
         {6, 8, 2, 4, "h", 29500},
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct identity me = of(&cases[i].options);
        const struct who *want = &cases[i].want;
        set_environment(cases[i].environment);
        if (identity_find(&me) || me.rank != want->rank || me.world_size != want->world ||
            me.local_rank != want->local_rank || me.local_world_size != want->local_world ||
            strcmp(me.master_addr, want->addr) != 0 || me.master_port != want->port ||
            me.slurm_task != cases[i].slurm_task)
            fail_msg("case %zu: rank %d of %d, local %d of %d, %s:%d", i, (int)me.rank,
                     (int)me.world_size, (int)me.local_rank, (int)me.local_world_size,
                     me.master_addr, (int)me.master_port);
    }
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        struct who options;
        const char *environment, *words[2]; /* that the one line must have */
    } cases[] = {
        {{1, 4, -1, -1, NULL, -1}, "RANK=2 WORLD_SIZE=4", {"--rank=1", "RANK=2"}},
        {{1, 4, -1, -1, NULL, -1}, "RANK=1 WORLD_SIZE=5", {"--world-size=4", "WORLD_SIZE=5"}},
        {NOTHING, STEP(1, 4, 0, 1, 1, "4") " RANK=2 WORLD_SIZE=4", {"RANK=2", "SLURM_PROCID=1"}},
        {NOTHING,
         STEP(1, 4, 0, 1, 1, "4") " LOCAL_WORLD_SIZE=2",
         {"LOCAL_WORLD_SIZE=2", "SLURM_STEP_TASKS_PER_NODE=4"}},
        {NOTHING,
         STEP(1, 2, 1, 2, 0, "1(x2)") " RANK=2 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4",
         {"RANK=2", "SLURM_PROCID=1"}},
        {NOTHING,
         STEP(1, 2, 1, 2, 0, "1(x2)") " RANK=6 WORLD_SIZE=9 LOCAL_WORLD_SIZE=4",
         {"WORLD_SIZE=9", "SLURM_STEP_NUM_TASKS=2"}},
        {{0, 2, -1, -1, "a", -1}, "MASTER_ADDR=b", {"--master-addr=a", "MASTER_ADDR=b"}},
        {{0, 2, -1, -1, NULL, 8}, "MASTER_PORT=9", {"--master-port=8", "MASTER_PORT=9"}},
        {{4, 4, -1, -1, NULL, -1}, "", {"rank 4", "0 to 3"}},
        {{0, 4, 2, 2, NULL, -1}, "", {"local rank 2", "0 to 1"}},
        {{0, 2, -1, 4, NULL, -1}, "", {"4 ranks on this node", "world size 2"}},
        {{1, -1, -1, -1, NULL, -1}, "", {"--rank=1", "world size"}},
        {NOTHING, "WORLD_SIZE=4", {"WORLD_SIZE=4", "a rank"}},
        {NOTHING, "RANK=one WORLD_SIZE=4", {"RANK=one", "number"}},
        {{0, 2, -1, -1, NULL, -1}, "MASTER_PORT=0", {"port 0", "65535"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct identity me = of(&cases[i].options);
        char text[512] = "";
        FILE *err = tmpfile();
        int saved = dup(STDERR_FILENO);
        set_environment(cases[i].environment);
        dup2(fileno(err), STDERR_FILENO);
        int rc = identity_find(&me);
        dup2(saved, STDERR_FILENO);
        close(saved);
        rewind(err);
        text[fread(text, 1, sizeof text - 1, err)] = '\0';
        fclose(err);
        if (rc != BAD_USAGE || !strstr(text, cases[i].words[0]) || !strstr(text, cases[i].words[1]))
            fail_msg("case %zu: %d, %s", i, rc, text);
    }
}

/* Cores are shared by the ranks of a node, but for a Slurm task whose own number stands there; what
 * no thread needs goes to communication. */
static void cores(void **state) {
    (void)state;
    cpu_set_t all, spare, rest;
    struct identity me = {.world_size = 1, .local_world_size = 1};
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int count = CPU_COUNT(&all);
    set_environment("");
    assert_int_equal(cores_threads(&me), count);
    assert_false(cores_spare(&me, count, &spare));
    me.local_world_size = 1000;
    assert_int_equal(cores_threads(&me), 1);
    set_environment("SLURM_CPUS_PER_TASK=1");
    me.slurm_task = true;
    assert_int_equal(cores_threads(&me), 1);
    if (count < 2)
        return;
    me = (struct identity){.world_size = 1, .local_world_size = 1};
    assert_true(cores_spare(&me, count - 1, &spare));
    sched_getaffinity(0, sizeof rest, &rest);
    assert_int_equal(CPU_COUNT(&spare), 1);
    assert_int_equal(CPU_COUNT(&rest), count - 1);
    CPU_AND(&spare, &spare, &rest);
    assert_int_equal(CPU_COUNT(&spare), 0);
    sched_setaffinity(0, sizeof all, &all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(refusals),
        cmocka_unit_test(cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
