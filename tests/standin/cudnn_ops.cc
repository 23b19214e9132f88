/* cudnn_ops.cc: the arithmetic of the cuDNN stand-in. In: operations, and memory by the ids of
 * their tensors; out: the tensors that they write.
 *
 * Inside, every tensor is an array of float in the order N, H, W, C. Real tensors that are so lie
 * in their own memory; others are copies, converted by type and strides. What an operation writes
 * is rounded to its tensor's type, between operations too. Convolutions are oneDNN's, in float;
 * sums over a batch are in double. */
#include "tests/standin/cudnn_parts.h"
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>

using dnnl::memory;

/* To nearest, ties to even. */
struct bfloat16 {
    uint16_t bits;

    explicit bfloat16(float x) {
        uint32_t all;
        memcpy(&all, &x, sizeof all);
        bits =
            std::isnan(x) ? 0x7fff : static_cast<uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16);
    }
    explicit operator float() const {
        uint32_t all = static_cast<uint32_t>(bits) << 16;
        float x;
        memcpy(&x, &all, sizeof x);
        return x;
    }
};

static size_t count_of(const cudnn_tensor &t) {
    return static_cast<size_t>(t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3]);
}

/* Calls visit(where it lies in memory, where it lies in N, H, W, C) for each element. */
template <class F> static void each_element(const cudnn_tensor &t, F visit) {
    size_t at = 0;
    for (int64_t n = 0; n < t.dims[0]; n++)
        for (int64_t h = 0; h < t.dims[2]; h++)
            for (int64_t w = 0; w < t.dims[3]; w++)
                for (int64_t c = 0; c < t.dims[1]; c++)
                    visit(n * t.strides[0] + c * t.strides[1] + h * t.strides[2] + w * t.strides[3],
                          at++);
}

template <class T> static void load(const cudnn_tensor &t, const void *memory, float *values) {
    auto *from = static_cast<const T *>(memory);
    each_element(t, [=](int64_t far, size_t at) { values[at] = static_cast<float>(from[far]); });
}

template <class T> static void store(const cudnn_tensor &t, void *memory, const float *values) {
    auto *to = static_cast<T *>(memory);
    each_element(t, [=](int64_t far, size_t at) { to[far] = static_cast<T>(values[at]); });
}

template <class T> static void round_to(float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = static_cast<float>(static_cast<T>(values[i]));
}

/* All tensors of a run. */
class tensors {
    const std::map<int64_t, void *> &memory;
    std::map<int64_t, std::vector<float>> copies;

    /* A float tensor that lies as N, H, W, C; a dimension of 1 may have any stride. */
    static bool plain(const cudnn_tensor &t) {
        int64_t packed[4] = {t.dims[1] * t.dims[3] * t.dims[2], 1, t.dims[1] * t.dims[3],
                             t.dims[1]};
        bool ok = t.type == CUDNN_DATA_FLOAT && !t.is_virtual;
        for (size_t i = 0; i < 4; i++)
            ok = ok && (t.dims[i] == 1 || t.strides[i] == packed[i]);
        return ok;
    }
    float *values(const cudnn_tensor &t, bool read) {
        if (plain(t))
            return static_cast<float *>(memory.at(t.id));
        bool fresh = copies.count(t.id) == 0;
        std::vector<float> &copy = copies[t.id];
        copy.resize(count_of(t));
        if (!fresh || !read || t.is_virtual)
            return copy.data();
        auto *convert = t.type == CUDNN_DATA_FLOAT  ? load<float>
                        : t.type == CUDNN_DATA_HALF ? load<_Float16>
                                                    : load<bfloat16>;
        convert(t, memory.at(t.id), copy.data());
        return copy.data();
    }

  public:
    explicit tensors(const std::map<int64_t, void *> &m) : memory(m) {}
    const float *read(const cudnn_tensor &t) { return values(t, true); }
    float *write(const cudnn_tensor &t) { return values(t, false); }
    float *add_to(const cudnn_tensor &t) { return values(t, true); }
    /* To be called when an operation has written all of it. */
    void written(const cudnn_tensor &t) {
        float *from = values(t, false);
        if (plain(t))
            return;
        if (t.type == CUDNN_DATA_HALF)
            round_to<_Float16>(from, count_of(t));
        else if (t.type == CUDNN_DATA_BFLOAT16)
            round_to<bfloat16>(from, count_of(t));
        auto *convert = t.type == CUDNN_DATA_FLOAT  ? store<float>
                        : t.type == CUDNN_DATA_HALF ? store<_Float16>
                                                    : store<bfloat16>;
        if (!t.is_virtual)
            convert(t, memory.at(t.id), from);
    }
};

static dnnl::engine &processor() {
    static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
}

/* One convolution. x, w and y lie in the order N, H, W, C; oneDNN chooses the weights' order, and
 * that of the others too where it has nothing fast for N, H, W, C. */
struct convolution {
    dnnl::stream stream{processor()};
    memory::dims x, w, y, ones{1, 1}, pad;

    explicit convolution(const cudnn_operation &op)
        : x(dims(op[ROLE_X])), w(dims(op[ROLE_W])), y(dims(op[ROLE_Y])), pad{op.pad, op.pad} {}

    static memory::dims dims(const cudnn_tensor &t) { return {t.dims.begin(), t.dims.end()}; }
    static memory::desc ordered(const memory::dims &d, memory::format_tag order) {
        return {d, memory::data_type::f32, order};
    }
    static memory::desc any(const memory::dims &d) { return ordered(d, memory::format_tag::any); }
    static memory plain(const memory::dims &d, const float *values) {
        return {ordered(d, memory::format_tag::nhwc), processor(), const_cast<float *>(values)};
    }
    /* describe: from the order of x and y to oneDNN's description of the work. */
    template <class F> static auto fast(F describe) {
        auto pd = describe(memory::format_tag::nhwc);
        return strstr(pd.impl_info_str(), "ref") ? describe(memory::format_tag::any) : pd;
    }
    memory reordered(const memory &from, const memory::desc &wanted) {
        if (from.get_desc() == wanted)
            return from;
        memory to(wanted, processor());
        dnnl::reorder(from, to).execute(stream, const_cast<memory &>(from), to);
        return to;
    }
    dnnl::convolution_forward::primitive_desc forward_as(memory::format_tag order) const {
        dnnl::convolution_forward::desc d(dnnl::prop_kind::forward_training,
                                          dnnl::algorithm::convolution_direct, ordered(x, order),
                                          any(w), ordered(y, order), ones, pad, pad);
        return {d, processor()};
    }
    /* in: two argument numbers with their values, and the orders wanted; out: the result's. */
    struct argument {
        int number;
        memory plain;
        memory::desc wanted;
    };
    void run(const dnnl::primitive &p, const argument &a, const argument &b, const argument &out) {
        memory to =
            out.plain.get_desc() == out.wanted ? out.plain : memory(out.wanted, processor());
        p.execute(stream, {{a.number, reordered(a.plain, a.wanted)},
                           {b.number, reordered(b.plain, b.wanted)},
                           {out.number, to}});
        if (out.plain.get_desc() != out.wanted) {
            memory plain = out.plain;
            dnnl::reorder(to, plain).execute(stream, to, plain);
        }
        stream.wait();
    }
    void forward(const float *xs, const float *ws, float *ys) {
        auto pd = fast([&](memory::format_tag order) { return forward_as(order); });
        run(dnnl::convolution_forward(pd), {DNNL_ARG_SRC, plain(x, xs), pd.src_desc()},
            {DNNL_ARG_WEIGHTS, plain(w, ws), pd.weights_desc()},
            {DNNL_ARG_DST, plain(y, ys), pd.dst_desc()});
    }
    void data(float *dx, const float *ws, const float *dy) {
        auto pd = fast([&](memory::format_tag order) {
            dnnl::convolution_backward_data::desc d(dnnl::algorithm::convolution_direct,
                                                    ordered(x, order), any(w), ordered(y, order),
                                                    ones, pad, pad);
            return dnnl::convolution_backward_data::primitive_desc(d, processor(),
                                                                   forward_as(order));
        });
        run(dnnl::convolution_backward_data(pd),
            {DNNL_ARG_DIFF_DST, plain(y, dy), pd.diff_dst_desc()},
            {DNNL_ARG_WEIGHTS, plain(w, ws), pd.weights_desc()},
            {DNNL_ARG_DIFF_SRC, plain(x, dx), pd.diff_src_desc()});
    }
    void filter(const float *xs, float *dw, const float *dy) {
        auto pd = fast([&](memory::format_tag order) {
            dnnl::convolution_backward_weights::desc d(dnnl::algorithm::convolution_direct,
                                                       ordered(x, order), any(w), ordered(y, order),
                                                       ones, pad, pad);
            return dnnl::convolution_backward_weights::primitive_desc(d, processor(),
                                                                      forward_as(order));
        });
        run(dnnl::convolution_backward_weights(pd),
            {DNNL_ARG_DIFF_DST, plain(y, dy), pd.diff_dst_desc()},
            {DNNL_ARG_SRC, plain(x, xs), pd.src_desc()},
            {DNNL_ARG_DIFF_WEIGHTS, plain(w, dw), pd.diff_weights_desc()});
    }
};

/* The result, plus beta times what was there. */
static void convolve(const cudnn_operation &op, tensors *t) {
    convolution c(op);
    cudnn_role result = op.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ? ROLE_Y
                        : op.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                            ? ROLE_X
                            : ROLE_W;
    size_t count = count_of(op[result]);
    float *out = op.beta != 0 ? t->add_to(op[result]) : t->write(op[result]);
    std::vector<float> before(out, out + (op.beta != 0 ? count : 0));
    if (result == ROLE_Y)
        c.forward(t->read(op[ROLE_X]), t->read(op[ROLE_W]), out);
    else if (result == ROLE_X)
        c.data(out, t->read(op[ROLE_W]), t->read(op[ROLE_Y]));
    else
        c.filter(t->read(op[ROLE_X]), out, t->read(op[ROLE_Y]));
    for (size_t i = 0; i < before.size(); i++)
        out[i] += op.beta * before[i];
    t->written(op[result]);
}

/* y = x + b or x · b; what is 1 long in b is repeated. */
static void add_or_multiply(const cudnn_operation &op, tensors *t) {
    const cudnn_tensor &b = op[ROLE_B];
    cudnn_tensor x = op[ROLE_X];
    const float *xs = t->read(x), *bs = t->read(b);
    float *ys = t->write(op[ROLE_Y]);
    int64_t packed[4] = {b.dims[1] * b.dims[3] * b.dims[2], 1, b.dims[1] * b.dims[3], b.dims[1]};
    bool add = op.mode == CUDNN_POINTWISE_ADD;
    for (size_t i = 0; i < 4; i++)
        x.strides[i] = b.dims[i] == 1 ? 0 : packed[i];
    each_element(
        x, [=](int64_t in_b, size_t at) { ys[at] = add ? xs[at] + bs[in_b] : xs[at] * bs[in_b]; });
    t->written(op[ROLE_Y]);
}

/* NaN becomes 0, as cuDNN documents it where NaN propagation is not asked for. */
static void relu(const cudnn_operation &op, tensors *t) {
    bool backward = op.mode == CUDNN_POINTWISE_RELU_BWD;
    const cudnn_tensor &result = op[backward ? ROLE_DX : ROLE_Y];
    const float *x = t->read(op[ROLE_X]), *value = backward ? t->read(op[ROLE_DY]) : x;
    float *out = t->write(result);
    for (size_t i = 0; i < count_of(result); i++)
        out[i] = x[i] > 0 ? value[i] : 0;
    t->written(result);
}

/* Adds up term(element's place, channel) of each channel. */
template <class F> static std::vector<double> channel_sums(const cudnn_tensor &t, F term) {
    size_t channels = static_cast<size_t>(t.dims[1]);
    std::vector<double> sums(channels);
    for (size_t at = 0; at < count_of(t); at += channels)
        for (size_t c = 0; c < channels; c++)
            sums[c] += term(at + c, c);
    return sums;
}

static double pixels(const cudnn_tensor &t) {
    return static_cast<double>(t.dims[0] * t.dims[2] * t.dims[3]);
}

/* mean, and 1 / √(variance + eps) with the biased variance. */
static void batch_statistics(const cudnn_operation &op, float eps, tensors *t) {
    const cudnn_tensor &x = op[ROLE_X];
    const float *xs = t->read(x);
    float *mean = t->write(op[ROLE_MEAN]), *inv_std = t->write(op[ROLE_INV_STD]);
    std::vector<double> sums = channel_sums(x, [=](size_t at, size_t) { return double(xs[at]); });
    for (double &s : sums)
        s /= pixels(x);
    std::vector<double> squares = channel_sums(x, [&](size_t at, size_t c) {
        double d = static_cast<double>(xs[at]) - sums[c];
        return d * d;
    });
    for (size_t c = 0; c < sums.size(); c++) {
        mean[c] = static_cast<float>(sums[c]);
        inv_std[c] = static_cast<float>(1 / std::sqrt(squares[c] / pixels(x) + double(eps)));
    }
    t->written(op[ROLE_MEAN]);
    t->written(op[ROLE_INV_STD]);
}

static void norm_forward(const cudnn_operation &op, const std::map<int64_t, float> &scalars,
                         tensors *t) {
    if (op.training)
        batch_statistics(op, scalars.at(op[ROLE_EPS].id), t);
    const cudnn_tensor &y = op[ROLE_Y];
    const float *x = t->read(op[ROLE_X]), *mean = t->read(op[ROLE_MEAN]),
                *inv_std = t->read(op[ROLE_INV_STD]), *scale = t->read(op[ROLE_SCALE]),
                *shift = t->read(op[ROLE_SHIFT]);
    float *ys = t->write(y);
    size_t channels = static_cast<size_t>(y.dims[1]);
    for (size_t at = 0; at < count_of(y); at += channels)
        for (size_t c = 0; c < channels; c++)
            ys[at + c] = (x[at + c] - mean[c]) * inv_std[c] * scale[c] + shift[c];
    t->written(y);
}

/* dscale = Σ dy·x̂, dshift = Σ dy, dx = scale·inv_std·(dy - mean(dy) - x̂·mean(dy·x̂)), where
 * x̂ = (x - mean)·inv_std (Ioffe, Szegedy, arXiv 1502.03167, section 3). */
static void norm_backward(const cudnn_operation &op, tensors *t) {
    const cudnn_tensor &x = op[ROLE_X];
    const float *xs = t->read(x), *dy = t->read(op[ROLE_DY]), *mean = t->read(op[ROLE_MEAN]),
                *inv_std = t->read(op[ROLE_INV_STD]), *scale = t->read(op[ROLE_SCALE]);
    float *dx = t->write(op[ROLE_DX]), *dscale = t->write(op[ROLE_DSCALE]),
          *dshift = t->write(op[ROLE_DSHIFT]);
    auto hat = [=](size_t at, size_t c) {
        return (static_cast<double>(xs[at]) - double(mean[c])) * double(inv_std[c]);
    };
    std::vector<double> sums = channel_sums(x, [=](size_t at, size_t) { return double(dy[at]); });
    std::vector<double> products =
        channel_sums(x, [=](size_t at, size_t c) { return double(dy[at]) * hat(at, c); });
    size_t channels = sums.size();
    double m = pixels(x);
    for (size_t at = 0; at < count_of(x); at += channels)
        for (size_t c = 0; c < channels; c++)
            dx[at + c] = static_cast<float>(
                double(scale[c]) * double(inv_std[c]) *
                (double(dy[at + c]) - sums[c] / m - hat(at + c, c) * products[c] / m));
    for (size_t c = 0; c < channels; c++) {
        dscale[c] = static_cast<float>(products[c]);
        dshift[c] = static_cast<float>(sums[c]);
    }
    for (cudnn_role role : {ROLE_DX, ROLE_DSCALE, ROLE_DSHIFT})
        t->written(op[role]);
}

void cudnn_compute(const std::vector<cudnn_operation> &operations,
                   const std::map<int64_t, void *> &memory,
                   const std::map<int64_t, float> &scalars) {
    tensors t(memory);
    for (const cudnn_operation &op : operations)
        switch (op.type) {
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            if (op.has(ROLE_B))
                add_or_multiply(op, &t);
            else
                relu(op, &t);
            break;
        case CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR: norm_forward(op, scalars, &t); break;
        case CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR: norm_backward(op, &t); break;
        default: convolve(op, &t);
        }
}
