/* peak.c: how many matrix products a second this GPU really makes: the measure of what the
 * trainer's convolutions reach. A convolution of 1×1 from 8192 to 8192 channels over 8192 pixels,
 * which is a product of two matrices of 8192×8192: 2·8192³ = 1.1 TFLOP. Of random numbers: zeros
 * draw less power, and would run at a higher clock.
 *
 * usage: peak [bf16|fp16|tf32|fp32]…   (bf16 and tf32 without an argument)
 *
 * Prints a line for each: precision, TFLOP/s of the fastest of cuDNN's plans, its engine. Each plan
 * runs 3 times to warm up and 10 times between two events. */
#include "lib/log.h"
#include "lib/rng.h"
#include "trainer/cudnn_graph.h"
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 8192, WARM = 3, RUNS = 10 };
static const int64_t workspace_limit = 512 << 20;
static const char *const names[] = {"fp32", "tf32", "bf16",
                                    "fp16"}; /* enum cudnn_graph_precision */

#define CHECK(call) check((call), #call)
static void check(cudaError_t error, const char *call) {
    if (error != cudaSuccess)
        exit(fail(SYSTEM_FAILED, "%s: %s", call, cudaGetErrorString(error)));
}

/* count values in [-1, 1), or in 16 bits of both signs and 0.25 to 0.5 in size. */
static void *random_values(size_t count, size_t size, enum cudnn_graph_precision precision) {
    struct rng rng = rng_at(1, RNG_TEST, 0, (uint32_t)size);
    uint8_t *host = malloc(count * size);
    void *device;
    if (!host)
        exit(fail(SYSTEM_FAILED, "out of memory"));
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = rng_u32(&rng);
        float x = (float)(bits >> 8) / 8388608 - 1;
        uint16_t half = (uint16_t)(precision == CUDNN_GRAPH_BF16 ? 0x3e80 : 0x3400);
        half = (uint16_t)(half | (bits & 0x8000) | (bits & 0xff));
        memcpy(host + i * size, size == 4 ? (void *)&x : (void *)&half, size);
    }
    CHECK(cudaMalloc(&device, count * size));
    CHECK(cudaMemcpy(device, host, count * size, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

/* Seconds of one run of the chosen plan. */
static double measure(cudnnHandle_t handle, const struct cudnn_graph *g, void *const *pointers,
                      void *workspace) {
    cudaEvent_t begin, end;
    float ms;
    CHECK(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    CHECK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    for (int i = 0; i < WARM + RUNS; i++) {
        if (i == WARM)
            CHECK(cudaEventRecord(begin, NULL));
        if (cudnn_graph_run(handle, g, pointers, workspace))
            exit(SYSTEM_FAILED);
    }
    CHECK(cudaEventRecord(end, NULL));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return (double)ms / 1e3 / RUNS;
}

static int peak(cudnnHandle_t handle, const struct cudnn_desc *device,
                enum cudnn_graph_precision precision) {
    const size_t values = (size_t)SIDE * SIDE;
    size_t size = precision == CUDNN_GRAPH_BF16 || precision == CUDNN_GRAPH_FP16 ? 2 : 4;
    struct cudnn_graph_spec spec = {.kind = CUDNN_GRAPH_CONV_FORWARD,
                                    .precision = precision,
                                    .layer = "peak",
                                    .in = {SIDE / 64, SIDE, 8, 8},
                                    .out = {SIDE / 64, SIDE, 8, 8},
                                    .channels = SIDE,
                                    .kernel = 1};
    struct cudnn_graph g;
    int rc = cudnn_graph_open(&g, &spec, device, workspace_limit, CUDNN_GRAPH_PLANS_MAX);
    if (rc)
        return rc;
    void *workspace,
        *pointers[CUDNN_GRAPH_ROLES] = {[CUDNN_GRAPH_X] = random_values(values, size, precision),
                                        [CUDNN_GRAPH_W] = random_values(values, size, precision)};
    CHECK(cudaMalloc(&pointers[CUDNN_GRAPH_Y], values * size));
    CHECK(cudaMalloc(&workspace, (size_t)workspace_limit));
    double best = 0;
    int64_t engine = -1;
    for (g.chosen = 0; g.chosen < g.plan_count; g.chosen++) {
        double flops = 2. * SIDE * SIDE * SIDE / measure(handle, &g, pointers, workspace);
        if (flops > best) {
            best = flops;
            engine = g.plans[g.chosen].engine;
        }
    }
    printf("%s %.1f TFLOP/s engine %" PRId64 "\n", names[precision], best / 1e12, engine);
    fflush(stdout);
    CHECK(cudaFree(workspace));
    CHECK(cudaFree(pointers[CUDNN_GRAPH_X]));
    CHECK(cudaFree(pointers[CUDNN_GRAPH_W]));
    CHECK(cudaFree(pointers[CUDNN_GRAPH_Y]));
    cudnn_graph_close(&g);
    return 0;
}

int main(int argc, char **argv) {
    bool wanted[4] = {[CUDNN_GRAPH_TF32] = argc == 1, [CUDNN_GRAPH_BF16] = argc == 1};
    cudnnHandle_t handle;
    struct cudnn_desc device;
    log_open("peak", -1);
    for (int i = 1; i < argc; i++) {
        int k = 0;
        while (k < 4 && strcmp(argv[i], names[k]) != 0)
            k++;
        if (k == 4)
            return fail(BAD_USAGE, "usage: peak [bf16|fp16|tf32|fp32]...");
        wanted[k] = true;
    }
    CHECK(cudaSetDevice(0));
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status != CUDNN_STATUS_SUCCESS)
        return fail(SYSTEM_FAILED, "cuDNN cannot be opened: %s", cudnnGetErrorString(status));
    int rc = cudnn_graph_device_open(&device, handle, NULL);
    for (int k = 3; k >= 0 && !rc; k--)
        if (wanted[k])
            rc = peak(handle, &device, (enum cudnn_graph_precision)k);
    if (!rc)
        cudnn_desc_close(&device);
    cudnnDestroy(handle);
    return rc;
}
