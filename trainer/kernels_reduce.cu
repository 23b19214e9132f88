/* kernels_reduce.cu: sums over a batch: the loss, gradients of biases, running statistics. Each sum
 * is taken in one fixed order, so that the same inputs give the same bits. */
#include "trainer/kernels_device.h"
#include <math.h>

namespace {

constexpr unsigned WARP = 32;
constexpr unsigned LOSS_THREADS = 512;

template <typename T> __device__ T warp_sum(T x) {
    for (unsigned half = WARP / 2; half; half /= 2)
        x += __shfl_down_sync(0xffffffffU, x, half);
    return x; /* of lane 0 */
}

struct row_loss {
    float loss;
    bool correct;
};

/* One image: its loss, and its gradient where that is wanted. */
template <typename T>
__device__ row_loss loss_of_row(T *grad, const T *z, int label, int classes, int stride,
                                float smoothing, float grad_scale) {
    int best = 0;
    float largest = to_float(z[0]), mean = 0, of_label = 0, sum = 0;
    for (int j = 0; j < classes; j++) {
        const float x = to_float(z[j]);
        if (x > largest) {
            largest = x;
            best = j;
        }
    }
    for (int j = 0; j < classes; j++) {
        const float x = to_float(z[j]) - largest;
        sum += expf(x);
        mean += x / static_cast<float>(classes);
        if (j == label)
            of_label = x;
    }
    const float log_sum = logf(sum);
    if (grad)
        for (int j = 0; j < stride; j++) {
            const float target =
                smoothing / static_cast<float>(classes) + (j == label ? 1 - smoothing : 0);
            const float p = j < classes ? expf(to_float(z[j]) - largest - log_sum) : target;
            from_float(grad + j, (p - target) * grad_scale);
        }
    return {(1 - smoothing) * (log_sum - of_label) + smoothing * (log_sum - mean), best == label};
}

/* N·stride·s bytes read and as many written; about 60 FLOP a logit, most in expf. That is less than
 * the time of a launch, so one block does it, a thread an image, and can sum without a second. */
template <typename T>
__global__ void __launch_bounds__(LOSS_THREADS)
    loss(struct kernels_totals *totals, T *grad, const T *logits, const int32_t *labels, int n,
         int classes, int stride, float smoothing, const float *loss_scale) {
    SHARED(double, losses, LOSS_THREADS / WARP);
    SHARED(int, corrects, LOSS_THREADS / WARP);
    const float grad_scale = (loss_scale ? *loss_scale : 1) / static_cast<float>(n);
    double sum = 0;
    int correct = 0;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += LOSS_THREADS) {
        const size_t at = static_cast<size_t>(i) * static_cast<size_t>(stride);
        const row_loss row = loss_of_row(grad ? grad + at : nullptr, logits + at, labels[i],
                                         classes, stride, smoothing, grad_scale);
        sum += static_cast<double>(row.loss);
        correct += row.correct;
    }
    sum = warp_sum(sum);
    correct = warp_sum(correct);
    if (threadIdx.x % WARP == 0) {
        losses[threadIdx.x / WARP] = sum;
        corrects[threadIdx.x / WARP] = correct;
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        const bool has = threadIdx.x < LOSS_THREADS / WARP;
        sum = warp_sum(has ? static_cast<double>(losses[threadIdx.x]) : 0);
        correct = warp_sum(has ? static_cast<int>(corrects[threadIdx.x]) : 0);
        if (threadIdx.x == 0) {
            totals->loss_sum += sum;
            totals->correct += correct;
            totals->count += n;
        }
    }
}

/* Of a block that sums columns: 8 threads side by side, 32 rows at a time. */
constexpr unsigned LANES = 8, SUM_ROWS = 32;

/* out[part][c] = Σ of in[row][c], rows part·SUM_ROWS + 0..31, then parts·SUM_ROWS further on, … .
 * rows·C·s bytes read; 1 FLOP a value. */
template <int V, typename T>
__global__ void __launch_bounds__(LANES *SUM_ROWS)
    column_sums(float *__restrict__ out, const T *__restrict__ in, size_t rows, unsigned channels,
                unsigned parts) {
    SHARED(float, sums, SUM_ROWS *LANES *V);
    const unsigned lane = threadIdx.x % LANES, y = threadIdx.x / LANES;
    const unsigned part = blockIdx.x % parts;
    const unsigned c = (blockIdx.x / parts * LANES + lane) * V;
    float sum[V] = {0};
    if (c < channels)
        for (size_t row = part * SUM_ROWS + y; row < rows; row += parts * SUM_ROWS) {
            float x[V];
            load(x, in + row * channels + c);
            for (int k = 0; k < V; k++)
                sum[k] += x[k];
        }
    for (unsigned k = 0; k < V; k++)
        sums[k * LANES * SUM_ROWS + threadIdx.x] = sum[k];
    for (unsigned half = SUM_ROWS / 2; half; half /= 2) {
        __syncthreads();
        if (y < half)
            for (unsigned k = 0; k < V; k++) {
                const unsigned at = k * LANES * SUM_ROWS + threadIdx.x;
                sums[at] = sums[at] + sums[at + half * LANES];
            }
    }
    if (y == 0 && c < channels)
        for (unsigned k = 0; k < V; k++)
            out[part * channels + c + k] = sums[k * LANES * SUM_ROWS + lane];
}

constexpr unsigned width(unsigned channels) {
    return channels % PACK ? 1 : PACK;
}

unsigned column_blocks(unsigned channels) {
    const unsigned per_block = LANES * width(channels);
    return (channels + per_block - 1) / per_block;
}

/* Enough blocks for any device, and at least 8 rows a thread. */
unsigned parts_for(size_t rows, unsigned channels) {
    size_t most = 512 / column_blocks(channels), useful = rows / (SUM_ROWS * 8);
    size_t parts = useful < most ? useful : most;
    return static_cast<unsigned>(parts < 1 ? 1 : parts);
}

template <typename T>
int start_sums(float *out, const T *in, size_t rows, unsigned channels, unsigned parts,
               cudaStream_t stream) {
    return start("column_sums", channels % PACK ? column_sums<1, T> : column_sums<PACK, T>,
                 column_blocks(channels) * parts, LANES * SUM_ROWS, stream, out, in, rows, channels,
                 parts);
}

/* 24 bytes a channel; 10 FLOP. */
__global__ void __launch_bounds__(THREADS)
    running(float *__restrict__ running_mean, float *__restrict__ running_variance,
            const float *__restrict__ mean, const float *__restrict__ rstd, unsigned channels,
            float unbias, float eps, float momentum) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned c = blockIdx.x * blockDim.x + threadIdx.x; c < channels; c += stride) {
        const float variance = fmaxf(1 / (rstd[c] * rstd[c]) - eps, 0) * unbias;
        running_mean[c] += (mean[c] - running_mean[c]) * momentum;
        running_variance[c] += (variance - running_variance[c]) * momentum;
    }
}

/* 24 bytes a channel; 5 FLOP, a root and a division. */
__global__ void __launch_bounds__(THREADS)
    fold(float *__restrict__ out_scale, float *__restrict__ out_shift,
         const float *__restrict__ scale, const float *__restrict__ shift,
         const float *__restrict__ mean, const float *__restrict__ variance, unsigned channels,
         float eps) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned c = blockIdx.x * blockDim.x + threadIdx.x; c < channels; c += stride) {
        const float by = scale[c] * (1 / sqrtf(variance[c] + eps));
        out_scale[c] = by;
        out_shift[c] = shift[c] - mean[c] * by;
    }
}

} // namespace

int kernels_loss(struct kernels_totals *totals, void *grad, const void *logits,
                 enum kernels_type type, const int32_t *labels, int n, int classes, int stride,
                 float smoothing, const float *loss_scale, cudaStream_t stream) {
    assert(classes > 0 && classes <= stride);
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return start("loss", loss<T>, 1, LOSS_THREADS, stream, totals, static_cast<T *>(grad),
                     static_cast<const T *>(logits), labels, n, classes, stride, smoothing,
                     loss_scale);
    });
}

size_t kernels_bias_grad_floats(size_t rows, int channels) {
    const unsigned c = static_cast<unsigned>(channels);
    return static_cast<size_t>(parts_for(rows, c)) * c;
}

int kernels_bias_grad(float *bias_grad, const void *dy, enum kernels_type type, size_t rows,
                      int channels, float *workspace, cudaStream_t stream) {
    assert(aligned(dy) && aligned(workspace) && channels > 0);
    const unsigned c = static_cast<unsigned>(channels), parts = parts_for(rows, c);
    int rc = with_type(type, [&](auto zero) {
        return start_sums(workspace, static_cast<const decltype(zero) *>(dy), rows, c, parts,
                          stream);
    });
    return rc ? rc : start_sums<float>(bias_grad, workspace, parts, c, 1, stream);
}

int kernels_running(float *running_mean, float *running_variance, const float *mean,
                    const float *rstd, int channels, size_t values, float eps, float momentum,
                    cudaStream_t stream) {
    const float m = static_cast<float>(values), unbias = values > 1 ? m / (m - 1) : 1;
    const unsigned c = static_cast<unsigned>(channels);
    return start("running", running, blocks_for(c, THREADS), THREADS, stream, running_mean,
                 running_variance, mean, rstd, c, unbias, eps, momentum);
}

int kernels_fold(float *out_scale, float *out_shift, const float *scale, const float *shift,
                 const float *mean, const float *variance, int channels, float eps,
                 cudaStream_t stream) {
    const unsigned c = static_cast<unsigned>(channels);
    return start("fold", fold, blocks_for(c, THREADS), THREADS, stream, out_scale, out_shift, scale,
                 shift, mean, variance, c, eps);
}
