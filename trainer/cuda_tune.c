/* cuda_tune.c: cuDNN's graphs, one for all layers of the same shape, and the choice among their
 * plans: the heuristics' first, or with --autotune the fastest of all. What was measured is kept in
 * a file, a line each: device, version of cuDNN and graph, a tab, number of the plan in the
 * heuristics' order and of its engine. */
#include "lib/clock.h"
#include "lib/file.h"
#include "lib/log.h"
#include "trainer/cuda.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 5, KEY = 512, FILE_MAX = 16 << 20 };
static const int64_t workspace_limit = 512 << 20;

static bool cache_path(char *path, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache)
        snprintf(path, size, "%s/ddpipe", cache);
    else if (home && *home)
        snprintf(path, size, "%s/.cache/ddpipe", home);
    else
        return false;
    return file_make_folders(path, 0755) == 0 && strlen(path) + 16 < size &&
           strcat(path, "/autotune.txt");
}

/* The last line with this key counts. */
static bool recall(const char *key, int *plan, int64_t *engine) {
    char path[4096], *text;
    size_t size;
    bool found = false;
    if (!cache_path(path, sizeof path) || access(path, R_OK) ||
        file_read(path, FILE_MAX, &text, &size))
        return false;
    for (char *line = text, *end; line && *line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == '\t')
            found = sscanf(line + strlen(key), "\t%d\t%" SCNd64, plan, engine) == 2;
    }
    free(text);
    return found && *plan >= 0 && *plan < CUDNN_GRAPH_PLANS_MAX;
}

/* One write that the kernel appends as a whole: ranks may do it at once. */
static void remember(const char *key, int plan, int64_t engine) {
    char path[4096], line[KEY + 64];
    int n = snprintf(line, sizeof line, "%s\t%d\t%" PRId64 "\n", key, plan, engine);
    int fd = cache_path(path, sizeof path) ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        log_note("--autotune: what was measured cannot be kept in ~/.cache/ddpipe");
    if (fd >= 0)
        close(fd);
}

/* Milliseconds of one run: the fastest of a few. */
static int measure(struct cuda *c, const struct cudnn_graph *g, void *const *pointers, float *ms) {
    cudaEvent_t begin, end;
    int rc = 0;
    CUDA_CHECK(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    CUDA_CHECK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    *ms = 1e30f;
    for (int i = 0; i <= RUNS && !rc; i++) {
        float took;
        CUDA_CHECK(cudaEventRecord(begin, c->compute));
        rc = cudnn_graph_run(c->cudnn, g, pointers, c->workspace.begin);
        CUDA_CHECK(cudaEventRecord(end, c->compute));
        cuda_wait_event(c, end);
        CUDA_CHECK(cudaEventElapsedTime(&took, begin, end));
        *ms = i > 0 && took < *ms ? took : *ms; /* the first warms up */
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return rc;
}

/* Recorded steps know the old workspace's address. */
static void fit_workspace(struct cuda *c, const struct cudnn_graph_plan *plan) {
    if ((size_t)plan->workspace_bytes <= c->workspace.bytes)
        return;
    cuda_wait(c, c->compute);
    cuda_forget(c);
    cuda_grow(c, &c->workspace, (size_t)plan->workspace_bytes);
}

static int choose(struct cuda *c, struct cudnn_graph *g, void *const *pointers) {
    float best = 1e30f, ms;
    int fastest = 0, rc = 0;
    for (int i = 0; i < g->plan_count && !rc; i++) {
        g->chosen = i;
        fit_workspace(c, &g->plans[i]);
        rc = measure(c, g, pointers, &ms);
        if (ms < best) {
            best = ms;
            fastest = i;
        }
    }
    g->chosen = fastest;
    return rc;
}

/* BatchNorm's plans are compiled at run time, 0.3 to 4 s each. */
static int candidates(const struct cudnn_graph_spec *spec) {
    return spec->kernel == 0 ? 3 : CUDNN_GRAPH_PLANS_MAX;
}

static int make(struct cuda *c, struct cuda_graph *made, const struct cudnn_graph_spec *spec,
                void *const *pointers) {
    struct cudnn_graph *g = &made->graph;
    char key[KEY];
    int plan = 0, rc;
    int64_t engine;
    snprintf(key, sizeof key, "%s, cuDNN %zu, %s", c->name, cudnnGetVersion(), made->text);
    if (!c->autotune)
        return cudnn_graph_open(g, spec, &c->device, workspace_limit, 1);
    if (recall(key, &plan, &engine)) {
        rc = cudnn_graph_open(g, spec, &c->device, workspace_limit, plan + 1);
        g->chosen = plan;
        if (rc || (plan < g->plan_count && g->plans[plan].engine == engine))
            return rc;
        cudnn_graph_close(g); /* another library by the same number: measure again */
    }
    rc = cudnn_graph_open(g, spec, &c->device, workspace_limit, candidates(spec));
    rc = rc ? rc : choose(c, g, pointers);
    if (!rc)
        remember(key, g->chosen, g->plans[g->chosen].engine);
    return rc;
}

/* The one thing that the text leaves out. */
static bool same_eps(const struct cudnn_graph_spec *a, const struct cudnn_graph_spec *b) {
    return !memcmp(&a->eps, &b->eps, sizeof a->eps);
}

int cuda_graph(struct cuda *c, const struct cudnn_graph_spec *spec,
               void *const pointers[CUDNN_GRAPH_ROLES], struct cudnn_graph **graph) {
    char text[CUDNN_GRAPH_TEXT];
    cudnn_graph_describe(spec, text);
    for (int i = 0; i < c->graph_count; i++)
        if (!strcmp(c->graphs[i]->text, text) && same_eps(&c->graphs[i]->graph.spec, spec)) {
            *graph = &c->graphs[i]->graph;
            return 0;
        }
    if (c->graph_count == CUDA_GRAPHS_MAX)
        return fail(SYSTEM_FAILED, "more than %d shapes of layers", CUDA_GRAPHS_MAX);
    struct cuda_graph *made = calloc(1, sizeof *made);
    struct cudnn_graph_spec kept = *spec;
    kept.layer = strdup(spec->layer);
    if (!made || !kept.layer)
        return fail(SYSTEM_FAILED, "out of memory");
    memcpy(made->text, text, sizeof text);
    int rc = make(c, made, &kept, pointers);
    if (rc) {
        free((char *)(uintptr_t)kept.layer);
        free(made);
        return rc;
    }
    c->graphs[c->graph_count++] = made;
    fit_workspace(c, &made->graph.plans[made->graph.chosen]);
    *graph = &made->graph;
    return 0;
}

void cuda_graphs_close(struct cuda *c) {
    while (c->graph_count > 0) {
        struct cuda_graph *g = c->graphs[--c->graph_count];
        free((char *)(uintptr_t)g->graph.spec.layer);
        cudnn_graph_close(&g->graph);
        free(g);
    }
}
