/* cuda_cpu: runs CUDA kernels on the CPU, for tests: what a .cu file uses of CUDA, for g++, which
 * includes this file before it. Grids and blocks have one dimension.
 *
 * A block's threads are fibers, run one after the other in an order that changes from launch to
 * launch but is the same in each run of a program; so are the blocks. What a device would leave to
 * chance shows as a wrong result, and these are errors, reported by the launch:
 *   - a barrier of the block, or of a warp, that some threads wait at while others wait at another
 *     (told by line) or have ended;
 *   - a race: two threads use the same element of shared memory, one of them writes, and no barrier
 *     lies between: of the block, or __syncwarp within a warp. Shuffles order no memory;
 *   - shared memory read before it is written in this block, or used beyond its end.
 * Memory of the device is memory of the process: the caller guards it. */
#ifndef DDPIPE_CUDA_CPU_H
#define DDPIPE_CUDA_CPU_H

#include <functional>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)

struct CUstream_st;
typedef struct CUstream_st *cudaStream_t;
typedef int cudaError_t;

/* What the last launch that failed did wrong. */
const char *cudaGetErrorString(cudaError_t error);

struct cuda_cpu_index {
    unsigned x;
};

struct cuda_cpu_thread {
    cuda_cpu_index index;
    unsigned block_barriers, warp_barriers; /* passed so far; of a warp: __syncwarp alone */
    uint64_t exchange;                      /* what it offers in a shuffle */
    int state, line;                        /* line: of the barrier it waits at */
    void *fiber;
};

extern cuda_cpu_thread *cuda_cpu_self; /* the thread that runs */
extern cuda_cpu_index cuda_cpu_block, cuda_cpu_block_size, cuda_cpu_grid;
#define threadIdx (cuda_cpu_self->index)
#define blockIdx cuda_cpu_block
#define blockDim cuda_cpu_block_size
#define gridDim cuda_cpu_grid

/* Runs body once a thread of blocks · threads. 0, or not after an error. */
cudaError_t cuda_cpu_run(unsigned blocks, unsigned threads, const std::function<void()> &body);
#define LAUNCH(kernel, blocks, threads, stream, ...)                                               \
    ((void)(stream), cuda_cpu_run(blocks, threads, [=] { kernel(__VA_ARGS__); }))

/* line: leave it out, it becomes the caller's. */
void __syncthreads(int line = __builtin_LINE());
void __syncwarp(unsigned mask = 0xffffffffU, int line = __builtin_LINE());
/* bits of lane from (the own where from ≥ 32). All 32 lanes must take part: mask is all ones. */
uint64_t cuda_cpu_exchange(unsigned mask, uint64_t bits, unsigned from, int line);

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = cuda_cpu_exchange(mask, bits, threadIdx.x % 32 + delta, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline int atomicOr(int *to, int bits) {
    int before = *to;
    *to |= bits;
    return before;
}

/* Who used an element of shared memory, and when. */
struct cuda_cpu_access {
    unsigned thread, block_barriers, warp_barriers;
};
struct cuda_cpu_history {
    uint64_t block = 0; /* serial number of the block that the rest is about */
    bool written = false;
    cuda_cpu_access writer = {};
    std::vector<cuda_cpu_access> readers; /* since it was written */
};
void cuda_cpu_read(cuda_cpu_history *history, const char *name, size_t at);
void cuda_cpu_write(cuda_cpu_history *history, const char *name, size_t at);
[[noreturn]] void cuda_cpu_beyond(const char *name, size_t at);

/* An array in shared memory. Elements are read and assigned; no address is taken. */
template <typename T, size_t N> class cuda_cpu_shared {
    T values[N];
    cuda_cpu_history histories[N];
    const char *name;

  public:
    explicit cuda_cpu_shared(const char *n) : name(n) {}

    class element {
        cuda_cpu_shared *array;
        size_t at;

      public:
        element(cuda_cpu_shared *a, size_t i) : array(a), at(i) {}
        operator T() const {
            cuda_cpu_read(&array->histories[at], array->name, at);
            return array->values[at];
        }
        void operator=(T value) {
            cuda_cpu_write(&array->histories[at], array->name, at);
            array->values[at] = value;
        }
        void operator=(const element &other) { *this = static_cast<T>(other); }
    };

    element operator[](size_t i) {
        if (i >= N)
            cuda_cpu_beyond(name, i);
        return element(this, i);
    }
};
#define SHARED(type, name, count) static cuda_cpu_shared<type, count> name(#name)

/* The 16-bit types. */
struct __half {
    _Float16 value;
};
inline float __half2float(__half x) {
    return static_cast<float>(x.value);
}
inline __half __float2half(float x) {
    return {static_cast<_Float16>(x)};
}

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
    uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline __nv_bfloat16 __float2bfloat16(float x) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

#endif
