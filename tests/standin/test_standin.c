/* The stand-in for a GPU is as lazy as one, and names the mistakes it is there to find. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "tests/standin/fixture.h"
#include "trainer/kernels.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void dies(void (*what)(void), const char *text) {
    assert_int_equal(fixture_child(what), RACE);
    if (!strstr(fix.said, text))
        fail_msg("\"%s\" does not say \"%s\"", fix.said, text);
}

static void runs_when_asked(void **state) {
    (void)state;
    float back[COUNT] = {0};
    fixture_set(fix.host, 1);
    fixture_up(fix.device, fix.host, fix.a);
    fixture_set(fix.host, 2); /* too early */
    fixture_down(back, fix.device, fix.a);
    assert_true(back[0] == 0);
    assert_int_equal(fixture_finish(fix.a), 2);
    fixture_check(back, 2, 1);
}

static void memory_begins_as_no_number(void **state) {
    (void)state;
    assert_true(fix.device[0] != fix.device[0]);
    assert_int_equal((uintptr_t)fix.device % 256, 0);
}

static void race(void) {
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    fixture_ok(cudaMemsetAsync(fix.device + 10, 0, 4, fix.b));
}

static void race_of_readers(void) {
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    fixture_finish(fix.a);
    fixture_down(fix.host, fix.device, fix.a);
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.b));
}

static void race_after_another_event(void) {
    fixture_ok(cudaEventRecord(fix.event, fix.a));
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    fixture_ok(cudaStreamWaitEvent(fix.b, fix.event, 0));
    fixture_down(fix.host, fix.device, fix.b);
}

static void race_with_the_host(void) {
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    fixture_ok(cudaFree(fix.device));
}

static void races(void **state) {
    (void)state;
    dies(race, "race: cudaMemsetAsync on stream ");
    dies(race_of_readers, "reads: no event joins them");
    dies(race_after_another_event, "writes: no event joins them");
    dies(race_with_the_host, "the host has not seen its end");
}

static void events_order(void **state) {
    (void)state;
    float back[COUNT], ms = -1;
    cudaEvent_t later;
    fixture_ok(cudaEventCreateWithFlags(&later, cudaEventDefault));
    fixture_set(fix.host, 5);
    fixture_up(fix.device, fix.host, fix.a);
    fixture_ok(cudaEventRecord(fix.event, fix.a));
    fixture_ok(cudaStreamWaitEvent(fix.b, fix.event, 0));
    fixture_down(back, fix.device, fix.b);
    fixture_ok(cudaEventRecord(later, fix.b));
    assert_int_equal(cudaEventElapsedTime(&ms, fix.event, later), cudaErrorNotReady);
    /* The host's knowledge orders, too. */
    while (cudaEventQuery(later) == cudaErrorNotReady)
        ;
    fixture_check(back, 5, 1);
    fixture_up(fix.device, fix.host, fix.a);
    fixture_ok(cudaEventElapsedTime(&ms, fix.event, later));
    assert_true(ms >= 0 && ms < 1e4F);
    fixture_ok(cudaEventDestroy(later));
}

static void reads_unwritten(void) {
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES - 4, fix.a));
    fixture_down(fix.host, fix.device, fix.a);
}

static void reads_beyond(void) {
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES + 1, fix.a));
}

static void reads_freed(void) {
    fixture_ok(cudaFree(fix.device));
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
}

static void copies_the_wrong_way(void) {
    fixture_ok(cudaMemcpyAsync(fix.other, fix.device, BYTES, cudaMemcpyDeviceToHost, fix.a));
}

static void breaks_a_guard(void) {
    ((char *)fix.device)[BYTES] = 0;
    fixture_ok(cudaFree(fix.device));
}

static void bounds(void **state) {
    (void)state;
    dies(reads_unwritten, "nobody wrote 4 of them");
    dies(reads_beyond, "beyond its end");
    dies(reads_freed, "in no allocation");
    dies(copies_the_wrong_way, "wrong side");
    dies(breaks_a_guard, "wrote behind");
}

/* device = host + other on two streams; joined or not. */
static cudaError_t capture(cudaGraph_t *graph, bool join) {
    cudaEvent_t joined;
    fixture_ok(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    fixture_ok(cudaStreamBeginCapture(fix.a, cudaStreamCaptureModeThreadLocal));
    fixture_up(fix.device, fix.host, fix.a);
    fixture_ok(cudaEventRecord(fix.event, fix.a));
    fixture_ok(cudaStreamWaitEvent(fix.b, fix.event, 0));
    assert_int_equal(kernels_add(fix.device, fix.device, fix.other, KERNELS_FP32, COUNT, fix.b), 0);
    fixture_ok(cudaEventRecord(joined, fix.b));
    if (join)
        fixture_ok(cudaStreamWaitEvent(fix.a, joined, 0));
    const cudaError_t e = cudaStreamEndCapture(fix.a, graph);
    fixture_ok(cudaEventDestroy(joined));
    return e;
}

static cudaGraphExec_t instantiate(void) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    fixture_ok(capture(&graph, true));
    fixture_ok(cudaGraphInstantiate(&exec, graph, 0));
    fixture_ok(cudaGraphDestroy(graph));
    return exec;
}

static void destroys_early(void) {
    cudaGraphExec_t exec = instantiate();
    fixture_ok(cudaMemsetAsync(fix.other, 0, BYTES, fix.a));
    fixture_ok(cudaGraphLaunch(exec, fix.a));
    fixture_ok(cudaGraphExecDestroy(exec));
}

static void launches_in_a_race(void) {
    cudaGraphExec_t exec = instantiate();
    fixture_ok(cudaMemsetAsync(fix.other, 0, BYTES, fix.b));
    fixture_ok(cudaGraphLaunch(exec, fix.a));
}

static void captures_a_race(void) {
    fixture_ok(cudaStreamBeginCapture(fix.a, cudaStreamCaptureModeRelaxed));
    fixture_ok(cudaEventRecord(fix.event, fix.a));
    fixture_ok(cudaStreamWaitEvent(fix.b, fix.event, 0));
    race();
}

static void graphs(void **state) {
    (void)state;
    float back[COUNT];
    cudaGraphExec_t exec = instantiate();
    fixture_set(back, 100);
    fixture_up(fix.other, back, fix.a);
    for (int i = 0; i < 2; i++) {
        fixture_ok(cudaGraphLaunch(exec, fix.a));
        fixture_set(fix.host, (float)i);
        fixture_down(back, fix.device, fix.a);
        fixture_finish(fix.a);
        fixture_check(back, 100 + (float)i, 2);
    }
    fixture_ok(cudaGraphExecDestroy(exec));
    dies(destroys_early, "has not seen the end");
    dies(launches_in_a_race, "race: ");
    dies(captures_a_race, "race: ");
}

static void broken_captures(void **state) {
    (void)state;
    cudaGraph_t graph;
    void *p;
    assert_int_equal(capture(&graph, false), cudaErrorStreamCaptureUnjoined);
    assert_null(graph);
    for (int i = 0; i < 3; i++) {
        fixture_ok(cudaStreamBeginCapture(fix.a, cudaStreamCaptureModeThreadLocal));
        fixture_ok(cudaEventRecord(fix.event, fix.a));
        if (i == 0)
            assert_int_equal(cudaStreamQuery(fix.a), cudaErrorStreamCaptureUnsupported);
        else if (i == 1)
            assert_int_equal(cudaEventQuery(fix.event), cudaErrorCapturedEvent);
        else
            assert_int_equal(cudaMalloc(&p, 1), cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaMemsetAsync(fix.device, 0, BYTES, fix.a),
                         cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(fix.a, &graph), cudaErrorStreamCaptureInvalidated);
    }
    cudaGetLastError();
}

static void fails_as_planned(void) {
    void *p;
    setenv("DDPIPE_STANDIN_FAIL", "cudaHostAlloc:2:3", 1);
    setenv("RANK", "2", 1);
    fixture_ok(cudaHostAlloc(&p, 8, 0));
    fixture_ok(cudaHostAlloc(&p, 8, 0));
    setenv("DDPIPE_STANDIN_FAIL", "cudaHostAlloc:3:2", 1);
    assert_int_equal(cudaHostAlloc(&p, 8, 0), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    setenv("DDPIPE_STANDIN_FAIL", "launch:1", 1);
    if (kernels_swap(fix.device, fix.other, COUNT, fix.a) != SYSTEM_FAILED)
        _exit(1);
    exit(0);
}

static void leaks(void) {
    setenv("DDPIPE_STANDIN_LEAKS", "1", 1);
    setenv("DDPIPE_STANDIN_COUNTS", "/dev/stderr", 1);
    fixture_ok(cudaFree(NULL));
    fixture_ok(cudaFree(NULL));
    exit(0);
}

static void failures_and_leaks(void **state) {
    (void)state;
    const int rc = fixture_child(fails_as_planned);
    if (rc)
        fail_msg("%d: %s", rc, fix.said);
    assert_int_equal(fixture_child(leaks), LEAK);
    assert_non_null(strstr(fix.said, "2 device allocations 1 events 2 streams"));
    assert_non_null(strstr(fix.said, "cudaFree 2\n"));
}

static void sees(const char *gpus, const char *visible, cudaError_t e, int count, const char *id) {
    int seen = -1;
    char first[16] = "";
    setenv("DDPIPE_STANDIN_GPUS", gpus, 1);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    if (!*visible)
        unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(cudaGetDeviceCount(&seen), e);
    assert_int_equal(seen, count);
    if (!e)
        fixture_ok(cudaDeviceGetPCIBusId(first, sizeof first, 0));
    assert_string_equal(first, id);
    assert_int_equal(cudaSetDevice(5) == cudaSuccess, 0);
    unsetenv("DDPIPE_STANDIN_GPUS");
    unsetenv("CUDA_VISIBLE_DEVICES");
    cudaGetLastError();
}

static void devices(void **state) {
    (void)state;
    sees("1", "", cudaSuccess, 1, "0000:10:00.0");
    sees("3", "2,0,7,1", cudaSuccess, 2, "0000:12:00.0");
    sees("3", "-1", cudaErrorNoDevice, -1, "");
    sees("0", "", cudaErrorNoDevice, -1, "");
    sees("none", "", cudaErrorInsufficientDriver, -1, "");
}

static void kernel_adds(void **state) {
    (void)state;
    float back[COUNT];
    fixture_set(fix.host, 3);
    fixture_up(fix.device, fix.host, fix.a);
    fixture_up(fix.other, fix.host, fix.a);
    assert_int_equal(kernels_add(fix.device, fix.device, fix.other, KERNELS_FP32, COUNT, fix.a), 0);
    fixture_down(back, fix.device, fix.a);
    assert_int_equal(fixture_finish(fix.a), 4);
    fixture_check(back, 6, 2);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_open, fixture_close)
    const struct CMUnitTest tests[] = {
        TEST(runs_when_asked), TEST(memory_begins_as_no_number),
        TEST(races),           TEST(events_order),
        TEST(bounds),          TEST(graphs),
        TEST(broken_captures), TEST(failures_and_leaks),
        TEST(devices),         TEST(kernel_adds),

    };
    return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
