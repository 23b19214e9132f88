/* cudnn_plan.c: asks cuDNN's heuristics for engine configurations and makes plans of them.
 *
 * The heuristics list configurations best first (mode A); where none of those will do, the fallback
 * list has slower engines that take more. A configuration that cannot be finalised is passed over:
 * the list is a proposal. */
#include "trainer/cudnn_plan.h"
#include "lib/log.h"
#include <assert.h>
#include <string.h>

enum { CONFIGS_MAX = 128 };

int cudnn_graph_device_open(struct cudnn_desc *device, cudnnHandle_t handle, const char *json) {
    *device = (struct cudnn_desc){0};
    cudnnBackendDescriptor_t p = cudnn_desc_open(device, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    if (handle)
        cudnn_desc_set(device, p, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    else
        cudnn_desc_set(device, p, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                       (int64_t)strlen(json) + 1, json);
    if (cudnn_desc_finalize(device, p))
        return 0;
    int rc = fail(SYSTEM_FAILED, "cuDNN cannot take the device's properties: %s", device->reason);
    cudnn_desc_close(device);
    return rc;
}

static bool has(const cudnnBackendNumericalNote_t *notes, int64_t count,
                cudnnBackendNumericalNote_t note) {
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == note)
            return true;
    return false;
}

/* Reads what the configuration's engine says of itself; true where it keeps to the precision. */
static bool suitable(cudnnBackendDescriptor_t config, const struct cudnn_graph_spec *spec,
                     struct cudnn_graph_plan *plan) {
    /* Engines for sums and products of elements have the note too, and no use for it. */
    bool float_product = spec->precision == CUDNN_GRAPH_FP32 && spec->kernel > 0;
    struct cudnn_desc d = {0};
    cudnnBackendDescriptor_t engine = cudnn_desc_open(&d, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendBehaviorNote_t behaviour[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    cudnn_desc_get(&d, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                   &engine);
    cudnn_desc_get(&d, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &plan->engine);
    int64_t note_count =
        cudnn_desc_get(&d, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    int64_t behaviour_count =
        cudnn_desc_get(&d, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                       CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, behaviour);
    bool known = d.status == CUDNN_STATUS_SUCCESS;
    cudnn_desc_close(&d);
    plan->tensor_core = has(notes, note_count, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    plan->compiled = false;
    for (int64_t i = 0; i < behaviour_count; i++)
        plan->compiled |= behaviour[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return known && !has(notes, note_count, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
           !has(notes, note_count, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) &&
           !has(notes, note_count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) &&
           !(float_product && plan->tensor_core);
}

/* Adds a plan made of the configuration, which then stays with it, or leaves g as it was. */
static bool add_plan(struct cudnn_graph *g, cudnnBackendDescriptor_t config,
                     const struct cudnn_desc *device, int64_t workspace_limit) {
    struct cudnn_graph_plan plan;
    struct cudnn_desc attempt = {0};
    if (!suitable(config, &g->spec, &plan))
        return false;
    plan.plan = cudnn_desc_open(&attempt, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    cudnn_desc_set_desc(&attempt, plan.plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    cudnn_desc_set_desc(&attempt, plan.plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device->all[0]);
    cudnn_desc_finalize(&attempt, plan.plan);
    cudnn_desc_get(&attempt, plan.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                   1, &plan.workspace_bytes);
    if (attempt.status != CUDNN_STATUS_SUCCESS || plan.workspace_bytes > workspace_limit) {
        cudnn_desc_close(&attempt);
        return false;
    }
    cudnn_desc_keep(&g->desc, plan.plan);
    cudnn_desc_keep(&g->desc, config);
    g->plans[g->plan_count++] = plan;
    return true;
}

/* Makes plans of what one mode of the heuristics proposes. An error is an empty proposal: it is how
 * cuDNN says that no engine takes the graph. */
static void propose(struct cudnn_graph *g, cudnnBackendDescriptor_t operations,
                    const struct cudnn_desc *device, cudnnBackendHeurMode_t mode,
                    int64_t workspace_limit, int wanted) {
    struct cudnn_desc d = {0};
    cudnnBackendDescriptor_t configs[CONFIGS_MAX];
    int64_t created = 0;
    cudnnBackendDescriptor_t heuristics = cudnn_desc_open(&d, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_desc_set_desc(&d, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    cudnn_desc_set(&d, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_desc_set_desc(&d, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device->all[0]);
    cudnn_desc_finalize(&d, heuristics);
    int64_t count = cudnn_desc_get(&d, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    while (created < count && created < CONFIGS_MAX &&
           cudnn_desc_ok(&d, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                                          &configs[created])))
        created++;
    count = created == 0 ? 0
                         : cudnn_desc_get(&d, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, created, configs);
    for (int64_t i = 0; i < created; i++)
        if (i >= count || g->plan_count >= wanted ||
            !add_plan(g, configs[i], device, workspace_limit))
            cudnnBackendDestroyDescriptor(configs[i]);
    cudnn_desc_close(&d);
}

void cudnn_plan_make(struct cudnn_graph *g, const struct cudnn_desc *device,
                     int64_t workspace_limit, int wanted) {
    cudnnBackendDescriptor_t operations =
        cudnn_desc_open(&g->desc, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_desc_set(&g->desc, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                   CUDNN_TYPE_BACKEND_DESCRIPTOR, g->desc.operation_count, g->desc.operations);
    if (!cudnn_desc_finalize(&g->desc, operations))
        return;
    assert(wanted >= 1 && wanted <= CUDNN_GRAPH_PLANS_MAX);
    propose(g, operations, device, CUDNN_HEUR_MODE_A, workspace_limit, wanted);
    if (g->plan_count == 0)
        propose(g, operations, device, CUDNN_HEUR_MODE_FALLBACK, workspace_limit, wanted);
}
