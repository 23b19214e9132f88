/* cudnn.cc: a stand-in for cuDNN's backend API that computes on the CPU, so that the trainer's
 * cuDNN code runs, and its numbers can be checked, without a GPU. In: descriptors, as cudnn.h
 * declares; out: work on the handle's stream, which the CUDA stand-in runs later.
 *
 * Stricter than cuDNN, to show what would go wrong only sometimes: every attribute must be set,
 * memory that an execution writes must not overlap any other of its tensors or its workspace, and
 * the workspace is filled with garbage before and after the work. Every graph has three engines
 * that compute the same. Reductions and convolutions are in another order than a GPU's. */
#include "tests/standin/cudnn_parts.h"
#include "tests/standin/inside.h"
#include <algorithm>
#include <new>
#include <set>
#include <stdio.h>

struct cudnnContext {
    cudaStream_t stream;
};

/* What a cudnnBackendDescriptor_t points to. */
struct descriptor {
    std::shared_ptr<cudnn_content> content;
};

/* The engines, in the order of the heuristics' preference. */
static const struct {
    int64_t index, workspace_bytes;
    bool tensor_core; /* for float data */
} engines[] = {{11, 1 << 20, true}, {7, 131, false}, {3, 0, false}};

static thread_local char last_error[400];

static void require(bool condition, cudnnStatus_t status, const std::string &text) {
    if (!condition)
        throw cudnn_refusal{status, text};
}

/* Runs the body of an API function; planned: its status where the test wants it to fail. */
template <class F> static cudnnStatus_t api(const char *function, cudnnStatus_t planned, F body) {
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    try {
        require(!standin_fails(function), planned, "fails because DDPIPE_STANDIN_FAIL says so");
        body();
    } catch (const cudnn_refusal &r) {
        snprintf(last_error, sizeof last_error, "%s: %s", function, r.text.c_str());
        status = r.status;
    } catch (const std::bad_alloc &) {
        snprintf(last_error, sizeof last_error, "%s: no memory", function);
        status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    }
    return status;
}

static void count_live(const char *kind, int change) {
    std::lock_guard<std::recursive_mutex> guard(standin_mutex());
    standin_live(kind, change);
}

static cudnn_content &content_of(cudnnBackendDescriptor_t d) {
    require(d, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the descriptor is NULL");
    return *static_cast<descriptor *>(d)->content;
}

size_t cudnnGetVersion(void) {
    return 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (CUDNN_STATUS_CATEGORY(static_cast<int>(status))) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_NOT_INITIALIZED";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size) {
    snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    cudaError_t e = standin_entry(__func__, cudaErrorMemoryAllocation);
    if (e) {
        snprintf(last_error, sizeof last_error, "%s: %s", __func__, cudaGetErrorString(e));
        return e == cudaErrorMemoryAllocation ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
                                              : CUDNN_STATUS_NOT_INITIALIZED;
    }
    *handle = new cudnnContext{nullptr};
    count_live("cuDNN handles", 1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR, [=] {
        require(handle, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the handle is NULL");
        delete handle;
        count_live("cuDNN handles", -1);
    });
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR, [=] {
        require(handle, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the handle is NULL");
        handle->stream = stream;
    });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out) {
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, [=] {
        auto content = std::make_shared<cudnn_content>();
        content->type = type;
        *out = new descriptor{content};
        count_live("cuDNN descriptors", 1);
    });
}

/* Destroys even where it is made to fail: nobody would try again. */
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
    if (d)
        count_live("cuDNN descriptors", -1);
    delete static_cast<descriptor *>(d);
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR, [] {});
}

static size_t value_bytes(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_DOUBLE: return sizeof(double);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return 4; /* float, enumerators */
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR, [=] {
        cudnn_content &c = content_of(d);
        require(!c.final, CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is final");
        const cudnn_field &f = cudnn_field_of(c, name, type);
        require(values, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the values are NULL");
        require(f.need != NEED_GET_ONLY, CUDNN_STATUS_BAD_PARAM, "the attribute is read-only");
        require(count > 0 && (f.count == 0 || count == f.count), CUDNN_STATUS_BAD_PARAM,
                "attribute " + std::to_string(name) + " has another number of values");
        cudnn_attribute a = {type, count, {}, {}};
        auto *bytes = static_cast<const char *>(values);
        auto *descs = static_cast<const cudnnBackendDescriptor_t *>(values);
        if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
            a.bytes.assign(bytes, bytes + static_cast<size_t>(count) * value_bytes(type));
        for (int64_t i = 0; i < count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
            require(content_of(descs[i]).final, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                    "a descriptor among the values is not final");
            a.descs.push_back(static_cast<descriptor *>(descs[i])->content);
        }
        c.attributes[name] = a;
    });
}

/* Descriptors are returned in those that the caller has made for it. */
static void get_descriptors(const cudnn_attribute &a, size_t count, void *values) {
    auto *into = static_cast<cudnnBackendDescriptor_t *>(values);
    for (size_t i = 0; i < count; i++) {
        const cudnn_content &c = content_of(into[i]);
        require(!c.final && c.type == a.descs[i]->type, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                "a descriptor to be filled in is final, or of another type");
    }
    for (size_t i = 0; i < count; i++)
        static_cast<descriptor *>(into[i])->content =
            std::const_pointer_cast<cudnn_content>(a.descs[i]);
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t d,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *values) {
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR, [=] {
        const cudnn_content &c = content_of(d);
        require(c.final, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the descriptor is not final");
        cudnn_field_of(c, name, type);
        require(c.has(name), CUDNN_STATUS_BAD_PARAM, "the attribute was not set");
        const cudnn_attribute &a = c.attributes.at(name);
        size_t n = static_cast<size_t>(values ? std::min(requested, a.count) : 0);
        if (count)
            *count = a.count;
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
            get_descriptors(a, n, values);
        else if (n > 0)
            memcpy(values, a.bytes.data(), n * value_bytes(type));
    });
}

static const cudnn_content &link(const cudnn_content &c, cudnnBackendAttributeName_t name,
                                 cudnnBackendDescriptorType_t type) {
    const cudnn_content &to = c.desc(name);
    require(to.type == type, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "attribute " + std::to_string(name) + " refers to another kind of descriptor");
    return to;
}

static std::shared_ptr<cudnn_content> configuration(size_t engine, const cudnn_content &graph) {
    auto e = std::make_shared<cudnn_content>(), config = std::make_shared<cudnn_content>();
    std::vector<cudnnBackendNumericalNote_t> notes;
    if (engines[engine].tensor_core && cudnn_is_float(graph.operations))
        notes.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    e->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    e->put<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, {engines[engine].index});
    e->put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes);
    e->put<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                       {});
    e->operations = graph.operations;
    config->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    config->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {e}};
    e->final = config->final = true;
    return config;
}

static void finalize_heuristics(cudnn_content *c) {
    const cudnn_content &graph =
        link(*c, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    link(*c, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    cudnn_attribute results = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, {}, {}};
    for (size_t i = 0; i < std::size(engines) && cudnn_supported(graph.operations); i++) {
        results.descs.push_back(configuration(i, graph));
        results.count++;
    }
    c->attributes[CUDNN_ATTR_ENGINEHEUR_RESULTS] = results;
}

static void finalize_plan(cudnn_content *c) {
    const cudnn_content &config =
        link(*c, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    link(*c, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    const cudnn_content &engine = config.desc(CUDNN_ATTR_ENGINECFG_ENGINE);
    int64_t index = engine.value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    for (auto &e : engines)
        if (e.index == index)
            c->put<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                            {e.workspace_bytes});
    c->operations = engine.operations;
}

static void finalize_pack(const cudnn_content &c) {
    const cudnn_attribute &ids = c.attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    require(ids.count == c.attributes.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count,
            CUDNN_STATUS_BAD_PARAM, "a variant pack has not one pointer an id");
    std::set<int64_t> seen;
    for (size_t i = 0; i < static_cast<size_t>(ids.count); i++)
        require(seen.insert(c.value<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i)).second,
                CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "an id is twice in a variant pack");
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
    return api(__func__, CUDNN_STATUS_INTERNAL_ERROR, [=] {
        cudnn_content &c = content_of(d);
        require(!c.final, CUDNN_STATUS_BAD_PARAM, "the descriptor is final already");
        cudnn_check(&c);
        if (c.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
            finalize_heuristics(&c);
        else if (c.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
            finalize_plan(&c);
        else if (c.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
            finalize_pack(c);
        c.final = true;
    });
}

/* One run of a plan: what it will compute, and the memory that it may touch. */
struct execution {
    std::vector<cudnn_operation> operations;
    std::map<int64_t, void *> memory;
    std::map<int64_t, float> scalars;
    void *workspace;
    size_t workspace_bytes;
    std::vector<standin_access> accesses;
    std::vector<standin_access> ranges; /* one a tensor; write: written, read or not */

    void run() const {
        garbage();
        cudnn_compute(operations, memory, scalars);
        garbage();
    }
    void garbage() const { /* as float or 16 bits: NaN */
        if (workspace_bytes > 0)
            memset(workspace, 0xff, workspace_bytes);
    }
};

static std::map<int64_t, cudnn_operand> real_operands(const std::vector<cudnn_operation> &ops) {
    std::map<int64_t, cudnn_operand> real;
    for (const cudnn_operation &op : ops)
        for (auto &o : op.operands) {
            cudnn_operand &r = real.insert({o.second.tensor.id, o.second}).first->second;
            r.read = r.read || o.second.read;
            r.written = r.written || o.second.written;
        }
    for (auto at = real.begin(); at != real.end();)
        at = at->second.tensor.is_virtual ? real.erase(at) : std::next(at);
    return real;
}

static void refuse_overlap(const std::vector<standin_access> &ranges) {
    for (auto &a : ranges)
        for (auto &b : ranges) {
            auto *from = static_cast<const char *>(a.begin),
                 *to = static_cast<const char *>(b.begin);
            require(&a == &b || !a.write || from + a.bytes <= to || to + b.bytes <= from,
                    CUDNN_STATUS_BAD_PARAM, "what is written overlaps another tensor or workspace");
        }
}

static void bind(execution *run, const cudnn_operand &o, void *pointer) {
    const cudnn_tensor &t = o.tensor;
    require(pointer, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor's pointer is NULL");
    if (t.by_value) {
        memcpy(&run->scalars[t.id], pointer, sizeof(float));
        return;
    }
    require(reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(t.alignment) == 0,
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a tensor's pointer is not aligned");
    run->memory[t.id] = pointer;
    run->ranges.push_back({pointer, t.bytes(), o.written});
    if (o.read)
        run->accesses.push_back({pointer, t.bytes(), false});
    if (o.written)
        run->accesses.push_back({pointer, t.bytes(), true});
}

static execution prepare(const cudnn_content &plan, const cudnn_content &pack) {
    execution run = {plan.operations, {}, {}, nullptr, 0, {}, {}};
    std::map<int64_t, cudnn_operand> real = real_operands(plan.operations);
    int64_t count = pack.attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count;
    require(static_cast<size_t>(count) == real.size(), CUDNN_STATUS_BAD_PARAM,
            "a variant pack has not as many ids as its graph has tensors");
    for (size_t i = 0; i < static_cast<size_t>(count); i++) {
        int64_t id = pack.value<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i);
        require(real.count(id) > 0, CUDNN_STATUS_BAD_PARAM,
                "the graph has no tensor " + std::to_string(id));
        bind(&run, real[id], pack.value<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i));
    }
    run.workspace_bytes =
        static_cast<size_t>(plan.value<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
    if (run.workspace_bytes > 0) {
        require(pack.has(CUDNN_ATTR_VARIANT_PACK_WORKSPACE), CUDNN_STATUS_BAD_PARAM,
                "a plan that needs workspace got none");
        run.workspace = pack.value<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
        require(run.workspace && reinterpret_cast<uintptr_t>(run.workspace) % 16 == 0,
                CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "workspace is NULL or not aligned");
        run.accesses.push_back({run.workspace, run.workspace_bytes, true});
        run.ranges.push_back(run.accesses.back());
    }
    refuse_overlap(run.ranges);
    return run;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
    return api(__func__, CUDNN_STATUS_EXECUTION_FAILED, [=] {
        require(handle, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the handle is NULL");
        const cudnn_content &p = content_of(plan), &pack = content_of(variant_pack);
        require(p.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
                    pack.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "not a plan and a variant pack");
        require(p.final && pack.final, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                "plan or variant pack is not final");
        execution run = prepare(p, pack);
        std::vector<standin_access> accesses = run.accesses;
        cudaError_t error =
            standin_enqueue(handle->stream, "cudnnBackendExecute", accesses, [run] { run.run(); });
        require(error == cudaSuccess, CUDNN_STATUS_EXECUTION_FAILED, "the stream refused the work");
    });
}
