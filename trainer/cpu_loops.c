/* cpu_loops.c: the operations of the CPU backend that are loops over memory, shared out to the
 * OpenMP threads. Each is bound by memory: floats read and written stand in its name's contract. */
#include "trainer/cpu.h"
#include <math.h>
#include <string.h>

void cpu_add_forward(struct op *op) {
    const float *a = op->in->data, *c = op->in2->data;
    float *y = op->out->data;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < op->out->count; i++)
        y[i] = a[i] + c[i];
}

void cpu_scale_forward(struct op *op) {
    for (size_t i = 0; i < op->out->count; i++)
        op->out->data[i] = op->in->data[i] * op->layer->p;
}

void cpu_scale_backward(struct op *op) {
    for (size_t i = 0; i < op->out->count; i++)
        op->in->grad[i] = op->out->grad[i] * op->layer->p + (op->accumulate ? op->in->grad[i] : 0);
}

/* Two rounds of multiply and shift: every input bit reaches every output bit (the constants are
 * those of the public "lowbias32" search). A Philox block would cost more than the dropout. */
static inline uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

void cpu_dropout_forward(struct op *op) {
    const float *x = op->in->data;
    float *y = op->out->data;
    if (!op->training) {
        memcpy(y, x, op->out->count * sizeof *y);
        return;
    }
    uint8_t *kept = ((struct cpu_op *)op->state)->kept;
    const uint32_t threshold = (uint32_t)((double)op->layer->p * 4294967296.0);
    const uint32_t low = mix((uint32_t)op->seed), high = mix((uint32_t)(op->seed >> 32) ^ ~low);
    const float scale = 1 / (1 - op->layer->p);
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < op->out->count; i++) {
        kept[i] = mix((uint32_t)i ^ low) + high >= threshold;
        y[i] = kept[i] ? x[i] * scale : 0;
    }
}

void cpu_dropout_backward(struct op *op) {
    const uint8_t *kept = ((struct cpu_op *)op->state)->kept;
    const float *dy = op->out->grad, scale = 1 / (1 - op->layer->p);
    float *dx = op->in->grad;
    const float add = op->accumulate ? 1.f : 0.f;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < op->out->count; i++)
        dx[i] = (kept[i] ? dy[i] * scale : 0) + (add != 0 ? dx[i] : 0);
}

void cpu_relu_mask(struct op *op) {
    const float *y = op->out->data;
    float *dy = op->out->grad;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < op->out->count; i++)
        dy[i] = y[i] > 0 ? dy[i] : 0;
}

void cpu_add_partial(struct op *op) {
    const float *partial = ((struct cpu_op *)op->state)->partial;
    float *dx = op->in->grad;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < op->in->count; i++)
        dx[i] += partial[i];
}

/* torch.nn.BatchNorm2d: the running variance is the unbiased one. */
void cpu_running_update(struct op *op) {
    const struct cpu_op *state = op->state;
    struct shape s = op->in->shape;
    double m = state->count;
    float f = op->layer->momentum, unbias = m > 1 ? (float)(m / (m - 1)) : 1;
    for (int c = 0; c < s.c; c++) {
        op->running_mean[c] += f * (state->mean[c] - op->running_mean[c]);
        op->running_variance[c] += f * (state->variance[c] * unbias - op->running_variance[c]);
    }
}

void cpu_input(struct backend *b, struct tensor *t, const uint8_t *pixels, const float *scale,
               const float *shift) {
    (void)b;
    const int channels = t->shape.c;
    const size_t map = (size_t)(t->shape.h * t->shape.w);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < t->shape.n; n++) {
        const uint8_t *image = pixels + (size_t)n * map * (size_t)channels;
        for (int c = 0; c < channels; c++) {
            float *plane = t->data + ((size_t)n * (size_t)channels + (size_t)c) * map;
            const float a = scale[c], d = shift[c];
            for (size_t p = 0; p < map; p++)
                plane[p] = (float)image[p * (size_t)channels + (size_t)c] * a + d;
        }
    }
}

void cpu_loss(struct backend *b, struct tensor *logits, const int32_t *labels, float smoothing) {
    struct backend_loss loss = {0};
    const int n = logits->shape.n, k = logits->shape.c;
    for (int i = 0; i < n; i++) {
        const float *z = logits->data + (size_t)i * (size_t)k;
        int best = 0;
        float sum = 0, mean = 0;
        for (int j = 0; j < k; j++) {
            best = z[j] > z[best] ? j : best;
            mean += z[j] / (float)k;
        }
        for (int j = 0; j < k; j++)
            sum += expf(z[j] - z[best]);
        float log_sum = z[best] + logf(sum);
        loss.loss_sum +=
            (double)((1 - smoothing) * (log_sum - z[labels[i]]) + smoothing * (log_sum - mean));
        loss.correct += best == labels[i];
        if (!logits->grad)
            continue;
        for (int j = 0; j < k; j++) {
            float target = smoothing / (float)k + (j == labels[i] ? 1 - smoothing : 0);
            logits->grad[(size_t)i * (size_t)k + (size_t)j] =
                (expf(z[j] - log_sum) - target) / (float)n;
        }
    }
    b->totals.loss_sum += loss.loss_sum;
    b->totals.correct += loss.correct;
}

void cpu_sgd(struct backend *b, float *w, const float *grad, float *v,
             const struct backend_group *groups, int count, float scale, float momentum,
             bool nesterov) {
    (void)b;
#pragma omp parallel
    for (int k = 0; k < count; k++) {
        const float rate = groups[k].rate, decay = groups[k].decay;
        const float of_g = nesterov ? 1.f : 0.f, of_v = nesterov ? momentum : 1.f;
#pragma omp for simd schedule(static) nowait
        for (size_t i = groups[k].begin; i < groups[k].end; i++) {
            float g = scale * grad[i] + decay * w[i];
            v[i] = momentum * v[i] + g;
            w[i] -= rate * (of_g * g + of_v * v[i]);
        }
    }
}

void cpu_adam(struct backend *b, float *w, const float *grad, float *m, float *v,
              const struct backend_group *groups, int count, float scale, float beta1, float beta2,
              float eps, int64_t t) {
    (void)b;
    const float c1 = (float)(1 - pow((double)beta1, (double)t));
    const float root_c2 = (float)sqrt(1 - pow((double)beta2, (double)t));
#pragma omp parallel
    for (int k = 0; k < count; k++) {
        const float step = groups[k].rate / c1, decay = groups[k].decay;
#pragma omp for simd schedule(static) nowait
        for (size_t i = groups[k].begin; i < groups[k].end; i++) {
            float g = scale * grad[i] + decay * w[i];
            m[i] += (1 - beta1) * (g - m[i]);
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            w[i] -= step * m[i] / (sqrtf(v[i]) / root_c2 + eps);
        }
    }
}

void cpu_lerp(struct backend *b, float *a, const float *to, float fraction, size_t count) {
    (void)b;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++)
        a[i] += (to[i] - a[i]) * fraction;
}

void cpu_add(struct backend *b, float *a, const float *x, size_t count) {
    (void)b;
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        a[i] += x[i];
}

void cpu_swap(struct backend *b, float *a, float *c, size_t count) {
    (void)b;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) {
        float keep = a[i];
        a[i] = c[i];
        c[i] = keep;
    }
}
