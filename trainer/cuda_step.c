/* cuda_step.c: the way of a batch into the GPU, and recorded steps.
 *
 * Kernels read what changes from step to step out of the inbox, at addresses that never change, so
 * that a recorded step can run again. A step that runs by its calls copies each value as it comes.
 * A recorded one collects them in pinned memory; at its end they go up in one piece, on the upload
 * stream, while the step before may still run; then into the inbox, and the graph is launched. The
 * host is at most CUDA_SLOTS steps ahead.
 *
 * The first pass of a step runs by its calls (libraries prepare themselves at first use), the
 * second is recorded, all others are run again. In these the calls of backend.h only put their
 * values; a digest of the calls proves that they are the recorded ones. */
#include "lib/log.h"
#include "trainer/cuda.h"
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

static size_t aligned(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

void cuda_step_open(struct cuda *c) {
    for (int i = 0; i < CUDA_SLOTS; i++) {
        struct cuda_slot *s = &c->steps.slots[i];
        CUDA_CHECK(cudaEventCreateWithFlags(&s->sent, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&s->taken, cudaEventDisableTiming));
    }
    cuda_step_fit(c, (struct shape){1, 1, 1, 1});
}

static void free_room(struct cuda_steps *s) {
    for (int i = 0; i < CUDA_SLOTS && s->inbox; i++) {
        CUDA_CHECK(cudaFreeHost(s->slots[i].host));
        CUDA_CHECK(cudaFree(s->slots[i].device));
    }
    if (s->inbox)
        CUDA_CHECK(cudaFree(s->inbox));
    s->inbox = NULL;
}

void cuda_step_fit(struct cuda *c, struct shape images) {
    struct cuda_steps *s = &c->steps;
    size_t n = (size_t)images.n, pixels = n * (size_t)(images.c * images.h * images.w);
    if (s->inbox && n * sizeof(int32_t) <= s->pixels_at - s->labels_at &&
        pixels <= s->bytes - s->pixels_at)
        return;
    cuda_wait(c, c->upload);
    cuda_wait(c, c->compute);
    cuda_forget(c);
    free_room(s);
    s->labels_at = aligned(sizeof(struct cuda_inbox));
    s->pixels_at = s->labels_at + aligned(n * sizeof(int32_t));
    s->bytes = s->pixels_at + aligned(pixels);
    for (int i = 0; i < CUDA_SLOTS; i++) {
        CUDA_CHECK(cudaHostAlloc((void **)&s->slots[i].host, s->bytes, cudaHostAllocDefault));
        CUDA_CHECK(cudaMalloc((void **)&s->slots[i].device, s->bytes));
        memset(s->slots[i].host, 0, s->bytes);
    }
    CUDA_CHECK(cudaMalloc((void **)&s->inbox, s->bytes));
}

void cuda_step_next(struct cuda *c) {
    struct cuda_steps *s = &c->steps;
    if (s->mode != CUDA_CALLS)
        return;
    cuda_refresh(c);
    s->slot = (s->slot + 1) % CUDA_SLOTS;
    s->filled = 0;
    cuda_wait_event(c, s->slots[s->slot].sent);
}

void *cuda_put(struct cuda *c, size_t at, const void *value, size_t bytes) {
    struct cuda_steps *s = &c->steps;
    struct cuda_slot *slot = &s->slots[s->slot];
    if (s->mode == CUDA_CALLS)
        cuda_wait_event(c, slot->sent); /* an earlier value may be on its way */
    memcpy(slot->host + at, value, bytes);
    s->filled = at + bytes > s->filled ? at + bytes : s->filled;
    if (s->mode == CUDA_CALLS) {
        CUDA_CHECK(cudaMemcpyAsync(s->inbox + at, slot->host + at, bytes, cudaMemcpyHostToDevice,
                                   c->compute));
        CUDA_CHECK(cudaEventRecord(slot->sent, c->compute));
    }
    return s->inbox + at;
}

bool cuda_skips(struct cuda *c, const void *what, double number) {
    struct cuda_steps *s = &c->steps;
    uint64_t bits;
    if (s->mode == CUDA_CALLS)
        return false;
    memcpy(&bits, &number, sizeof bits);
    s->calls = (s->calls ^ (uint64_t)(uintptr_t)what) * 0x9E3779B97F4A7C15U;
    s->calls = (s->calls ^ bits ^ s->calls >> 32) * 0x9E3779B97F4A7C15U;
    return s->mode == CUDA_REPLAY;
}

static struct cuda_recording *find(struct cuda_steps *s, const void *plan, int kind) {
    for (int i = 0; i < s->count; i++)
        if (s->recordings[i].plan == plan && s->recordings[i].kind == kind)
            return &s->recordings[i];
    if (s->count == CUDA_RECORDINGS_MAX)
        return NULL;
    s->recordings[s->count] = (struct cuda_recording){.plan = plan, .kind = kind};
    return &s->recordings[s->count++];
}

void cuda_step_begin(struct backend *b, const void *plan, int kind) {
    struct cuda *c = b->state;
    struct cuda_steps *s = &c->steps;
    nvtxRangePushA("step");
    cuda_step_next(c);
    s->calls = 0;
    s->now = c->profile ? NULL : find(s, plan, kind);
    if (!s->now || s->now->passes == 0)
        return;
    s->mode = s->now->graph ? CUDA_REPLAY : CUDA_RECORD;
    if (s->mode == CUDA_RECORD)
        CUDA_CHECK(cudaStreamBeginCapture(c->compute, cudaStreamCaptureModeThreadLocal));
}

static void end_recording(struct cuda *c, struct cuda_recording *r) {
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamEndCapture(c->compute, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&r->graph, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    r->calls = c->steps.calls;
}

static void launch(struct cuda *c, cudaGraphExec_t graph) {
    struct cuda_steps *s = &c->steps;
    struct cuda_slot *slot = &s->slots[s->slot];
    CUDA_CHECK(cudaStreamWaitEvent(c->upload, slot->taken, 0));
    CUDA_CHECK(
        cudaMemcpyAsync(slot->device, slot->host, s->filled, cudaMemcpyHostToDevice, c->upload));
    CUDA_CHECK(cudaEventRecord(slot->sent, c->upload));
    CUDA_CHECK(cudaStreamWaitEvent(c->compute, slot->sent, 0));
    CUDA_CHECK(
        cudaMemcpyAsync(s->inbox, slot->device, s->filled, cudaMemcpyDeviceToDevice, c->compute));
    CUDA_CHECK(cudaEventRecord(slot->taken, c->compute));
    CUDA_CHECK(cudaGraphLaunch(graph, c->compute));
}

void cuda_step_end(struct backend *b) {
    struct cuda *c = b->state;
    struct cuda_steps *s = &c->steps;
    enum cuda_mode mode = s->mode;
    s->mode = CUDA_CALLS;
    if (mode == CUDA_RECORD)
        end_recording(c, s->now);
    if (mode == CUDA_REPLAY && s->calls != s->now->calls)
        exit(fail(SYSTEM_FAILED, "a step made other calls than when it was recorded"));
    if (mode != CUDA_CALLS)
        launch(c, s->now->graph);
    if (s->now)
        s->now->passes++;
    nvtxRangePop();
}

void cuda_forget(struct cuda *c) {
    struct cuda_steps *s = &c->steps;
    for (int i = 0; i < s->count; i++)
        if (s->recordings[i].graph)
            CUDA_CHECK(cudaGraphExecDestroy(s->recordings[i].graph));
    s->count = 0;
    s->now = NULL;
}

void cuda_step_close(struct cuda *c) {
    cuda_forget(c);
    free_room(&c->steps);
    for (int i = 0; i < CUDA_SLOTS; i++) {
        if (c->steps.slots[i].sent)
            cudaEventDestroy(c->steps.slots[i].sent);
        if (c->steps.slots[i].taken)
            cudaEventDestroy(c->steps.slots[i].taken);
    }
}
