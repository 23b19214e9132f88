/* What the cuDNN stand-in refuses: shapes that do not fit, mixed types, memory that is missing,
 * askew or shared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "trainer/cudnn_graph.h"
#include <cuda_runtime_api.h>
#include <stdlib.h>

static cudnnHandle_t handle;
static cudaStream_t stream;
static struct cudnn_desc device;

static const struct cudnn_graph_spec right = {.kind = CUDNN_GRAPH_CONV_FORWARD,
                                              .precision = CUDNN_GRAPH_BF16,
                                              .layer = "right",
                                              .in = {2, 8, 5, 5},
                                              .out = {2, 16, 5, 5},
                                              .channels = 16,
                                              .kernel = 3,
                                              .pad = 1};

static void refused(const struct cudnn_graph_spec *s, int64_t limit) {
    struct cudnn_graph g;
    assert_int_equal(cudnn_graph_open(&g, s, &device, limit, 1), BAD_INPUT);
}

static void test_wrong_shapes_are_refused(void **state) {
    (void)state;
    struct cudnn_graph_spec s = right;
    s.out.h = 6;
    refused(&s, 1 << 20);
    s = right, s.out.n = 3;
    refused(&s, 1 << 20);
    s = right, s.kernel = 1;
    refused(&s, 1 << 20);
    s = (struct cudnn_graph_spec){.kind = CUDNN_GRAPH_NORM_FORWARD,
                                  .precision = CUDNN_GRAPH_FP16,
                                  .layer = "channels that are no multiple of 8",
                                  .in = {2, 12, 5, 5},
                                  .out = {2, 12, 5, 5},
                                  .channels = 12,
                                  .eps = 1e-3f};
    refused(&s, 1 << 20);
    refused(&right, -1);
}

/* A convolution of two types of data: an empty proposal, no error. */
static void test_mixed_types_have_no_engine(void **state) {
    (void)state;
    struct cudnn_desc d = {0};
    cudnn_desc_conv(&d, CUDNN_DESC_CONV_FORWARD,
                    cudnn_desc_tensor(&d, 0, right.in, CUDNN_DATA_HALF),
                    cudnn_desc_tensor(&d, 1, (struct shape){16, 8, 3, 3}, CUDNN_DATA_FLOAT),
                    cudnn_desc_tensor(&d, 2, right.out, CUDNN_DATA_HALF), 1, false);
    cudnnBackendDescriptor_t graph = cudnn_desc_open(&d, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_desc_set(&d, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                   d.operations);
    cudnn_desc_finalize(&d, graph);
    cudnnBackendDescriptor_t h = cudnn_desc_open(&d, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnn_desc_set_desc(&d, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    cudnn_desc_set_desc(&d, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device.all[0]);
    assert_int_equal(cudnnBackendFinalize(h), CUDNN_STATUS_BAD_PARAM); /* the mode is missing */
    cudnn_desc_set(&d, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_desc_finalize(&d, h);
    assert_int_equal(cudnn_desc_get(&d, h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL),
                     0);
    assert_int_equal(d.status, CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(
        cudnnBackendSetAttribute(h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode),
        CUDNN_STATUS_SUCCESS); /* it is final */
    cudnn_desc_close(&d);
}

/* One tensor is left out, moved off its alignment, or shares memory with another. */
static void test_wrong_memory_is_refused(void **state) {
    (void)state;
    static const int roles[] = {CUDNN_GRAPH_X, CUDNN_GRAPH_W, CUDNN_GRAPH_Y};
    struct cudnn_graph g;
    void *pointers[CUDNN_GRAPH_ROLES] = {0}, *workspace;
    assert_int_equal(cudaMalloc(&workspace, 1 << 20), cudaSuccess);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        assert_int_equal(cudaMalloc(&pointers[roles[i]], 1 << 16), cudaSuccess);
    void *x = pointers[CUDNN_GRAPH_X];
    assert_int_equal(cudnn_graph_open(&g, &right, &device, 1 << 20, 1), 0);
    g.desc.real_count--;
    assert_int_equal(cudnn_graph_run(handle, &g, pointers, workspace), SYSTEM_FAILED);
    g.desc.real_count++;
    pointers[CUDNN_GRAPH_X] = (char *)x + 2;
    assert_int_equal(cudnn_graph_run(handle, &g, pointers, workspace), SYSTEM_FAILED);
    pointers[CUDNN_GRAPH_X] = pointers[CUDNN_GRAPH_Y];
    assert_int_equal(cudnn_graph_run(handle, &g, pointers, workspace), SYSTEM_FAILED);
    pointers[CUDNN_GRAPH_X] = x;
    assert_int_equal(cudnn_graph_run(handle, &g, pointers, NULL), SYSTEM_FAILED);
    assert_int_equal(cudnn_graph_run(handle, &g, pointers, pointers[CUDNN_GRAPH_Y]), SYSTEM_FAILED);
    cudnn_graph_close(&g);
    assert_int_equal(cudaFree(workspace), cudaSuccess);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        assert_int_equal(cudaFree(pointers[roles[i]]), cudaSuccess);
}

static int open_device(void **state) {
    (void)state;
    return cudnnCreate(&handle) ||
           cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) ||
           cudnnSetStream(handle, stream) || cudnn_graph_device_open(&device, handle, NULL);
}

static int close_device(void **state) {
    (void)state;
    cudnn_desc_close(&device);
    return cudaStreamDestroy(stream) || cudnnDestroy(handle);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_shapes_are_refused),
        cmocka_unit_test(test_mixed_types_have_no_engine),
        cmocka_unit_test(test_wrong_memory_is_refused),
    };
    setenv("DDPIPE_STANDIN_LEAKS", "1", 1);
    log_open("test_cudnn_refusals", -1);
    return cmocka_run_group_tests(tests, open_device, close_device);
}
