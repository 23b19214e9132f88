/* identity.c: see identity.h. */
#include "trainer/identity.h"
#include "lib/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one source says of one quantity. */
struct word {
    const char *source; /* "--rank", "RANK" */
    bool there;
    int64_t value;
};

static int read_number(struct word *w, const char *name, const char *text) {
    char *end;
    *w = (struct word){.source = name};
    if (!text || !*text)
        return 0;
    w->value = strtoll(text, &end, 10);
    if (*end || w->value < 0 || w->value > 65536)
        return fail(BAD_USAGE, "%s=%s: a number from 0 to 65536 is wanted", name, text);
    w->there = true;
    return 0;
}

/* SLURM_STEP_TASKS_PER_NODE, "2(x3),1": tasks of each node in order. 0: no such node. */
static int64_t tasks_of_node(const char *list, int64_t node) {
    while (list && *list) {
        char *at;
        int64_t tasks = strtoll(list, &at, 10), times = 1;
        if (at == list)
            return 0;
        if (!strncmp(at, "(x", 2)) {
            times = strtoll(at + 2, &at, 10);
            at += *at == ')';
        }
        if (node < times)
            return tasks;
        node -= times;
        list = *at == ',' ? at + 1 : at;
    }
    return 0;
}

/* Of each quantity: command line, torchrun, Slurm. */
enum quantity { RANK, WORLD, LOCAL_RANK, LOCAL_WORLD, QUANTITIES };
enum source { OPTION, TORCHRUN, SLURM, SOURCES };

struct words {
    struct word at[QUANTITIES][SOURCES];
    int64_t slurm_nodes;
};

static int read_words(struct words *w, const struct identity *given) {
    static const char *const names[QUANTITIES][SOURCES] = {
        [RANK] = {"--rank", "RANK", "SLURM_PROCID"},
        [WORLD] = {"--world-size", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"},
        [LOCAL_RANK] = {"--local-rank", "LOCAL_RANK", "SLURM_LOCALID"},
        [LOCAL_WORLD] = {"--local-world-size", "LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE"},
    };
    const int64_t options[QUANTITIES] = {given->rank, given->world_size, given->local_rank,
                                         given->local_world_size};
    /* Outside a step SLURM_PROCID and others may stand there for the job. */
    bool step = getenv("SLURM_STEP_NUM_TASKS") && getenv("SLURM_PROCID");
    *w = (struct words){0};
    for (int q = 0; q < QUANTITIES; q++) {
        w->at[q][OPTION] = (struct word){
            .source = names[q][OPTION], .there = options[q] >= 0, .value = options[q]};
        int rc = read_number(&w->at[q][TORCHRUN], names[q][TORCHRUN], getenv(names[q][TORCHRUN]));
        if (!rc && step && q != LOCAL_WORLD)
            rc = read_number(&w->at[q][SLURM], names[q][SLURM], getenv(names[q][SLURM]));
        if (rc)
            return rc;
    }
    if (!step)
        return 0;
    struct word node, nodes;
    int rc = read_number(&node, "SLURM_NODEID", getenv("SLURM_NODEID"));
    rc = rc ? rc : read_number(&nodes, "SLURM_STEP_NUM_NODES", getenv("SLURM_STEP_NUM_NODES"));
    if (rc)
        return rc;
    int64_t tasks = tasks_of_node(getenv("SLURM_STEP_TASKS_PER_NODE"), node.value);
    w->at[LOCAL_WORLD][SLURM] =
        (struct word){names[LOCAL_WORLD][SLURM], node.there && tasks > 0, tasks};
    w->slurm_nodes = nodes.there ? nodes.value : 0;
    return 0;
}

static const struct word *first(const struct words *w, enum quantity q) {
    for (int s = 0; s < SOURCES; s++)
        if (w->at[q][s].there)
            return &w->at[q][s];
    return NULL;
}

static int contradiction(const struct word *a, const struct word *b) {
    return fail(BAD_USAGE, "%s=%lld contradicts %s=%lld", a->source, (long long)a->value, b->source,
                (long long)b->value);
}

/* Where one task of the step started the several ranks of its node: its numbers as those of nodes.
 */
static int take_launcher(struct words *w) {
    const struct word *local = first(w, LOCAL_WORLD), *rank = first(w, RANK);
    struct word *tasks = &w->at[WORLD][SLURM], *task = &w->at[RANK][SLURM];
    if (!tasks->there || tasks->value != w->slurm_nodes || local == &w->at[LOCAL_WORLD][SLURM] ||
        !local || local->value < 2)
        return 0;
    const struct word *world = first(w, WORLD);
    if (world != tasks && world->value != tasks->value * local->value)
        return fail(BAD_USAGE, "%s=%lld contradicts %s=%lld nodes of %s=%lld ranks", world->source,
                    (long long)world->value, tasks->source, (long long)tasks->value, local->source,
                    (long long)local->value);
    if (rank != task && rank->value / local->value != task->value)
        return fail(BAD_USAGE, "%s=%lld is no rank of node %s=%lld with %lld ranks a node",
                    rank->source, (long long)rank->value, task->source, (long long)task->value,
                    (long long)local->value);
    for (int q = 0; q < QUANTITIES; q++)
        w->at[q][SLURM].there = false;
    return 0;
}

static int agree(const struct words *w) {
    for (int q = 0; q < QUANTITIES; q++) {
        const struct word *said = first(w, q);
        for (int s = 0; s < SOURCES; s++)
            if (w->at[q][s].there && w->at[q][s].value != said->value)
                return contradiction(said, &w->at[q][s]);
    }
    return 0;
}

static int find_master(struct identity *me) {
    const char *host = getenv("MASTER_ADDR");
    struct word port;
    int rc = read_number(&port, "MASTER_PORT", getenv("MASTER_PORT"));
    if (rc)
        return rc;
    if (me->master_addr && host && *host && strcmp(me->master_addr, host) != 0)
        return fail(BAD_USAGE, "--master-addr=%s contradicts MASTER_ADDR=%s", me->master_addr,
                    host);
    if (me->master_port >= 0 && port.there && port.value != me->master_port)
        return contradiction(&(struct word){"--master-port", true, me->master_port}, &port);
    if (!me->master_addr)
        me->master_addr = host && *host ? host : "127.0.0.1";
    if (me->master_port < 0)
        me->master_port = port.there ? port.value : 29500;
    if (me->master_port < 1 || me->master_port > 65535)
        return fail(BAD_USAGE, "master port %lld: 1 to 65535 is wanted",
                    (long long)me->master_port);
    return 0;
}

static int check(const struct identity *me) {
    if (me->world_size < 1 || me->rank >= me->world_size)
        return fail(BAD_USAGE, "rank %lld of world size %lld: ranks are 0 to %lld",
                    (long long)me->rank, (long long)me->world_size, (long long)me->world_size - 1);
    if (me->local_world_size < 1 || me->local_world_size > me->world_size)
        return fail(BAD_USAGE, "%lld ranks on this node of world size %lld",
                    (long long)me->local_world_size, (long long)me->world_size);
    if (me->local_rank >= me->local_world_size)
        return fail(BAD_USAGE,
                    "local rank %lld of %lld ranks on this node: local ranks are 0 to %lld",
                    (long long)me->local_rank, (long long)me->local_world_size,
                    (long long)me->local_world_size - 1);
    return 0;
}

int identity_find(struct identity *me) {
    struct words w;
    int rc = read_words(&w, me);
    rc = rc ? rc : take_launcher(&w);
    rc = rc ? rc : agree(&w);
    rc = rc ? rc : find_master(me);
    if (rc)
        return rc;
    const struct word *rank = first(&w, RANK), *world = first(&w, WORLD);
    const struct word *local = first(&w, LOCAL_RANK), *local_world = first(&w, LOCAL_WORLD);
    if (!rank != !world)
        return fail(BAD_USAGE, "%s=%lld needs %s beside it", (rank ? rank : world)->source,
                    (long long)(rank ? rank : world)->value, rank ? "a world size" : "a rank");
    me->rank = rank ? rank->value : 0;
    me->world_size = world ? world->value : 1;
    bool loopback = !strncmp(me->master_addr, "127.", 4) || !strcmp(me->master_addr, "localhost");
    me->local_world_size = local_world ? local_world->value : loopback ? me->world_size : 1;
    me->local_rank = local                      ? local->value
                     : me->local_world_size > 0 ? me->rank % me->local_world_size
                                                : 0;
    me->slurm_task = w.at[RANK][SLURM].there;
    return check(me);
}
