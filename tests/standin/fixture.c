/* fixture.c: see fixture.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "tests/standin/fixture.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture fix;

void fixture_ok(cudaError_t e) {
    if (e)
        fail_msg("%s", cudaGetErrorString(e));
}

int fixture_finish(cudaStream_t stream) {
    int polls = 0;
    cudaError_t e;
    while ((e = cudaStreamQuery(stream)) == cudaErrorNotReady)
        polls++;
    fixture_ok(e);
    return polls;
}

void fixture_set(float *x, float first) {
    for (int i = 0; i < COUNT; i++)
        x[i] = first + (float)i;
}

void fixture_check(const float *x, float first, float step) {
    for (int i = 0; i < COUNT; i++)
        assert_true(x[i] == first + step * (float)i);
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    fixture_ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    return stream;
}

static float *new_memory(void) {
    void *p;
    fixture_ok(cudaMalloc(&p, BYTES));
    return p;
}

void fixture_up(float *to, const float *from, cudaStream_t stream) {
    fixture_ok(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyHostToDevice, stream));
}

void fixture_down(float *to, const float *from, cudaStream_t stream) {
    fixture_ok(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDeviceToHost, stream));
}

int fixture_open(void **state) {
    (void)state;
    fix.a = new_stream();
    fix.b = new_stream();
    fixture_ok(cudaEventCreateWithFlags(&fix.event, cudaEventDefault));
    fix.device = new_memory();
    fix.other = new_memory();
    return 0;
}

int fixture_close(void **state) {
    (void)state;
    fixture_finish(fix.a);
    fixture_finish(fix.b);
    fixture_ok(cudaFree(fix.device));
    fixture_ok(cudaFree(fix.other));
    fixture_ok(cudaEventDestroy(fix.event));
    fixture_ok(cudaStreamDestroy(fix.a));
    fixture_ok(cudaStreamDestroy(fix.b));
    return 0;
}

int fixture_child(void (*what)(void)) {
    int out[2], status;
    assert_int_equal(pipe(out), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        close(out[1]);
        what();
        exit(0);
    }
    close(out[1]);
    size_t size = 0;
    for (ssize_t n; (n = read(out[0], fix.said + size, sizeof fix.said - 1 - size)) > 0;)
        size += (size_t)n;
    fix.said[size] = 0;
    close(out[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
