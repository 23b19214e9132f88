/* cuda_memory.c: device memory: arenas with their 16-bit copies, chunks that every plan takes from
 * their start again (only one plan runs at a time), and buffers that grow. */
#include "lib/log.h"
#include "trainer/cuda.h"
#include <stdlib.h>

static const size_t chunk_bytes = 64 << 20, alignment = 256;

static void *device_alloc(size_t bytes) {
    void *p = NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : alignment);
    if (error != cudaSuccess)
        exit(fail(SYSTEM_FAILED, "no GPU memory for %zu bytes: %s: use smaller batches", bytes,
                  cudaGetErrorString(error)));
    return p;
}

float *cuda_alloc(struct backend *b, size_t count) {
    struct cuda *c = b->state;
    if (c->arena_count == CUDA_ARENAS_MAX) {
        fail(SYSTEM_FAILED, "more than %d arenas", CUDA_ARENAS_MAX);
        return NULL;
    }
    float *p = device_alloc(count * sizeof *p);
    CUDA_CHECK(cudaMemsetAsync(p, 0, count * sizeof *p, c->compute));
    c->arenas[c->arena_count++] = (struct cuda_arena){.begin = p, .count = count};
    return p;
}

void cuda_read(struct backend *b, float *host, const float *from, size_t count) {
    struct cuda *c = b->state;
    CUDA_CHECK(
        cudaMemcpyAsync(host, from, count * sizeof *host, cudaMemcpyDeviceToHost, c->compute));
    cuda_wait(c, c->compute);
}

void cuda_write(struct backend *b, float *to, const float *host, size_t count) {
    struct cuda *c = b->state;
    CUDA_CHECK(cudaMemcpyAsync(to, host, count * sizeof *to, cudaMemcpyHostToDevice, c->compute));
    cuda_wait(c, c->compute);
    cuda_touched(c, to);
}

struct cuda_arena *cuda_arena_of(struct cuda *c, const float *x) {
    for (int i = 0; i < c->arena_count; i++)
        if (x >= c->arenas[i].begin && x < c->arenas[i].begin + c->arenas[i].count)
            return &c->arenas[i];
    return NULL;
}

void *cuda_param(struct cuda *c, const float *param) {
    if (c->io == KERNELS_FP32)
        return (void *)(uintptr_t)param;
    struct cuda_arena *a = cuda_arena_of(c, param);
    if (!a->copy) {
        a->copy = device_alloc(a->count * c->io_size);
        a->stale = true;
        cuda_refresh(c); /* plans are timed on it */
    }
    return a->copy + (size_t)(param - a->begin) * c->io_size;
}

void cuda_touched(struct cuda *c, const float *x) {
    struct cuda_arena *a = cuda_arena_of(c, x);
    if (a && a->copy)
        a->stale = true;
}

void cuda_refresh(struct cuda *c) {
    for (int i = 0; i < c->arena_count; i++) {
        struct cuda_arena *a = &c->arenas[i];
        if (a->stale)
            cuda_must(kernels_from_float(a->copy, c->io, a->begin, a->count, c->compute));
        a->stale = false;
    }
}

void *cuda_take(struct cuda *c, size_t bytes) {
    bytes = (bytes + alignment - 1) / alignment * alignment;
    while (c->chunk_now < c->chunk_count && c->chunk_used + bytes > c->chunks[c->chunk_now].size) {
        c->chunk_now++;
        c->chunk_used = 0;
    }
    if (c->chunk_now == c->chunk_count) {
        if (c->chunk_count == CUDA_CHUNKS_MAX)
            exit(fail(SYSTEM_FAILED, "more than %d chunks of activations", CUDA_CHUNKS_MAX));
        struct cuda_chunk chunk = {.size = bytes > chunk_bytes ? bytes : chunk_bytes};
        chunk.begin = device_alloc(chunk.size);
        if (c->autotune) /* plans are timed on it before anything is there */
            CUDA_CHECK(cudaMemsetAsync(chunk.begin, 0, chunk.size, c->compute));
        c->chunks[c->chunk_count++] = chunk;
        c->chunk_used = 0;
    }
    void *p = c->chunks[c->chunk_now].begin + c->chunk_used;
    c->chunk_used += bytes;
    return p;
}

void cuda_rewind(struct cuda *c) {
    c->chunk_now = 0;
    c->chunk_used = 0;
}

void cuda_grow(struct cuda *c, struct cuda_buffer *buffer, size_t bytes) {
    if (bytes <= buffer->bytes)
        return;
    cuda_wait(c, c->compute);
    if (buffer->begin)
        CUDA_CHECK(cudaFree(buffer->begin));
    buffer->begin = NULL;
    buffer->begin = device_alloc(bytes);
    buffer->bytes = bytes;
}

void cuda_memory_close(struct cuda *c) {
    for (int i = 0; i < c->arena_count; i++) {
        cudaFree(c->arenas[i].begin);
        if (c->arenas[i].copy)
            cudaFree(c->arenas[i].copy);
    }
    for (int i = 0; i < c->chunk_count; i++)
        cudaFree(c->chunks[i].begin);
    if (c->workspace.begin)
        cudaFree(c->workspace.begin);
    if (c->scratch.begin)
        cudaFree(c->scratch.begin);
}
