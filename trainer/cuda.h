/* cuda: what the files of the CUDA backend share. backend_cuda.c is its table; cuda_device.c finds
 * and opens the GPU and waits for it; cuda_memory.c owns all memory; cuda_step.c brings in what
 * changes from step to step, records steps and runs them again; cuda_layers.c turns layers into
 * launches; cuda_tune.c makes cuDNN's graphs and chooses among their plans; comm_nccl.c has the
 * collectives.
 *
 * Streams: everything runs on `compute` in the order of the calls, but two things. Batches are
 * uploaded on `upload`, ahead of the step that reads them; NCCL runs on `reduce`. Events join them
 * where one reads what another wrote. */
#ifndef DDPIPE_CUDA_H
#define DDPIPE_CUDA_H

#include "trainer/backend_cuda.h"
#include "trainer/comm_nccl.h"
#include "trainer/cudnn_graph.h"
#include "trainer/kernels.h"
#include "trainer/net.h"
#include <cuda_runtime_api.h>

/* A failed call leaves nothing to go back to: names call, place and error, ends with 111. */
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
void cuda_check(cudaError_t error, const char *call, const char *file, int line);

/* The same for functions that have reported by themselves. */
void cuda_must(int rc);

enum { CUDA_RECORDINGS_MAX = 3 * NET_PLANS_MAX + NET_PLANS_MAX, CUDA_SLOTS = 3 };

/* What changes from step to step and has a fixed size; labels and pixels lie behind it. */
struct cuda_inbox {
    struct kernels_step step;
    float scale[4], shift[4]; /* of the input */
    uint64_t seeds[MODEL_LAYERS_MAX];
    struct backend_group groups[NET_PARAMS_MAX];
};

/* One step's values on their way: host (pinned), then device, then the inbox itself. */
struct cuda_slot {
    char *host, *device;
    cudaEvent_t sent;  /* host may be written again */
    cudaEvent_t taken; /* device may be */
};

struct cuda_recording {
    const void *plan;
    int kind;
    int passes;     /* 0: runs by its calls; 1: is recorded; from 2: is run again */
    uint64_t calls; /* digest of them and of what they fix */
    cudaGraphExec_t graph;
};

enum cuda_mode { CUDA_CALLS, CUDA_RECORD, CUDA_REPLAY };

struct cuda_steps {
    struct cuda_slot slots[CUDA_SLOTS];
    int slot;                                   /* in use */
    char *inbox;                                /* device */
    size_t labels_at, pixels_at, bytes, filled; /* filled: bytes of this step's slot */
    enum cuda_mode mode;
    struct cuda_recording recordings[CUDA_RECORDINGS_MAX], *now; /* now: NULL: none fits */
    int count;
    uint64_t calls;
};

struct cuda_buffer { /* device memory that grows */
    char *begin;
    size_t bytes;
};

struct cuda_arena { /* of the backend's alloc */
    float *begin;
    size_t count;
    char *copy; /* in 16 bits, for cuDNN; NULL: not wanted */
    bool stale; /* the copy is older */
};

struct cuda_chunk {
    char *begin;
    size_t size;
};

enum { CUDA_ARENAS_MAX = 16, CUDA_CHUNKS_MAX = 1024, CUDA_GRAPHS_MAX = 512 };

struct cuda_graph {
    char text[CUDNN_GRAPH_TEXT];
    struct cudnn_graph graph;
};

struct cuda {
    cudaStream_t compute, upload, reduce;
    cudaEvent_t ready, reduced; /* compute to reduce, and back */
    bool summing;               /* compute has not waited for reduce yet */
    cudnnHandle_t cudnn;
    struct cudnn_desc device;
    char name[256]; /* of the device */
    struct comm_nccl *nccl;
    double timeout_seconds;
    bool autotune, profile;
    enum cudnn_graph_precision precision;
    enum kernels_type io; /* of activations */
    size_t io_size;
    struct cuda_arena arenas[CUDA_ARENAS_MAX];
    int arena_count;
    struct cuda_chunk chunks[CUDA_CHUNKS_MAX]; /* of plans; cursor of the one being opened: */
    int chunk_count, chunk_now;
    size_t chunk_used;
    int seed_count;                        /* of the plan that is being opened */
    struct cuda_buffer workspace, scratch; /* cuDNN's; tensor_get's */
    struct kernels_totals *totals;         /* device */
    double *sums;                          /* device: of all ranks */
    char *landing;                         /* pinned: both on their way */
    struct kernels_scaler *scaler;         /* device; FP16 */
    struct cuda_graph *graphs[CUDA_GRAPHS_MAX];
    int graph_count;
    struct cuda_steps steps;
};

/* cuda_device.c */
int cuda_device_open(struct cuda *c, const struct backend_cuda_options *options);
void cuda_device_close(struct cuda *c);
/* Until all work on the stream, or before the event, is done. Beyond the timeout, or where a rank
 * has died, the process ends. */
void cuda_wait(struct cuda *c, cudaStream_t stream);
void cuda_wait_event(struct cuda *c, cudaEvent_t event);
/* Before the end: waits for a short while, then aborts NCCL, on which the rest may hang. */
void cuda_drain(struct cuda *c);

/* cuda_memory.c */
float *cuda_alloc(struct backend *b, size_t count);
void cuda_read(struct backend *b, float *host, const float *from, size_t count);
void cuda_write(struct backend *b, float *to, const float *host, size_t count);
void *cuda_take(struct cuda *c, size_t bytes); /* of the plan that is being opened */
void cuda_rewind(struct cuda *c);
void cuda_grow(struct cuda *c, struct cuda_buffer *buffer, size_t bytes); /* once it is idle */
/* What cuDNN reads of these parameters: themselves, or their 16-bit copy. */
void *cuda_param(struct cuda *c, const float *param);
struct cuda_arena *cuda_arena_of(struct cuda *c, const float *x);
void cuda_touched(struct cuda *c, const float *x); /* a copy of x is stale from now on */
void cuda_refresh(struct cuda *c);                 /* stale copies */
void cuda_memory_close(struct cuda *c);

/* cuda_step.c. A launcher that may be called within a step begins with `if (cuda_skips(…))
 * return;`: true where a recording does its work. what: tells one call from another. */
bool cuda_skips(struct cuda *c, const void *what, double number);
void cuda_step_open(struct cuda *c);
void cuda_step_close(struct cuda *c);
void cuda_step_fit(struct cuda *c, struct shape images); /* room for such a batch */
void cuda_step_next(struct cuda *c);                     /* a pass begins */
void cuda_step_begin(struct backend *b, const void *plan, int kind);
void cuda_step_end(struct backend *b);
void cuda_forget(struct cuda *c); /* recordings: their addresses are no longer true */
/* Puts a value into the inbox at this offset; where it will be on the device. */
void *cuda_put(struct cuda *c, size_t at, const void *value, size_t bytes);

/* cuda_layers.c: the contracts of backend.h. */
int cuda_weight_open(struct backend *b, const struct layer *layer, struct shape in,
                     struct weight *w);
void cuda_weight_put(struct backend *b, const struct weight *w, const float *plain, float *native);
void cuda_weight_get(struct backend *b, const struct weight *w, const float *native, float *plain);
int cuda_input_open(struct backend *b, struct tensor *t);
int cuda_grad_open(struct backend *b, struct tensor *t);
int cuda_op_open(struct backend *b, struct op *op);
int cuda_backward_open(struct backend *b, struct op *op);
void cuda_op_close(struct backend *b, struct op *op);
void cuda_forward(struct backend *b, struct op *op);
void cuda_backward(struct backend *b, struct op *op);

/* cuda_tune.c: the graph for this spec, made at its first use, with the plan that it shall run.
 * pointers: what it will first run on, to time it. */
int cuda_graph(struct cuda *c, const struct cudnn_graph_spec *spec,
               void *const pointers[CUDNN_GRAPH_ROLES], struct cudnn_graph **graph);
void cuda_graphs_close(struct cuda *c);

#endif
