/* kernels_optim.cu: the optimizers over the arena of parameters, and the search for values that are
 * not finite. One launch each: a thread finds the group of its values as it goes forward. */
#include "trainer/kernels_device.h"
#include <float.h>
#include <math.h>

namespace {

/* The group that an index lies in; indices only grow. */
struct cursor {
    const struct backend_group *groups;
    int count, next;
    struct backend_group group;

    __device__ cursor(const struct backend_group *g, int n) : groups(g), count(n), next(0) {
        step();
    }
    __device__ void step() {
        group = next < count ? groups[next++] : backend_group{SIZE_MAX, SIZE_MAX, 0, 0};
    }
    __device__ bool holds(size_t i) {
        while (i >= group.end)
            step();
        return i >= group.begin;
    }
};

struct sgd {
    float *v;
    float momentum;
    bool nesterov;

    template <int V> struct memory { float v[V]; };
    __device__ void begin(const struct kernels_step &) {}
    template <int V> __device__ void load_memory(memory<V> &m, size_t i) const { load(m.v, v + i); }
    template <int V> __device__ void store_memory(const memory<V> &m, size_t i) const {
        store(v + i, m.v);
    }
    template <int V>
    __device__ float update(memory<V> &m, int k, float w, float g,
                            const struct backend_group &group) const {
        m.v[k] = momentum * m.v[k] + g;
        return w - group.rate * (nesterov ? g + momentum * m.v[k] : m.v[k]);
    }
};

struct adam {
    float *m, *v;
    float beta1, beta2, eps;
    float correction1, root_correction2;

    template <int V> struct memory { float m[V], v[V]; };
    __device__ void begin(const struct kernels_step &step) {
        correction1 = step.correction1;
        root_correction2 = step.root_correction2;
    }
    template <int V> __device__ void load_memory(memory<V> &x, size_t i) const {
        load(x.m, m + i);
        load(x.v, v + i);
    }
    template <int V> __device__ void store_memory(const memory<V> &x, size_t i) const {
        store(m + i, x.m);
        store(v + i, x.v);
    }
    template <int V>
    __device__ float update(memory<V> &x, int k, float w, float g,
                            const struct backend_group &group) const {
        x.m[k] += (1 - beta1) * (g - x.m[k]);
        x.v[k] = beta2 * x.v[k] + (1 - beta2) * g * g;
        return w - group.rate / correction1 * x.m[k] / (sqrtf(x.v[k]) / root_correction2 + eps);
    }
};

template <int V, typename Copy, typename F>
__device__ void update_pack(const struct kernels_arena &a, size_t i, float scale, cursor &at,
                            const F &f) {
    float w[V], g[V];
    typename F::template memory<V> m;
    load(w, a.w + i);
    load(g, a.grad + i);
    f.load_memory(m, i);
    for (int k = 0; k < V; k++)
        if (at.holds(i + k))
            w[k] = f.update(m, k, w[k], scale * g[k] + at.group.decay * w[k], at.group);
    store(a.w + i, w);
    f.store_memory(m, i);
    if (a.copy)
        store(static_cast<Copy *>(a.copy) + i, w);
}

/* Bytes a float of the arena: sgd 20 (w, v read and written, grad read), adam 28; 2 more for the
 * copy. FLOP: sgd 6 to 8, adam about 15 with a division and a root. */
template <typename Copy, typename F>
__global__ void __launch_bounds__(THREADS) update(struct kernels_arena a, F f) {
    if (a.skip && *a.skip)
        return;
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x * PACK;
    size_t i = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    const float scale = a.step->scale;
    f.begin(*a.step);
    cursor at(a.groups, a.group_count);
    for (; i + PACK <= a.count; i += stride)
        update_pack<PACK, Copy>(a, i, scale, at, f);
    for (; i < a.count; i++)
        update_pack<1, Copy>(a, i, scale, at, f);
}

template <typename F>
int start_update(const char *name, const struct kernels_arena *a, F f, cudaStream_t stream) {
    assert(aligned(a->w) && aligned(a->grad) && aligned(a->copy));
    return start(name, a->copy_type == KERNELS_FP16 ? update<__half, F> : update<__nv_bfloat16, F>,
                 blocks_for((a->count + PACK - 1) / PACK, THREADS), THREADS, stream, *a, f);
}

/* count·4 bytes read. */
__global__ void __launch_bounds__(THREADS)
    not_finite(int32_t *flag, const float *grad, size_t count) {
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x * PACK;
    size_t i = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    bool found = false;
    for (; i + PACK <= count; i += stride) {
        float x[PACK];
        load(x, grad + i);
        for (unsigned k = 0; k < PACK; k++)
            found |= !isfinite(x[k]);
    }
    for (; i < count; i++)
        found |= !isfinite(grad[i]);
    if (found)
        atomicOr(flag, 1);
}

/* torch.amp.GradScaler's defaults, and as in its amp_update_scale no scale is infinite; that none
 * is 0 is ours: step->scale stays finite. */
constexpr int GROWTH_STEPS = 2000;
constexpr float GROWTH = 2, BACKOFF = 0.5f;

/* One thread; 40 bytes. */
__global__ void scaler_update(struct kernels_scaler *s, struct kernels_step *step) {
    const bool overflowed = s->found != 0;
    const float scale = s->scale;
    const bool grows = !overflowed && s->good + 1 >= GROWTH_STEPS;
    step->scale /= scale;
    s->skip = overflowed;
    s->found = 0;
    s->good = overflowed || grows ? 0 : s->good + 1;
    if (overflowed)
        s->scale = fmaxf(scale * BACKOFF, FLT_MIN);
    else if (grows && scale <= FLT_MAX / GROWTH)
        s->scale = scale * GROWTH;
}

} // namespace

int kernels_sgd(const struct kernels_arena *arena, float *v, float momentum, bool nesterov,
                cudaStream_t stream) {
    assert(aligned(v));
    return start_update("sgd", arena, sgd{v, momentum, nesterov}, stream);
}

int kernels_adam(const struct kernels_arena *arena, float *m, float *v, float beta1, float beta2,
                 float eps, cudaStream_t stream) {
    assert(aligned(m) && aligned(v));
    return start_update("adam", arena, adam{m, v, beta1, beta2, eps, 0, 0}, stream);
}

int kernels_not_finite(int32_t *flag, const float *grad, size_t count, cudaStream_t stream) {
    assert(aligned(grad));
    return start("not_finite", not_finite, blocks_for((count + PACK - 1) / PACK, THREADS), THREADS,
                 stream, flag, grad, count);
}

int kernels_scaler_update(struct kernels_scaler *s, struct kernels_step *step,
                          cudaStream_t stream) {
    return start("scaler_update", scaler_update, 1, 1, stream, s, step);
}
