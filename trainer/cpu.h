/* cpu: what the files of the oneDNN backend share. backend_cpu.c is its table; cpu_memory.c owns
 * the engine and all memory; cpu_conv.c, cpu_norm.c and cpu_pool.c turn layers into primitives;
 * cpu_loops.c has the operations that are plain loops over memory.
 *
 * An operation becomes two short lists of steps; a step is a oneDNN primitive with its arguments,
 * or a function. Source of all primitives' semantics: oneDNN 2.6 developer guide. */
#ifndef DDPIPE_CPU_H
#define DDPIPE_CPU_H

#include "trainer/backend.h"
#include <oneapi/dnnl/dnnl.h>

/* A failed call leaves nothing to go back to: names call, place and status, ends with 111. */
#define DNNL_CHECK(call) cpu_check((call), #call, __FILE__, __LINE__)
void cpu_check(dnnl_status_t status, const char *call, const char *file, int line);

struct cpu;

struct cpu_step {
    dnnl_primitive_t primitive; /* or NULL and */
    void (*run)(struct op *op);
    dnnl_exec_arg_t args[10];
    int count;
};

struct cpu_op {
    struct cpu_step forward[6], backward[9];
    int forward_count, backward_count;
    dnnl_primitive_desc_t hint; /* of forward, for backward */
    float *mean, *variance;     /* BATCHNORM: of the batch (variance biased) */
    double count;               /* BATCHNORM: values behind each */
    struct cpu_sync_norm *sync; /* BATCHNORM with statistics over all ranks */
    float *partial;             /* gradient to be added to in->grad */
    uint8_t *kept;              /* DROPOUT: 1 where passed on */
    dnnl_memory_t workspace;    /* pools, BATCHNORM: from forward to backward */
};

enum cpu_pass { CPU_FORWARD, CPU_BACKWARD };

struct cpu *cpu_open(void);
void cpu_close(struct cpu **cpu);

/* An object that cpu_close destroys. */
void cpu_own(struct cpu *cpu, void *object, void (*destroy)(void *object));

/* The next plan takes its memory from the workspace's start. */
void cpu_rewind(struct cpu *cpu);

void cpu_execute(struct cpu *cpu, dnnl_primitive_t primitive, int count,
                 const dnnl_exec_arg_t *args);

/* Copies between two orders at once, outside any step. */
void cpu_reorder_now(struct cpu *cpu, const dnnl_memory_desc_t *from, const float *in,
                     const dnnl_memory_desc_t *to, float *out);

/* Memory in the plan's workspace, zeroed when first used. Ends the process where there is none. */
void *cpu_take(struct cpu *cpu, size_t bytes);

dnnl_engine_t cpu_engine(struct cpu *cpu);

/* Objects that live until the backend closes. data NULL: memory from the workspace. */
dnnl_memory_t cpu_memory(struct cpu *cpu, const dnnl_memory_desc_t *md, void *data);
dnnl_primitive_t cpu_primitive(struct cpu *cpu, dnnl_primitive_desc_t pd);
/* Creates a primitive descriptor; hint and attr may be NULL. */
dnnl_primitive_desc_t cpu_describe(struct cpu *cpu, const void *op_desc, dnnl_primitive_attr_t attr,
                                   dnnl_primitive_desc_t hint);
const dnnl_memory_desc_t *cpu_query(dnnl_primitive_desc_t pd, dnnl_query_t what);

dnnl_memory_desc_t cpu_plain(int rank, const int *dims);
dnnl_memory_desc_t cpu_any(const dnnl_memory_desc_t *like);

/* The order of a tensor or weight; the memory of a tensor's data or gradient. */
const dnnl_memory_desc_t *cpu_order(const struct tensor *t);
dnnl_memory_t cpu_data(struct cpu *cpu, const struct tensor *t);
dnnl_memory_t cpu_grad(struct cpu *cpu, const struct tensor *t);

/* Gives a tensor this order and memory for its data. */
void cpu_tensor_open(struct cpu *cpu, struct tensor *t, const dnnl_memory_desc_t *md);

/* A copy of a descriptor that lives until close. */
dnnl_memory_desc_t *cpu_keep_order(struct cpu *cpu, const dnnl_memory_desc_t *md);

/* Appends an empty step to a pass. */
struct cpu_step *cpu_step(struct op *op, enum cpu_pass pass);
void cpu_arg(struct cpu_step *step, int id, dnnl_memory_t memory);

/* Gives op->out the order of the primitive's result and appends its step, reading op->in as it
 * lies; returned for further arguments. */
struct cpu_step *cpu_forward_step(struct cpu *cpu, struct op *op, dnnl_primitive_desc_t pd);

/* The memory, or, where the orders differ, a copy that a reorder step refreshes. */
dnnl_memory_t cpu_as(struct cpu *cpu, struct op *op, enum cpu_pass pass,
                     const dnnl_memory_desc_t *have, dnnl_memory_t memory,
                     const dnnl_memory_desc_t *want);
/* Appends a reorder step between existing memories, none where they are the same. */
void cpu_reorder(struct cpu *cpu, struct op *op, enum cpu_pass pass, const dnnl_memory_desc_t *from,
                 dnnl_memory_t from_memory, const dnnl_memory_desc_t *to, dnnl_memory_t to_memory);

/* Where a backward primitive with this diff_src order writes; cpu_grad_done, called after its step
 * was appended, brings it to in->grad (reordered, added) by further steps. */
dnnl_memory_t cpu_grad_target(struct cpu *cpu, struct op *op, const dnnl_memory_desc_t *md);
void cpu_grad_done(struct cpu *cpu, struct op *op, const dnnl_memory_desc_t *md,
                   dnnl_memory_t target);

/* cpu_conv.c: CONV and LINEAR */
void cpu_weight_order(struct cpu *cpu, const struct layer *layer, struct shape in,
                      dnnl_memory_desc_t *md);
void cpu_conv_open(struct cpu *cpu, struct op *op);
void cpu_conv_backward_open(struct cpu *cpu, struct op *op);
void cpu_linear_open(struct cpu *cpu, struct op *op);
void cpu_linear_backward_open(struct cpu *cpu, struct op *op);
/* cpu_norm.c: BATCHNORM */
void cpu_norm_open(struct cpu *cpu, struct op *op);
void cpu_norm_backward_open(struct cpu *cpu, struct op *op);
/* cpu_sync_norm.c: BATCHNORM with statistics over all ranks */
void cpu_sync_norm_open(struct cpu *cpu, struct op *op);
void cpu_sync_norm_backward_open(struct cpu *cpu, struct op *op);
/* cpu_pool.c: MAXPOOL, AVGPOOL, GELU */
void cpu_pool_open(struct cpu *cpu, struct op *op);
void cpu_pool_backward_open(struct cpu *cpu, struct op *op);
void cpu_gelu_open(struct cpu *cpu, struct op *op);
void cpu_gelu_backward_open(struct cpu *cpu, struct op *op);

/* cpu_loops.c: OpenMP loops; each keeps the contract of its twin in backend.h. */
void cpu_add_forward(struct op *op);
void cpu_scale_forward(struct op *op);
void cpu_scale_backward(struct op *op);
void cpu_dropout_forward(struct op *op);
void cpu_dropout_backward(struct op *op);
void cpu_relu_mask(struct op *op);      /* out->grad = 0 where out->data is 0 */
void cpu_add_partial(struct op *op);    /* in->grad += partial */
void cpu_running_update(struct op *op); /* running statistics from mean and variance */
void cpu_input(struct backend *b, struct tensor *t, const uint8_t *pixels, const float *scale,
               const float *shift);
void cpu_loss(struct backend *b, struct tensor *logits, const int32_t *labels, float smoothing);
void cpu_sgd(struct backend *b, float *w, const float *grad, float *v,
             const struct backend_group *groups, int count, float scale, float momentum,
             bool nesterov);
void cpu_adam(struct backend *b, float *w, const float *grad, float *m, float *v,
              const struct backend_group *groups, int count, float scale, float beta1, float beta2,
              float eps, int64_t t);
void cpu_lerp(struct backend *b, float *a, const float *to, float fraction, size_t count);
void cpu_add(struct backend *b, float *a, const float *x, size_t count);
void cpu_swap(struct backend *b, float *a, float *c, size_t count);

#endif
