/* planted.cu: kernels with one mistake each, and their twins without it, to see that the simulation
 * of cuda_cpu.h tells them apart. Each sums 64 values. */
#include "trainer/kernels_device.h"

namespace {

enum { NONE, NO_BARRIER, SOME_WAIT, SOME_ENDED, TWO_BARRIERS, NO_WARP_BARRIER, UNWRITTEN, BEYOND };

constexpr unsigned COUNT = 64, HALF = COUNT / 2;

/* A tree in shared memory. */
__global__ void tree(float *out, const float *in, int mistake) {
    SHARED(float, sums, COUNT);
    const unsigned i = threadIdx.x;
    if (mistake != UNWRITTEN || i != 7)
        sums[mistake == BEYOND ? i + 1 : i] = in[i];
    if (mistake == SOME_ENDED && i == COUNT - 1)
        return;
    for (unsigned half = HALF; half; half /= 2) {
        if (mistake == TWO_BARRIERS && i % 2)
            __syncthreads();
        else if (mistake == SOME_WAIT && i % 2)
            __syncwarp();
        else if (mistake != NO_BARRIER || half == HALF)
            __syncthreads();
        if (i < half)
            sums[i] = sums[i] + sums[i + half];
    }
    if (i == 0)
        *out = sums[0];
}

/* The last 32 sums within a warp. */
__global__ void warp_tree(float *out, const float *in, int mistake) {
    SHARED(float, sums, HALF);
    const unsigned i = threadIdx.x;
    sums[i] = in[i] + in[i + HALF];
    for (unsigned half = HALF / 2; half; half /= 2) {
        if (mistake != NO_WARP_BARRIER || half == HALF / 2)
            __syncwarp();
        if (i < half)
            sums[i] = sums[i] + sums[i + half];
    }
    if (i == 0)
        *out = sums[0];
}

/* The same by shuffles. */
__global__ void shuffles(float *out, const float *in, int mistake) {
    const unsigned i = threadIdx.x;
    float x = in[i] + in[i + HALF];
    if (mistake == SOME_ENDED && i == 3)
        return;
    for (unsigned half = HALF / 2; half; half /= 2)
        x += __shfl_down_sync(0xffffffffU, x, half);
    if (i == 0)
        *out = x;
}

} // namespace

/* kernel: 0 tree, 1 warp_tree, 2 shuffles. */
extern "C" int planted_run(int kernel, int mistake, float *out, const float *in) {
    if (kernel == 0)
        return start("tree", tree, 1, COUNT, nullptr, out, in, mistake);
    return start("within a warp", kernel == 1 ? warp_tree : shuffles, 1, HALF, nullptr, out, in,
                 mistake);
}

extern "C" const char *planted_error() {
    return cudaGetErrorString(1);
}
