/* kernels_device: what the kernels' own files share: the three types, loads and stores of several
 * values, and the start of a kernel. For kernels*.cu alone.
 *
 * g++ compiles the same files for the tests, with tests/cuda/cuda_cpu.h in place of CUDA's headers:
 * shared memory is declared by SHARED and a kernel is started by LAUNCH, which it defines, too. */
#ifndef DDPIPE_KERNELS_DEVICE_H
#define DDPIPE_KERNELS_DEVICE_H

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define SHARED(type, name, count) __shared__ type name[count]
#define LAUNCH(kernel, blocks, threads, stream, ...)                                               \
    (kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__), cudaGetLastError())
#endif

#include "trainer/kernels.h"
extern "C" {
#include "lib/log.h"
}
#include <assert.h>

namespace {

/* Values a thread loads at once: 128 bits of a 16-bit type, twice that of float. */
constexpr unsigned PACK = 8;
/* Of a block, where nothing asks for another number. */
constexpr unsigned THREADS = 256;
/* Several waves on any device; work beyond them goes round in a loop. */
constexpr size_t BLOCKS_MAX = 4096;

inline __device__ float to_float(float x) {
    return x;
}
inline __device__ float to_float(__half x) {
    return __half2float(x);
}
inline __device__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
inline __device__ void from_float(float *out, float x) {
    *out = x;
}
inline __device__ void from_float(__half *out, float x) {
    *out = __float2half(x);
}
inline __device__ void from_float(__nv_bfloat16 *out, float x) {
    *out = __float2bfloat16(x);
}

/* V neighbours in memory, aligned so that the compiler moves up to 128 bits at once. */
template <typename T, int V> struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) pack {
    T value[V];
};

template <int V, typename T> __device__ void load(float (&x)[V], const T *from) {
    const pack<T, V> p = *reinterpret_cast<const pack<T, V> *>(from);
    for (int i = 0; i < V; i++)
        x[i] = to_float(p.value[i]);
}

template <int V, typename T> __device__ void store(T *to, const float (&x)[V]) {
    pack<T, V> p;
    for (int i = 0; i < V; i++)
        from_float(&p.value[i], x[i]);
    *reinterpret_cast<pack<T, V> *>(to) = p;
}

inline bool aligned(const void *p) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

inline unsigned blocks_for(size_t threads, unsigned per_block) {
    size_t blocks = (threads + per_block - 1) / per_block;
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
}

template <typename... P, typename... A>
int start(const char *name, void (*kernel)(P...), unsigned blocks, unsigned threads,
          cudaStream_t stream, A... args) {
    cudaError_t error = LAUNCH(kernel, blocks, threads, stream, args...);
    if (error)
        return fail(SYSTEM_FAILED, "cannot start the kernel %s: %s", name,
                    cudaGetErrorString(error));
    return 0;
}

/* Calls f with a value of the type. */
template <typename F> int with_type(enum kernels_type type, F f) {
    switch (type) {
    case KERNELS_BF16: return f(__nv_bfloat16());
    case KERNELS_FP16: return f(__half());
    default: return f(float());
    }
}

} // namespace

#endif
