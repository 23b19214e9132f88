/* cudnn_checks.cc: see cudnn_parts.h. In: the attributes that were set; out: tensors and
 * operations, or a refusal. What the real cuDNN takes for 0 when it was not set is refused here,
 * since the trainer promises to set everything (cudnn_desc.h); so are statistics of a wrong length.
 * Which graphs have engines is what planning with cuDNN 9.19 found. */
#include "tests/standin/cudnn_parts.h"

static const cudnnBackendDescriptorType_t
    TENSOR = CUDNN_BACKEND_TENSOR_DESCRIPTOR,
    CONV = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, POINTWISE = CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
    FORWARD = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
    DATA = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
    FILTER = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    ELEMENTS = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
    NORM_FWD = CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR,
    NORM_BWD = CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR,
    GRAPH = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, PROP = CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
    HEUR = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, ENGINE = CUDNN_BACKEND_ENGINE_DESCRIPTOR,
    CONFIG = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, PLAN = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
    PACK = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
static const cudnnBackendAttributeType_t DESC = CUDNN_TYPE_BACKEND_DESCRIPTOR;

/* Attributes that are no operand of an operation. */
#define PLAIN(name, owner, type, count, need)                                                      \
    { CUDNN_ATTR_##name, owner, CUDNN_TYPE_##type, count, need, ROLE_NONE, false, false }
#define READ(name, owner, need, role)                                                              \
    { CUDNN_ATTR_OPERATION_##name, owner, DESC, 1, need, ROLE_##role, true, false }
#define WRITTEN(name, owner, need, role)                                                           \
    { CUDNN_ATTR_OPERATION_##name, owner, DESC, 1, need, ROLE_##role, false, true }

static const cudnn_field fields[] = {
    PLAIN(TENSOR_DATA_TYPE, TENSOR, DATA_TYPE, 1, NEED_SET),
    PLAIN(TENSOR_DIMENSIONS, TENSOR, INT64, 4, NEED_SET),
    PLAIN(TENSOR_STRIDES, TENSOR, INT64, 4, NEED_SET),
    PLAIN(TENSOR_UNIQUE_ID, TENSOR, INT64, 1, NEED_SET),
    PLAIN(TENSOR_BYTE_ALIGNMENT, TENSOR, INT64, 1, NEED_SET),
    PLAIN(TENSOR_VECTOR_COUNT, TENSOR, INT64, 1, NEED_NONE),
    PLAIN(TENSOR_IS_VIRTUAL, TENSOR, BOOLEAN, 1, NEED_SET),
    PLAIN(TENSOR_IS_BY_VALUE, TENSOR, BOOLEAN, 1, NEED_SET),
    PLAIN(TENSOR_REORDERING_MODE, TENSOR, TENSOR_REORDERING_MODE, 1, NEED_NONE),
    PLAIN(CONVOLUTION_COMP_TYPE, CONV, DATA_TYPE, 1, NEED_SET),
    PLAIN(CONVOLUTION_CONV_MODE, CONV, CONVOLUTION_MODE, 1, NEED_SET),
    PLAIN(CONVOLUTION_SPATIAL_DIMS, CONV, INT64, 1, NEED_SET),
    PLAIN(CONVOLUTION_PRE_PADDINGS, CONV, INT64, 2, NEED_SET),
    PLAIN(CONVOLUTION_POST_PADDINGS, CONV, INT64, 2, NEED_SET),
    PLAIN(CONVOLUTION_DILATIONS, CONV, INT64, 2, NEED_SET),
    PLAIN(CONVOLUTION_FILTER_STRIDES, CONV, INT64, 2, NEED_SET),
    PLAIN(POINTWISE_MODE, POINTWISE, POINTWISE_MODE, 1, NEED_SET),
    PLAIN(POINTWISE_MATH_PREC, POINTWISE, DATA_TYPE, 1, NEED_SET),
    PLAIN(POINTWISE_RELU_LOWER_CLIP, POINTWISE, DOUBLE, 1, NEED_NONE),
    PLAIN(POINTWISE_RELU_UPPER_CLIP, POINTWISE, DOUBLE, 1, NEED_NONE),
    PLAIN(POINTWISE_RELU_LOWER_CLIP_SLOPE, POINTWISE, DOUBLE, 1, NEED_NONE),
    READ(CONVOLUTION_FORWARD_X, FORWARD, NEED_SET, X),
    READ(CONVOLUTION_FORWARD_W, FORWARD, NEED_SET, W),
    WRITTEN(CONVOLUTION_FORWARD_Y, FORWARD, NEED_SET, Y),
    PLAIN(OPERATION_CONVOLUTION_FORWARD_CONV_DESC, FORWARD, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(OPERATION_CONVOLUTION_FORWARD_ALPHA, FORWARD, FLOAT, 1, NEED_SET),
    PLAIN(OPERATION_CONVOLUTION_FORWARD_BETA, FORWARD, FLOAT, 1, NEED_SET),
    WRITTEN(CONVOLUTION_BWD_DATA_DX, DATA, NEED_SET, X),
    READ(CONVOLUTION_BWD_DATA_W, DATA, NEED_SET, W),
    READ(CONVOLUTION_BWD_DATA_DY, DATA, NEED_SET, Y),
    PLAIN(OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, DATA, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(OPERATION_CONVOLUTION_BWD_DATA_ALPHA, DATA, FLOAT, 1, NEED_SET),
    PLAIN(OPERATION_CONVOLUTION_BWD_DATA_BETA, DATA, FLOAT, 1, NEED_SET),
    READ(CONVOLUTION_BWD_FILTER_X, FILTER, NEED_SET, X),
    WRITTEN(CONVOLUTION_BWD_FILTER_DW, FILTER, NEED_SET, W),
    READ(CONVOLUTION_BWD_FILTER_DY, FILTER, NEED_SET, Y),
    PLAIN(OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, FILTER, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, FILTER, FLOAT, 1, NEED_SET),
    PLAIN(OPERATION_CONVOLUTION_BWD_FILTER_BETA, FILTER, FLOAT, 1, NEED_SET),
    PLAIN(OPERATION_POINTWISE_PW_DESCRIPTOR, ELEMENTS, BACKEND_DESCRIPTOR, 1, NEED_SET),
    READ(POINTWISE_XDESC, ELEMENTS, NEED_SET, X),
    READ(POINTWISE_BDESC, ELEMENTS, NEED_NONE, B),
    WRITTEN(POINTWISE_YDESC, ELEMENTS, NEED_NONE, Y),
    READ(POINTWISE_DYDESC, ELEMENTS, NEED_NONE, DY),
    WRITTEN(POINTWISE_DXDESC, ELEMENTS, NEED_NONE, DX),
    PLAIN(OPERATION_POINTWISE_ALPHA1, ELEMENTS, FLOAT, 1, NEED_SET),
    PLAIN(OPERATION_POINTWISE_ALPHA2, ELEMENTS, FLOAT, 1, NEED_SET),
    PLAIN(OPERATION_NORM_FWD_MODE, NORM_FWD, NORM_MODE, 1, NEED_SET),
    PLAIN(OPERATION_NORM_FWD_PHASE, NORM_FWD, NORM_FWD_PHASE, 1, NEED_SET),
    READ(NORM_FWD_XDESC, NORM_FWD, NEED_SET, X),
    READ(NORM_FWD_SCALE_DESC, NORM_FWD, NEED_SET, SCALE),
    READ(NORM_FWD_BIAS_DESC, NORM_FWD, NEED_SET, SHIFT),
    READ(NORM_FWD_MEAN_DESC, NORM_FWD, NEED_SET, MEAN), /* or written: the phase tells */
    READ(NORM_FWD_INV_VARIANCE_DESC, NORM_FWD, NEED_SET, INV_STD),
    READ(NORM_FWD_EPSILON_DESC, NORM_FWD, NEED_NONE, EPS),
    WRITTEN(NORM_FWD_YDESC, NORM_FWD, NEED_SET, Y),
    PLAIN(OPERATION_NORM_BWD_MODE, NORM_BWD, NORM_MODE, 1, NEED_SET),
    READ(NORM_BWD_XDESC, NORM_BWD, NEED_SET, X),
    READ(NORM_BWD_MEAN_DESC, NORM_BWD, NEED_SET, MEAN),
    READ(NORM_BWD_INV_VARIANCE_DESC, NORM_BWD, NEED_SET, INV_STD),
    READ(NORM_BWD_DYDESC, NORM_BWD, NEED_SET, DY),
    READ(NORM_BWD_SCALE_DESC, NORM_BWD, NEED_SET, SCALE),
    WRITTEN(NORM_BWD_DSCALE_DESC, NORM_BWD, NEED_SET, DSCALE),
    WRITTEN(NORM_BWD_DBIAS_DESC, NORM_BWD, NEED_SET, DSHIFT),
    WRITTEN(NORM_BWD_DXDESC, NORM_BWD, NEED_SET, DX),
    PLAIN(OPERATIONGRAPH_OPS, GRAPH, BACKEND_DESCRIPTOR, 0, NEED_SET),
    PLAIN(DEVICEPROP_HANDLE, PROP, HANDLE, 1, NEED_NONE),
    PLAIN(DEVICEPROP_JSON_REPRESENTATION, PROP, CHAR, 0, NEED_NONE),
    PLAIN(ENGINEHEUR_OPERATION_GRAPH, HEUR, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(ENGINEHEUR_MODE, HEUR, HEUR_MODE, 1, NEED_SET),
    PLAIN(ENGINEHEUR_DEVICEPROP, HEUR, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(ENGINEHEUR_RESULTS, HEUR, BACKEND_DESCRIPTOR, 0, NEED_GET_ONLY),
    PLAIN(ENGINE_GLOBAL_INDEX, ENGINE, INT64, 1, NEED_GET_ONLY),
    PLAIN(ENGINE_NUMERICAL_NOTE, ENGINE, NUMERICAL_NOTE, 0, NEED_GET_ONLY),
    PLAIN(ENGINE_BEHAVIOR_NOTE, ENGINE, BEHAVIOR_NOTE, 0, NEED_GET_ONLY),
    PLAIN(ENGINECFG_ENGINE, CONFIG, BACKEND_DESCRIPTOR, 1, NEED_GET_ONLY),
    PLAIN(EXECUTION_PLAN_ENGINE_CONFIG, PLAN, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(EXECUTION_PLAN_DEVICEPROP, PLAN, BACKEND_DESCRIPTOR, 1, NEED_SET),
    PLAIN(EXECUTION_PLAN_WORKSPACE_SIZE, PLAN, INT64, 1, NEED_GET_ONLY),
    PLAIN(VARIANT_PACK_UNIQUE_IDS, PACK, INT64, 0, NEED_SET),
    PLAIN(VARIANT_PACK_DATA_POINTERS, PACK, VOID_PTR, 0, NEED_SET),
    PLAIN(VARIANT_PACK_WORKSPACE, PACK, VOID_PTR, 1, NEED_NONE),
};

static void require(bool condition, cudnnStatus_t status, const std::string &text) {
    if (!condition)
        throw cudnn_refusal{status, text};
}

static void fits(bool condition, const std::string &text) {
    require(condition, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, text);
}

const cudnn_field &cudnn_field_of(const cudnn_content &c, cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type) {
    for (const cudnn_field &f : fields)
        if (f.name == name && f.owner == c.type) {
            require(f.type == type, CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                    "attribute " + std::to_string(name) + " has another type");
            return f;
        }
    throw cudnn_refusal{CUDNN_STATUS_BAD_PARAM, "the descriptor has no attribute " +
                                                    std::to_string(name) + " (see cudnn.h)"};
}

size_t cudnn_tensor::element_bytes() const {
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

size_t cudnn_tensor::bytes() const {
    int64_t last = 0;
    for (size_t i = 0; i < 4; i++)
        last += (dims[i] - 1) * strides[i];
    return static_cast<size_t>(last + 1) * element_bytes();
}

static void check_tensor(cudnn_content *c) {
    cudnn_tensor &t = c->tensor;
    t.id = c->value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t.alignment = c->value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    t.type = c->value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    t.is_virtual = c->value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    t.by_value = c->value<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (size_t i = 0; i < 4; i++) {
        t.dims[i] = c->value<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, i);
        t.strides[i] = c->value<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, i);
        fits(t.dims[i] > 0 && t.strides[i] > 0,
             "a dimension or stride of a tensor is not positive");
    }
    require(t.alignment > 0 && (t.alignment & (t.alignment - 1)) == 0, CUDNN_STATUS_BAD_PARAM,
            "a tensor's alignment is no power of 2");
    require(t.type != CUDNN_DATA_DOUBLE, CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has no double");
    require(!(t.is_virtual && t.by_value), CUDNN_STATUS_BAD_PARAM, "a virtual tensor by value");
    require(!t.by_value || (t.type == CUDNN_DATA_FLOAT && t.bytes() == sizeof(float)),
            CUDNN_STATUS_NOT_SUPPORTED, "a tensor by value is not one float");
}

static void check_conv_settings(const cudnn_content &c) {
    bool plain = c.value<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2;
    int64_t pad = c.value<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    for (size_t i = 0; i < 2; i++)
        plain = plain && c.value<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i) == pad &&
                c.value<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, i) == pad &&
                c.value<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, i) == 1 &&
                c.value<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i) == 1;
    require(pad >= 0, CUDNN_STATUS_BAD_PARAM, "a padding is negative");
    require(plain && c.value<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT,
            CUDNN_STATUS_NOT_SUPPORTED,
            "the stand-in has only convolutions of two equal paddings, stride 1, in float");
    require(c.value<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) ==
                CUDNN_CROSS_CORRELATION,
            CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has only cross-correlation");
}

static void check_conv(const cudnn_content &c, cudnn_operation *op) {
    static const struct {
        cudnnBackendAttributeName_t settings, alpha, beta;
    } names[] = {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
                 {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
                 {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    auto &name = names[op->type == FORWARD ? 0 : op->type == DATA ? 1 : 2];
    const cudnn_content &settings = c.desc(name.settings);
    require(settings.type == CONV, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "CONV_DESC is not one");
    op->pad = settings.value<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    op->beta = c.value<float>(name.beta);
    require(c.value<float>(name.alpha) == 1, CUDNN_STATUS_NOT_SUPPORTED, "alpha is not 1");
    auto &x = (*op)[ROLE_X].dims, &w = (*op)[ROLE_W].dims, &y = (*op)[ROLE_Y].dims;
    fits(x[0] == y[0], "a convolution's x and y have not the same N");
    fits(w[1] == x[1], "a convolution's weight has not as many input channels as x");
    fits(w[0] == y[1], "a convolution's weight has not as many output channels as y");
    for (size_t i = 2; i < 4; i++)
        fits(y[i] == x[i] + 2 * op->pad - w[i] + 1,
             "a convolution's y is not x + 2·pad - k + 1 high and wide");
    for (auto &o : op->operands)
        if (o.second.written && op->beta != 0)
            o.second.read = true;
}

static bool repeats(const cudnn_tensor &b, const cudnn_tensor &x) {
    bool ok = true;
    for (size_t i = 0; i < 4; i++)
        ok = ok && (b.dims[i] == 1 || b.dims[i] == x.dims[i]);
    return ok;
}

static void check_elements(const cudnn_content &c, cudnn_operation *op) {
    const cudnn_content &settings = c.desc(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    require(settings.type == POINTWISE, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "PW_DESCRIPTOR is not one");
    op->mode = settings.value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    bool backward = op->mode == CUDNN_POINTWISE_RELU_BWD;
    bool binary = op->mode == CUDNN_POINTWISE_ADD || op->mode == CUDNN_POINTWISE_MUL;
    require(op->has(ROLE_B) == binary && op->has(ROLE_Y) == !backward &&
                op->has(ROLE_DY) == backward && op->has(ROLE_DX) == backward,
            CUDNN_STATUS_BAD_PARAM, "a pointwise operation has not the tensors of its mode");
    require(c.value<float>(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1) == 1 &&
                c.value<float>(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2) == 1,
            CUDNN_STATUS_NOT_SUPPORTED, "a pointwise operation's alpha is not 1");
    const cudnn_tensor &x = (*op)[ROLE_X];
    for (auto &o : op->operands)
        fits(o.first == ROLE_B ? repeats(o.second.tensor, x) : o.second.tensor.dims == x.dims,
             "a pointwise operation's tensors differ in shape");
}

static void check_norm(const cudnn_content &c, cudnn_operation *op) {
    bool forward = op->type == NORM_FWD;
    require(c.value<cudnnBackendNormMode_t>(forward ? CUDNN_ATTR_OPERATION_NORM_FWD_MODE
                                                    : CUDNN_ATTR_OPERATION_NORM_BWD_MODE) ==
                CUDNN_BATCH_NORM,
            CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has only BatchNorm");
    if (forward) {
        op->training = c.value<cudnnBackendNormFwdPhase_t>(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE) ==
                       CUDNN_NORM_FWD_TRAINING;
        require(op->has(ROLE_EPS) == op->training, CUDNN_STATUS_BAD_PARAM,
                "a normalisation takes epsilon for training, and then alone");
        require(!op->training || (*op)[ROLE_EPS].by_value, CUDNN_STATUS_BAD_PARAM,
                "epsilon is not by value");
        for (cudnn_role role : {ROLE_MEAN, ROLE_INV_STD}) {
            op->operands[role].written = op->training;
            op->operands[role].read = !op->training;
        }
    }
    const cudnn_tensor &x = (*op)[ROLE_X];
    for (auto &o : op->operands) {
        const cudnn_tensor &t = o.second.tensor;
        if (o.first == ROLE_Y || o.first == ROLE_DY || o.first == ROLE_DX)
            fits(t.dims == x.dims, "a normalisation's activations differ in shape");
        else if (o.first != ROLE_X && o.first != ROLE_EPS)
            fits(t.dims == std::array<int64_t, 4>{1, x.dims[1], 1, 1} && t.type == CUDNN_DATA_FLOAT,
                 "a normalisation's values are not C floats");
    }
}

static void check_operation(cudnn_content *c) {
    cudnn_operation op = {c->type, CUDNN_POINTWISE_ADD, false, 0, 0, {}};
    for (const cudnn_field &f : fields)
        if (f.owner == c->type && f.role != ROLE_NONE && c->has(f.name)) {
            require(c->desc(f.name).type == TENSOR, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                    "an operand is no tensor");
            op.operands[f.role] = {c->desc(f.name).tensor, f.read, f.written};
            require(f.role == ROLE_EPS || !op[f.role].by_value, CUDNN_STATUS_NOT_SUPPORTED,
                    "the stand-in takes nothing but epsilon by value");
        }
    if (c->type == ELEMENTS)
        check_elements(*c, &op);
    else if (c->type == NORM_FWD || c->type == NORM_BWD)
        check_norm(*c, &op);
    else
        check_conv(*c, &op);
    c->operations = {op};
}

/* An id means one tensor; what lies between operations is written before it is read. */
static void check_graph(cudnn_content *c) {
    std::map<int64_t, cudnn_tensor> known;
    std::map<int64_t, bool> produced;
    for (auto &desc : c->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descs) {
        require(desc->operations.size() == 1 && desc->type != GRAPH,
                CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a graph's operation is none");
        const cudnn_operation &op = desc->operations[0];
        for (auto &o : op.operands) {
            const cudnn_tensor &t = o.second.tensor, &k = known.insert({t.id, t}).first->second;
            require(k.dims == t.dims && k.strides == t.strides && k.type == t.type &&
                        k.is_virtual == t.is_virtual,
                    CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                    "two tensors of a graph have the id " + std::to_string(t.id));
            require(!o.second.read || !t.is_virtual || produced[t.id], CUDNN_STATUS_BAD_PARAM,
                    "a virtual tensor is read before it is written");
        }
        for (auto &o : op.operands)
            if (o.second.written) {
                require(!produced[o.second.tensor.id], CUDNN_STATUS_BAD_PARAM,
                        "a tensor is written twice");
                produced[o.second.tensor.id] = true;
            }
        c->operations.push_back(op);
    }
}

void cudnn_check(cudnn_content *c) {
    for (const cudnn_field &f : fields)
        require(f.owner != c->type || f.need != NEED_SET || c->has(f.name), CUDNN_STATUS_BAD_PARAM,
                "attribute " + std::to_string(f.name) + " (see cudnn.h) was not set");
    if (c->type == TENSOR)
        check_tensor(c);
    else if (c->type == CONV)
        check_conv_settings(*c);
    else if (c->type == POINTWISE)
        require(c->value<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) == CUDNN_DATA_FLOAT,
                CUDNN_STATUS_NOT_SUPPORTED, "pointwise arithmetic is not in float");
    else if (c->type >= FORWARD && c->type <= NORM_BWD)
        check_operation(c);
    else if (c->type == GRAPH)
        check_graph(c);
    else if (c->type == PROP)
        require(c->has(CUDNN_ATTR_DEVICEPROP_HANDLE) !=
                    c->has(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION),
                CUDNN_STATUS_BAD_PARAM, "a device is of a handle or of a text");
}

/* Convolutions want one type, virtual tensors apart. */
static bool one_type(const cudnn_operation &op) {
    for (auto &o : op.operands)
        if (!o.second.tensor.is_virtual && o.second.tensor.type != op[ROLE_X].type)
            return false;
    return true;
}

static bool same(const cudnn_operation &a, const cudnn_operation &b, cudnn_role role) {
    return a[role].id == b[role].id;
}

/* BatchNorm again, its ReLU backward, BatchNorm backward: the only pattern in which 9.19 takes the
 * first two, with the same tensors in both normalisations, and io type between the operations. */
static bool backward_pattern(const std::vector<cudnn_operation> &ops) {
    if (ops.size() != 3 || ops[0].type != NORM_FWD || ops[0].training || ops[1].type != ELEMENTS ||
        ops[1].mode != CUDNN_POINTWISE_RELU_BWD || ops[2].type != NORM_BWD)
        return false;
    const cudnn_tensor &y = ops[0][ROLE_Y], &dy = ops[1][ROLE_DX];
    return y.is_virtual && dy.is_virtual && ops[1][ROLE_X].id == y.id &&
           ops[2][ROLE_DY].id == dy.id && y.type == ops[0][ROLE_X].type && dy.type == y.type &&
           same(ops[0], ops[2], ROLE_X) && same(ops[0], ops[2], ROLE_SCALE) &&
           same(ops[0], ops[2], ROLE_MEAN) && same(ops[0], ops[2], ROLE_INV_STD);
}

bool cudnn_supported(const std::vector<cudnn_operation> &operations) {
    for (const cudnn_operation &op : operations) {
        bool norm = op.type == NORM_FWD || op.type == NORM_BWD;
        bool masked = op.type == ELEMENTS && op.mode == CUDNN_POINTWISE_RELU_BWD;
        if (norm && op[ROLE_X].type != CUDNN_DATA_FLOAT && op[ROLE_X].dims[1] % 8 != 0)
            return false;
        if (!norm && op.type != ELEMENTS && !one_type(op))
            return false;
        if (((op.type == NORM_FWD && !op.training) || (masked && operations.size() > 1) ||
             (op.type == NORM_BWD && op[ROLE_DY].is_virtual)) &&
            !backward_pattern(operations))
            return false;
    }
    return true;
}

bool cudnn_is_float(const std::vector<cudnn_operation> &operations) {
    return operations[0][ROLE_X].type == CUDNN_DATA_FLOAT;
}
