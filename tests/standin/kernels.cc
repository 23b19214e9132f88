/* kernels.cc: the launchers of trainer/kernels.h as a test's linker wraps them (--wrap, the names
 * in wrap.txt): each says which bytes it uses and puts the real one, compiled for the CPU, on the
 * stream. */
#include "trainer/kernels.h"
#include "tests/standin/standin.h"
#include <algorithm>
#include <stdio.h>
#include <type_traits>
#include <unistd.h>
extern "C" {
#include "lib/log.h"
}

namespace {

typedef std::vector<standin_access> accesses;

size_t size_of(enum kernels_type type) {
    return type == KERNELS_FP32 ? 4 : 2;
}

template <typename T> standin_access in(const T *p, size_t count = 1) {
    return {p, p ? count * sizeof *p : 0, false};
}
standin_access in(const void *p, enum kernels_type type, size_t count) {
    return {p, p ? count * size_of(type) : 0, false};
}
template <typename T> standin_access out(T *p, size_t count = 1) {
    return {p, p ? count * sizeof *p : 0, true};
}
standin_access out(void *p, enum kernels_type type, size_t count) {
    return {p, p ? count * size_of(type) : 0, true};
}
/* What out is read for: to accumulate. */
standin_access sum(bool accumulate, void *p, enum kernels_type type, size_t count) {
    return in(p, type, accumulate ? count : 0);
}

int launch(const char *name, accesses used, struct CUstream_st *stream, std::function<int()> real) {
    cudaError_t e = cudaGetLastError(); /* as a launch's own check finds it */
    if (standin_fails("launch"))
        e = cudaErrorLaunchFailure;
    if (!e)
        e = standin_enqueue(stream, name, std::move(used), [=] {
            if (real()) {
                fprintf(stderr, "stand-in: the kernel %s failed\n", name);
                _exit(99);
            }
        });
    if (e)
        return fail(SYSTEM_FAILED, "cannot start the kernel %s: %s", name, cudaGetErrorString(e));
    return 0;
}

size_t values(struct shape s) {
    return static_cast<size_t>(s.n) * static_cast<size_t>(s.h) * static_cast<size_t>(s.w) *
           static_cast<size_t>(s.c);
}

size_t pooled(struct shape s, int kernel) {
    return values({s.n, s.c, kernel ? s.h / kernel : 1, kernel ? s.w / kernel : 1});
}

accesses of_arena(const struct kernels_arena &a) {
    return {in(a.w, a.count),
            in(a.grad, a.count),
            in(a.groups, static_cast<size_t>(a.group_count)),
            in(a.step),
            in(a.skip),
            out(a.w, a.count),
            out(a.copy, a.copy_type, a.count)};
}

} // namespace

extern "C" {

/* The wrapper of kernels_NAME, of the parameters in parentheses and their names, and what it
 * uses. */
#define WRAP(name, parameters, arguments, ...)                                                     \
    int __real_kernels_##name parameters;                                                          \
    int __wrap_kernels_##name parameters;                                                          \
    int __wrap_kernels_##name parameters {                                                         \
        return launch(#name, __VA_ARGS__, stream,                                                  \
                      [=] { return __real_kernels_##name arguments; });                            \
    }

WRAP(input,
     (void *to, enum kernels_type type, const uint8_t *from, const float *scale, const float *shift,
      size_t pixels, int channels, struct CUstream_st *stream),
     (to, type, from, scale, shift, pixels, channels, stream),
     {in(from, pixels *static_cast<size_t>(channels)), in(scale, static_cast<size_t>(channels)),
      in(shift, static_cast<size_t>(channels)),
      out(to, type, pixels *(static_cast<size_t>(channels + 7) / 8 * 8))})

WRAP(add,
     (void *to, const void *a, const void *b, enum kernels_type type, size_t count,
      struct CUstream_st *stream),
     (to, a, b, type, count, stream),
     {in(a, type, count), in(b, type, count), out(to, type, count)})

WRAP(scale,
     (void *to, const void *from, enum kernels_type type, size_t count, float factor,
      bool accumulate, struct CUstream_st *stream),
     (to, from, type, count, factor, accumulate, stream),
     {in(from, type, count), sum(accumulate, to, type, count), out(to, type, count)})

WRAP(dropout,
     (void *to, const void *from, enum kernels_type type, size_t count, float p,
      const uint64_t *seed, bool accumulate, struct CUstream_st *stream),
     (to, from, type, count, p, seed, accumulate, stream),
     {in(from, type, count), in(seed), sum(accumulate, to, type, count), out(to, type, count)})

WRAP(relu_mask,
     (void *dy, const void *y, enum kernels_type type, size_t count, struct CUstream_st *stream),
     (dy, y, type, count, stream), {in(dy, type, count), in(y, type, count), out(dy, type, count)})

WRAP(gelu,
     (void *y, const void *x, enum kernels_type type, size_t count, struct CUstream_st *stream),
     (y, x, type, count, stream), {in(x, type, count), out(y, type, count)})

WRAP(gelu_backward,
     (void *dx, const void *x, const void *dy, enum kernels_type type, size_t count,
      bool accumulate, struct CUstream_st *stream),
     (dx, x, dy, type, count, accumulate, stream),
     {in(x, type, count), in(dy, type, count), sum(accumulate, dx, type, count),
      out(dx, type, count)})

WRAP(lerp, (float *a, const float *to, size_t count, float fraction, struct CUstream_st *stream),
     (a, to, count, fraction, stream), {in(a, count), in(to, count), out(a, count)})

WRAP(from_float,
     (void *to, enum kernels_type type, const float *from, size_t count,
      struct CUstream_st *stream),
     (to, type, from, count, stream), {in(from, count), out(to, type, count)})

WRAP(to_float,
     (float *to, const void *from, enum kernels_type type, size_t count,
      struct CUstream_st *stream),
     (to, from, type, count, stream), {in(from, type, count), out(to, count)})

WRAP(swap, (float *a, float *b, size_t count, struct CUstream_st *stream), (a, b, count, stream),
     {in(a, count), in(b, count), out(a, count), out(b, count)})

WRAP(maxpool,
     (void *to, uint16_t *index, const void *from, enum kernels_type type, struct shape shape,
      int kernel, struct CUstream_st *stream),
     (to, index, from, type, shape, kernel, stream),
     {in(from, type, values(shape)), out(index, pooled(shape, kernel)),
      out(to, type, pooled(shape, kernel))})

WRAP(maxpool_backward,
     (void *dx, const void *dy, const uint16_t *index, enum kernels_type type, struct shape shape,
      int kernel, bool accumulate, struct CUstream_st *stream),
     (dx, dy, index, type, shape, kernel, accumulate, stream),
     {in(dy, type, pooled(shape, kernel)), in(index, pooled(shape, kernel)),
      sum(accumulate, dx, type, values(shape)), out(dx, type, values(shape))})

WRAP(avgpool,
     (void *to, const void *from, enum kernels_type type, struct shape shape, int kernel,
      struct CUstream_st *stream),
     (to, from, type, shape, kernel, stream),
     {in(from, type, values(shape)), out(to, type, pooled(shape, kernel))})

WRAP(avgpool_backward,
     (void *dx, const void *dy, enum kernels_type type, struct shape shape, int kernel,
      bool accumulate, struct CUstream_st *stream),
     (dx, dy, type, shape, kernel, accumulate, stream),
     {in(dy, type, pooled(shape, kernel)), sum(accumulate, dx, type, values(shape)),
      out(dx, type, values(shape))})

WRAP(bias_grad,
     (float *bias_grad, const void *dy, enum kernels_type type, size_t rows, int channels,
      float *workspace, struct CUstream_st *stream),
     (bias_grad, dy, type, rows, channels, workspace, stream),
     {in(dy, type, rows *static_cast<size_t>(channels)),
      out(workspace, kernels_bias_grad_floats(rows, channels)),
      out(bias_grad, static_cast<size_t>(channels))})

WRAP(running,
     (float *running_mean, float *running_variance, const float *mean, const float *rstd,
      int channels, size_t count, float eps, float momentum, struct CUstream_st *stream),
     (running_mean, running_variance, mean, rstd, channels, count, eps, momentum, stream),
     {in(running_mean, static_cast<size_t>(channels)),
      in(running_variance, static_cast<size_t>(channels)), in(mean, static_cast<size_t>(channels)),
      in(rstd, static_cast<size_t>(channels)), out(running_mean, static_cast<size_t>(channels)),
      out(running_variance, static_cast<size_t>(channels))})

WRAP(fold,
     (float *out_scale, float *out_shift, const float *scale, const float *shift, const float *mean,
      const float *variance, int channels, float eps, struct CUstream_st *stream),
     (out_scale, out_shift, scale, shift, mean, variance, channels, eps, stream),
     {in(scale, static_cast<size_t>(channels)), in(shift, static_cast<size_t>(channels)),
      in(mean, static_cast<size_t>(channels)), in(variance, static_cast<size_t>(channels)),
      out(out_scale, static_cast<size_t>(channels)), out(out_shift, static_cast<size_t>(channels))})

WRAP(not_finite, (int32_t * flag, const float *grad, size_t count, struct CUstream_st *stream),
     (flag, grad, count, stream), {in(grad, count), in(flag), out(flag)})

WRAP(scaler_update,
     (struct kernels_scaler * s, struct kernels_step *step, struct CUstream_st *stream),
     (s, step, stream),
     {in(&s->scale), in(&s->good), in(&s->found), in(&step->scale), out(s), out(&step->scale)})

/* The rest uses more than can be said in a line. */

/* Of a row of logits, only the classes are read. */
int __real_kernels_loss(struct kernels_totals *totals, void *grad, const void *logits,
                        enum kernels_type type, const int32_t *labels, int n, int classes,
                        int stride, float smoothing, const float *loss_scale,
                        struct CUstream_st *stream);
int __wrap_kernels_loss(struct kernels_totals *totals, void *grad, const void *logits,
                        enum kernels_type type, const int32_t *labels, int n, int classes,
                        int stride, float smoothing, const float *loss_scale,
                        struct CUstream_st *stream);
int __wrap_kernels_loss(struct kernels_totals *totals, void *grad, const void *logits,
                        enum kernels_type type, const int32_t *labels, int n, int classes,
                        int stride, float smoothing, const float *loss_scale,
                        struct CUstream_st *stream) {
    const size_t rows = static_cast<size_t>(n), step = static_cast<size_t>(stride);
    accesses used = {in(totals), in(labels, rows), in(loss_scale), out(totals),
                     out(grad, type, rows * step)};
    for (size_t i = 0; i < rows; i++)
        used.push_back(in(static_cast<const char *>(logits) + i * step * size_of(type), type,
                          static_cast<size_t>(classes)));
    return launch("loss", std::move(used), stream, [=] {
        return __real_kernels_loss(totals, grad, logits, type, labels, n, classes, stride,
                                   smoothing, loss_scale, stream);
    });
}

/* The arena's struct is the caller's: it is gone when the kernel runs. */
int __real_kernels_sgd(const struct kernels_arena *arena, float *v, float momentum, bool nesterov,
                       struct CUstream_st *stream);
int __wrap_kernels_sgd(const struct kernels_arena *arena, float *v, float momentum, bool nesterov,
                       struct CUstream_st *stream);
int __wrap_kernels_sgd(const struct kernels_arena *arena, float *v, float momentum, bool nesterov,
                       struct CUstream_st *stream) {
    accesses used = of_arena(*arena);
    used.insert(used.end(), {in(v, arena->count), out(v, arena->count)});
    return launch("sgd", std::move(used), stream, [=, a = *arena] {
        return __real_kernels_sgd(&a, v, momentum, nesterov, stream);
    });
}

int __real_kernels_adam(const struct kernels_arena *arena, float *m, float *v, float beta1,
                        float beta2, float eps, struct CUstream_st *stream);
int __wrap_kernels_adam(const struct kernels_arena *arena, float *m, float *v, float beta1,
                        float beta2, float eps, struct CUstream_st *stream);
int __wrap_kernels_adam(const struct kernels_arena *arena, float *m, float *v, float beta1,
                        float beta2, float eps, struct CUstream_st *stream) {
    const size_t count = arena->count;
    accesses used = of_arena(*arena);
    used.insert(used.end(), {in(m, count), in(v, count), out(m, count), out(v, count)});
    return launch("adam", std::move(used), stream, [=, a = *arena] {
        return __real_kernels_adam(&a, m, v, beta1, beta2, eps, stream);
    });
}

} /* extern "C" */
