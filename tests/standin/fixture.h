/* fixture: what the tests of the stand-in share: a device with two streams, an event and two
 * arrays, and children that are expected to end badly. */
#ifndef DDPIPE_STANDIN_FIXTURE_H
#define DDPIPE_STANDIN_FIXTURE_H

#include <cuda_runtime_api.h>

enum { COUNT = 100, BYTES = COUNT * sizeof(float), RACE = 99, LEAK = 98 };

extern struct fixture {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *device, *other, host[COUNT];
    char said[4096]; /* by the last child, on stderr */
} fix;

/* cmocka's setup and teardown. */
int fixture_open(void **state);
int fixture_close(void **state);

/* Fails the test after an error. */
void fixture_ok(cudaError_t e);
/* Waits for the stream: how often the answer is "not ready". */
int fixture_finish(cudaStream_t stream);
/* x[i] = first + i */
void fixture_set(float *x, float first);
/* Fails the test unless x[i] = first + step·i. */
void fixture_check(const float *x, float first, float step);
/* Copies an array to and from the device. */
void fixture_up(float *to, const float *from, cudaStream_t stream);
void fixture_down(float *to, const float *from, cudaStream_t stream);
/* The exit code of a child that does it, or less than 0 after a signal. */
int fixture_child(void (*what)(void));

#endif
