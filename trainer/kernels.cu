/* kernels.cu: operations that work value by value: one template goes through memory, a small
 * struct each says what becomes of a value. All are bound by memory; the floor of a kernel is the
 * bytes it must move over the bandwidth, s the size of its type. */
#include "trainer/kernels_device.h"

namespace {

/* Defaults of the structs below: one input, nothing to prepare. */
struct element {
    static constexpr bool binary = false;
    __device__ void begin() {}
};

/* count·s bytes read twice, written once; 1 FLOP a value. */
struct add : element {
    static constexpr bool binary = true;
    __device__ float operator()(float a, float b, size_t) const { return a + b; }
};

/* count·s bytes read and written; 1 FLOP a value. */
struct scale : element {
    float factor;
    __device__ float operator()(float x, size_t) const { return x * factor; }
};

/* count·s bytes read and written; 1 FLOP and 10 integer operations a value. The mask is computed
 * again rather than stored: that would be a byte written and a byte read a value. */
struct dropout : element {
    const uint64_t *seed;
    uint32_t threshold;
    float factor;
    uint32_t low, high;

    static __device__ uint32_t mix(uint32_t x) {
        x ^= x >> 16;
        x *= 0x7feb352dU;
        x ^= x >> 15;
        x *= 0x846ca68bU;
        return x ^ (x >> 16);
    }
    __device__ void begin() {
        low = mix(static_cast<uint32_t>(*seed));
        high = mix(static_cast<uint32_t>(*seed >> 32) ^ ~low);
    }
    __device__ float operator()(float x, size_t i) const {
        return mix(static_cast<uint32_t>(i) ^ low) + high >= threshold ? x * factor : 0;
    }
};

/* count·s bytes read twice, written once. */
struct relu_mask : element {
    static constexpr bool binary = true;
    __device__ float operator()(float dy, float y, size_t) const { return y > 0 ? dy : 0; }
};

constexpr float root_half = 0.70710678118654752f, root_half_pi = 0.39894228040143268f;

/* count·s bytes read and written; about 25 FLOP a value, most in erff. */
struct gelu : element {
    __device__ float operator()(float x, size_t) const {
        return 0.5f * x * (1 + erff(x * root_half));
    }
};

/* count·s bytes read twice, written once; about 40 FLOP a value. */
struct gelu_backward : element {
    static constexpr bool binary = true;
    __device__ float operator()(float x, float dy, size_t) const {
        return dy * (0.5f * (1 + erff(x * root_half)) + x * root_half_pi * expf(-0.5f * x * x));
    }
};

/* count·4 bytes read twice, written once; 3 FLOP a value. */
struct lerp : element {
    static constexpr bool binary = true;
    float fraction;
    __device__ float operator()(float a, float to, size_t) const { return a + (to - a) * fraction; }
};

/* count·(s + 4) bytes. */
struct same : element {
    __device__ float operator()(float x, size_t) const { return x; }
};

template <int V, typename Out, typename In, typename F>
__device__ void map_pack(Out *out, const In *a, const In *b, size_t i, bool accumulate, F f) {
    float x[V], y[V] = {0}, before[V] = {0};
    load(x, a + i);
    if constexpr (F::binary)
        load(y, b + i);
    if (accumulate)
        load(before, out + i);
    for (int k = 0; k < V; k++) {
        if constexpr (F::binary)
            x[k] = f(x[k], y[k], i + k);
        else
            x[k] = f(x[k], i + k);
        if (accumulate)
            x[k] += before[k];
    }
    store(out + i, x);
}

/* out = f(a) or f(a, b), floors as above; accumulate adds the reading of out. No __restrict__: out
 * may be an input. */
template <typename Out, typename In, typename F>
__global__ void __launch_bounds__(THREADS)
    map(Out *out, const In *a, const In *b, size_t count, bool accumulate, F f) {
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x * PACK;
    size_t i = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    f.begin();
    for (; i + PACK <= count; i += stride)
        map_pack<PACK>(out, a, b, i, accumulate, f);
    for (; i < count; i++)
        map_pack<1>(out, a, b, i, accumulate, f);
}

template <typename Out, typename In, typename F>
int start_map(const char *name, Out *out, const In *a, const In *b, size_t count, bool accumulate,
              F f, cudaStream_t stream) {
    assert(aligned(out) && aligned(a) && aligned(b));
    return start(name, map<Out, In, F>, blocks_for((count + PACK - 1) / PACK, THREADS), THREADS,
                 stream, out, a, b, count, accumulate, f);
}

template <typename F>
int map_of_type(const char *name, enum kernels_type type, void *out, const void *a, const void *b,
                size_t count, bool accumulate, F f, cudaStream_t stream) {
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return start_map(name, static_cast<T *>(out), static_cast<const T *>(a),
                         static_cast<const T *>(b), count, accumulate, f, stream);
    });
}

/* count·4 bytes read and written, of a and of b. */
__global__ void __launch_bounds__(THREADS) swap(float *a, float *b, size_t count) {
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x * 4;
    size_t i = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
    float x[4], y[4];
    for (; i + 4 <= count; i += stride) {
        load(x, a + i);
        load(y, b + i);
        store(a + i, y);
        store(b + i, x);
    }
    for (; i < count; i++) {
        const float keep = a[i];
        a[i] = b[i];
        b[i] = keep;
    }
}

/* pixels·C bytes read, pixels·P·s written; 2 FLOP a value. A thread makes 8 channels of a pixel. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    input(T *__restrict__ out, const uint8_t *__restrict__ in, const float *__restrict__ scale,
          const float *__restrict__ shift, size_t pixels, unsigned channels) {
    const unsigned packs = (channels + PACK - 1) / PACK;
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < pixels * packs; i += stride) {
        const size_t pixel = packs == 1 ? i : i / packs;
        const unsigned first = static_cast<unsigned>(i - pixel * packs) * PACK;
        float x[PACK] = {0};
        for (unsigned k = 0; k < PACK; k++)
            if (first + k < channels)
                x[k] = in[pixel * channels + first + k] * scale[first + k] + shift[first + k];
        store(out + i * PACK, x);
    }
}

} // namespace

int kernels_input(void *out, enum kernels_type type, const uint8_t *in, const float *scale,
                  const float *shift, size_t pixels, int channels, cudaStream_t stream) {
    assert(aligned(out) && channels > 0);
    const unsigned c = static_cast<unsigned>(channels);
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return start("input", input<T>, blocks_for(pixels * ((c + PACK - 1) / PACK), THREADS),
                     THREADS, stream, static_cast<T *>(out), in, scale, shift, pixels, c);
    });
}

int kernels_add(void *out, const void *a, const void *b, enum kernels_type type, size_t count,
                cudaStream_t stream) {
    return map_of_type("add", type, out, a, b, count, false, add{}, stream);
}

int kernels_scale(void *out, const void *in, enum kernels_type type, size_t count, float factor,
                  bool accumulate, cudaStream_t stream) {
    scale f;
    f.factor = factor;
    return map_of_type("scale", type, out, in, nullptr, count, accumulate, f, stream);
}

int kernels_dropout(void *out, const void *in, enum kernels_type type, size_t count, float p,
                    const uint64_t *seed, bool accumulate, cudaStream_t stream) {
    assert(p >= 0 && p < 1);
    dropout f = {};
    f.seed = seed;
    f.threshold = static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0);
    f.factor = 1 / (1 - p);
    return map_of_type("dropout", type, out, in, nullptr, count, accumulate, f, stream);
}

int kernels_relu_mask(void *dy, const void *y, enum kernels_type type, size_t count,
                      cudaStream_t stream) {
    return map_of_type("relu_mask", type, dy, dy, y, count, false, relu_mask{}, stream);
}

int kernels_gelu(void *y, const void *x, enum kernels_type type, size_t count,
                 cudaStream_t stream) {
    return map_of_type("gelu", type, y, x, nullptr, count, false, gelu{}, stream);
}

int kernels_gelu_backward(void *dx, const void *x, const void *dy, enum kernels_type type,
                          size_t count, bool accumulate, cudaStream_t stream) {
    return map_of_type("gelu_backward", type, dx, x, dy, count, accumulate, gelu_backward{},
                       stream);
}

int kernels_lerp(float *a, const float *to, size_t count, float fraction, cudaStream_t stream) {
    lerp f;
    f.fraction = fraction;
    return start_map("lerp", a, static_cast<const float *>(a), to, count, false, f, stream);
}

int kernels_from_float(void *out, enum kernels_type type, const float *in, size_t count,
                       cudaStream_t stream) {
    return with_type(type, [&](auto zero) {
        return start_map("from_float", static_cast<decltype(zero) *>(out), in,
                         static_cast<const float *>(nullptr), count, false, same{}, stream);
    });
}

int kernels_to_float(float *out, const void *in, enum kernels_type type, size_t count,
                     cudaStream_t stream) {
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return start_map("to_float", out, static_cast<const T *>(in),
                         static_cast<const T *>(nullptr), count, false, same{}, stream);
    });
}

int kernels_swap(float *a, float *b, size_t count, cudaStream_t stream) {
    assert(aligned(a) && aligned(b));
    return start("swap", swap, blocks_for((count + 3) / 4, THREADS), THREADS, stream, a, b, count);
}
