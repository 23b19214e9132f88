/* cuda_device.c: finds this rank's GPU, opens streams and cuDNN on it, and waits for it. */
#include "lib/clock.h"
#include "lib/log.h"
#include "trainer/cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error != cudaSuccess)
        exit(fail(SYSTEM_FAILED, "%s:%d: %s: %s", file, line, call, cudaGetErrorString(error)));
}

void cuda_must(int rc) {
    if (rc)
        exit(rc);
}

/* index among the visible ones. */
static int find(int local_rank, int local_world_size, int *index) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return fail(SYSTEM_FAILED, "--device cuda: no GPU can be used: %s%s",
                    cudaGetErrorString(error),
                    getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES is set)" : "");
    *index = count == 1 ? 0 : local_rank;
    if (count == 0)
        return fail(SYSTEM_FAILED, "--device cuda: this process sees no GPU");
    if (count > 1 && count < local_world_size)
        return fail(BAD_USAGE,
                    "%d ranks on this node, but this process sees %d GPUs: start one rank a GPU",
                    local_world_size, count);
    return 0;
}

int backend_cuda_find(int local_rank, int local_world_size, char name[BACKEND_CUDA_NAME]) {
    int index = 0;
    char bus[32];
    int rc = find(local_rank, local_world_size, &index);
    if (rc)
        return rc;
    cudaError_t error = cudaDeviceGetPCIBusId(bus, sizeof bus, index);
    if (error != cudaSuccess)
        return fail(SYSTEM_FAILED, "--device cuda: GPU %d has no address: %s", index,
                    cudaGetErrorString(error));
    snprintf(name, BACKEND_CUDA_NAME, "GPU %s", bus);
    return 0;
}

static void set_precision(struct cuda *c, const char *name) {
    static const struct {
        const char *name;
        enum cudnn_graph_precision precision;
        enum kernels_type io;
        size_t size;
    } all[] = {{"fp32", CUDNN_GRAPH_FP32, KERNELS_FP32, 4},
               {"tf32", CUDNN_GRAPH_TF32, KERNELS_FP32, 4},
               {"bf16", CUDNN_GRAPH_BF16, KERNELS_BF16, 2},
               {"fp16", CUDNN_GRAPH_FP16, KERNELS_FP16, 2}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i].name)) {
            c->precision = all[i].precision;
            c->io = all[i].io;
            c->io_size = all[i].size;
        }
}

static int open_cudnn(struct cuda *c) {
    cudnnStatus_t status = cudnnCreate(&c->cudnn);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnSetStream(c->cudnn, c->compute);
    if (status != CUDNN_STATUS_SUCCESS)
        return fail(SYSTEM_FAILED, "cuDNN cannot be opened: %s", cudnnGetErrorString(status));
    return cudnn_graph_device_open(&c->device, c->cudnn, NULL);
}

int cuda_device_open(struct cuda *c, const struct backend_cuda_options *o) {
    struct cudaDeviceProp properties;
    int index = 0, lowest, highest, rc = find(o->local_rank, o->local_world_size, &index);
    if (rc)
        return rc;
    set_precision(c, o->precision);
    c->autotune = o->autotune;
    c->profile = o->profile;
    c->timeout_seconds = o->timeout_seconds;
    CUDA_CHECK(cudaSetDevice(index));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    snprintf(c->name, sizeof c->name, "%s", properties.name);
    if (properties.major < 8)
        return fail(SYSTEM_FAILED, "%s has compute capability %d.%d: 8.0 or higher is wanted",
                    c->name, properties.major, properties.minor);
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&c->compute, cudaStreamNonBlocking, lowest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&c->upload, cudaStreamNonBlocking, lowest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&c->reduce, cudaStreamNonBlocking, highest));
    CUDA_CHECK(cudaEventCreateWithFlags(&c->ready, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&c->reduced, cudaEventDisableTiming));
    return open_cudnn(c);
}

void cuda_device_close(struct cuda *c) {
    cudnn_desc_close(&c->device);
    if (c->cudnn)
        cudnnDestroy(c->cudnn);
    cudaEvent_t events[] = {c->ready, c->reduced};
    cudaStream_t streams[] = {c->compute, c->upload, c->reduce};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i])
            cudaStreamDestroy(streams[i]);
}

/* A rank that died leaves NCCL's work, and all behind it, undone for ever: NCCL is asked, too. */
static bool goes_on(struct cuda *c, cudaError_t state, int64_t deadline) {
    static const struct timespec pause = {0, 20000};
    if (state == cudaSuccess)
        return false;
    if (state != cudaErrorNotReady)
        cuda_check(state, "waiting for the GPU", __FILE__, __LINE__);
    cudaGetLastError(); /* where "not ready" is kept, a launch would take it for its own */
    if (c->nccl)
        cuda_must(comm_nccl_check(c->nccl));
    if (clock_ms_left(deadline) == 0) {
        fail(SYSTEM_FAILED, "the GPU was not done within %g s%s", c->timeout_seconds,
             c->nccl ? ": another rank may hang" : "");
        if (c->nccl)
            comm_nccl_abort(c->nccl);
        exit(SYSTEM_FAILED);
    }
    nanosleep(&pause, NULL);
    return true;
}

void cuda_drain(struct cuda *c) {
    static const struct timespec pause = {0, 20000};
    cudaStream_t streams[] = {c->upload, c->compute, c->reduce};
    int64_t deadline = clock_deadline(2);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        while (streams[i] && cudaStreamQuery(streams[i]) == cudaErrorNotReady) {
            if (clock_ms_left(deadline) == 0 && c->nccl) {
                comm_nccl_abort(c->nccl);
                deadline = clock_deadline(c->timeout_seconds);
            } else if (clock_ms_left(deadline) == 0) {
                return;
            }
            nanosleep(&pause, NULL);
        }
    cudaGetLastError();
}

void cuda_wait(struct cuda *c, cudaStream_t stream) {
    int64_t deadline = clock_deadline(c->timeout_seconds);
    while (goes_on(c, cudaStreamQuery(stream), deadline))
        ;
}

void cuda_wait_event(struct cuda *c, cudaEvent_t event) {
    int64_t deadline = clock_deadline(c->timeout_seconds);
    while (goes_on(c, cudaEventQuery(event), deadline))
        ;
}
