/* kernels_pool.cu: max and average pooling of NHWC maps, stride = kernel.
 *
 * A block goes through rows of the map it writes, its threads along a row: 8 channels each where C
 * is a multiple of 8, one otherwise. Backward goes through the rows of dx, so that each value is
 * written once, by one thread, and nothing is added up in an order of chance. */
#include "trainer/kernels_device.h"

namespace {

constexpr unsigned ROW_THREADS = 128;

struct window {
    unsigned h, w, c;   /* in */
    unsigned oh, ow;    /* out */
    unsigned kh, kw;    /* of the window */
    unsigned rows_read; /* N·oh */
    unsigned rows_in;   /* N·h */
};

template <int V, typename T>
__device__ void reduce_max(float (&best)[V], uint16_t *index, const T *corner, const window &s) {
    pack<uint16_t, V> at = {};
    load(best, corner);
    for (unsigned ky = 0; ky < s.kh; ky++)
        for (unsigned kx = 0; kx < s.kw; kx++) {
            float x[V];
            load(x, corner + (ky * s.w + kx) * s.c);
            for (int k = 0; k < V; k++)
                if (x[k] > best[k]) {
                    best[k] = x[k];
                    at.value[k] = static_cast<uint16_t>(ky * s.kw + kx);
                }
        }
    *reinterpret_cast<pack<uint16_t, V> *>(index) = at;
}

template <int V, typename T>
__device__ void reduce_mean(float (&sum)[V], const T *corner, const window &s) {
    for (int k = 0; k < V; k++)
        sum[k] = 0;
    for (unsigned ky = 0; ky < s.kh; ky++)
        for (unsigned kx = 0; kx < s.kw; kx++) {
            float x[V];
            load(x, corner + (ky * s.w + kx) * s.c);
            for (int k = 0; k < V; k++)
                sum[k] += x[k];
        }
    for (int k = 0; k < V; k++)
        sum[k] /= static_cast<float>(s.kh * s.kw);
}

/* K = kh·kw: K·s bytes read, s written an output, and 2 of index where it is a maximum; K FLOP. */
template <int V, typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    pool(T *__restrict__ out, uint16_t *__restrict__ index, const T *__restrict__ in, window s) {
    const unsigned packs = s.c / V;
    for (unsigned row = blockIdx.x; row < s.rows_read; row += gridDim.x) {
        const unsigned n = row / s.oh, y = row % s.oh;
        const T *top = in + static_cast<size_t>(n * s.h + y * s.kh) * s.w * s.c;
        for (unsigned i = threadIdx.x; i < s.ow * packs; i += blockDim.x) {
            const size_t at = static_cast<size_t>(row) * s.ow * s.c + i * V;
            const unsigned x = i / packs, c = (i - x * packs) * V;
            float result[V];
            if (index)
                reduce_max(result, index + at, top + x * s.kw * s.c + c, s);
            else
                reduce_mean(result, top + x * s.kw * s.c + c, s);
            store(out + at, result);
        }
    }
}

/* s bytes written an input (read, too, to accumulate); s read an output, and 2 of index: the K
 * reads of each are neighbours' and come from the cache. 1 FLOP an input. */
template <int V, typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    pool_backward(T *__restrict__ dx, const T *__restrict__ dy, const uint16_t *__restrict__ index,
                  bool accumulate, window s) {
    const unsigned packs = s.c / V;
    const float share = index ? 1 : static_cast<float>(s.kh * s.kw);
    for (unsigned row = blockIdx.x; row < s.rows_in; row += gridDim.x) {
        const unsigned n = row / s.h, y = row % s.h, oy = y / s.kh;
        const size_t out_row = static_cast<size_t>(n * s.oh + oy) * s.ow;
        for (unsigned i = threadIdx.x; i < s.w * packs; i += blockDim.x) {
            const unsigned x = i / packs, c = (i - x * packs) * V, ox = x / s.kw;
            T *to = dx + static_cast<size_t>(row) * s.w * s.c + i * V;
            float result[V] = {0}, before[V] = {0};
            if (oy < s.oh && ox < s.ow) {
                const size_t from = (out_row + ox) * s.c + c;
                load(result, dy + from);
                pack<uint16_t, V> at = {};
                if (index)
                    at = *reinterpret_cast<const pack<uint16_t, V> *>(index + from);
                const unsigned place = (y - oy * s.kh) * s.kw + x - ox * s.kw;
                for (int k = 0; k < V; k++)
                    result[k] = index && at.value[k] != place ? 0 : result[k] / share;
            }
            if (accumulate)
                load(before, to);
            for (int k = 0; k < V; k++)
                result[k] += before[k];
            store(to, result);
        }
    }
}

window window_of(struct shape s, int kernel) {
    assert(kernel ? kernel <= s.h && kernel <= s.w : s.h * s.w <= 65536);
    const unsigned n = static_cast<unsigned>(s.n), h = static_cast<unsigned>(s.h),
                   w = static_cast<unsigned>(s.w), c = static_cast<unsigned>(s.c);
    const unsigned k = static_cast<unsigned>(kernel);
    const unsigned kh = k ? k : h, kw = k ? k : w;
    return {h, w, c, h / kh, w / kw, kh, kw, n * (h / kh), n * h};
}

int start_pool(const char *name, void *out, uint16_t *index, const void *in, enum kernels_type type,
               struct shape shape, int kernel, cudaStream_t stream) {
    assert(aligned(out) && aligned(index) && aligned(in));
    const window s = window_of(shape, kernel);
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return start(name, s.c % PACK ? pool<1, T> : pool<PACK, T>, blocks_for(s.rows_read, 1),
                     ROW_THREADS, stream, static_cast<T *>(out), index, static_cast<const T *>(in),
                     s);
    });
}

int start_backward(const char *name, void *dx, const void *dy, const uint16_t *index,
                   enum kernels_type type, struct shape shape, int kernel, bool accumulate,
                   cudaStream_t stream) {
    assert(aligned(dx) && aligned(dy) && aligned(index));
    const window s = window_of(shape, kernel);
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return start(name, s.c % PACK ? pool_backward<1, T> : pool_backward<PACK, T>,
                     blocks_for(s.rows_in, 1), ROW_THREADS, stream, static_cast<T *>(dx),
                     static_cast<const T *>(dy), index, accumulate, s);
    });
}

} // namespace

int kernels_maxpool(void *out, uint16_t *index, const void *in, enum kernels_type type,
                    struct shape in_shape, int kernel, cudaStream_t stream) {
    return start_pool("maxpool", out, index, in, type, in_shape, kernel, stream);
}

int kernels_maxpool_backward(void *dx, const void *dy, const uint16_t *index,
                             enum kernels_type type, struct shape in_shape, int kernel,
                             bool accumulate, cudaStream_t stream) {
    return start_backward("maxpool_backward", dx, dy, index, type, in_shape, kernel, accumulate,
                          stream);
}

int kernels_avgpool(void *out, const void *in, enum kernels_type type, struct shape in_shape,
                    int kernel, cudaStream_t stream) {
    return start_pool("avgpool", out, nullptr, in, type, in_shape, kernel, stream);
}

int kernels_avgpool_backward(void *dx, const void *dy, enum kernels_type type,
                             struct shape in_shape, int kernel, bool accumulate,
                             cudaStream_t stream) {
    return start_backward("avgpool_backward", dx, dy, nullptr, type, in_shape, kernel, accumulate,
                          stream);
}
