/* cpu_memory.c: engine and memory of the oneDNN backend, and the steps' small parts.
 *
 * Parameters live in blocks of their own; everything of a plan comes from a workspace of large
 * chunks that every plan takes from its start again, since only one plan runs at a time. */
#include "lib/log.h"
#include "trainer/cpu.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { CHUNKS_MAX = 64, CHUNK_BYTES = 64 << 20 };

struct owned {
    void *object;
    void (*destroy)(void *object);
};

struct chunk {
    char *begin;
    size_t size;
};

struct cpu {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct owned *owned;
    size_t owned_count, owned_room;
    struct chunk chunks[CHUNKS_MAX];
    int chunk_count, chunk_now; /* cursor of the plan being opened: */
    size_t chunk_used;
};

void cpu_check(dnnl_status_t status, const char *call, const char *file, int line) {
    if (status != dnnl_success)
        exit(fail(SYSTEM_FAILED, "%s:%d: %s: oneDNN status %d", file, line, call, (int)status));
}

void cpu_own(struct cpu *cpu, void *object, void (*destroy)(void *)) {
    if (cpu->owned_count == cpu->owned_room) {
        cpu->owned_room = cpu->owned_room ? 2 * cpu->owned_room : 256;
        cpu->owned = realloc(cpu->owned, cpu->owned_room * sizeof *cpu->owned);
        if (!cpu->owned)
            exit(fail(SYSTEM_FAILED, "out of memory"));
    }
    cpu->owned[cpu->owned_count++] = (struct owned){object, destroy};
}

static void destroy_memory(void *p) {
    dnnl_memory_destroy(p);
}
static void destroy_primitive(void *p) {
    dnnl_primitive_destroy(p);
}
static void destroy_description(void *p) {
    dnnl_primitive_desc_destroy(p);
}

/* Large pages spare the page faults of a first touch; the kernel may decline. */
static void *map_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void *cpu_take(struct cpu *cpu, size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    while (cpu->chunk_now < cpu->chunk_count &&
           cpu->chunk_used + bytes > cpu->chunks[cpu->chunk_now].size) {
        cpu->chunk_now++;
        cpu->chunk_used = 0;
    }
    if (cpu->chunk_now == cpu->chunk_count) {
        struct chunk c = {.size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES};
        c.begin = cpu->chunk_count < CHUNKS_MAX ? map_memory(c.size) : NULL;
        if (!c.begin)
            exit(fail(SYSTEM_FAILED, "no memory for %zu bytes of activations", c.size));
        cpu->chunks[cpu->chunk_count++] = c;
        cpu->chunk_used = 0;
    }
    void *p = cpu->chunks[cpu->chunk_now].begin + cpu->chunk_used;
    cpu->chunk_used += bytes;
    return p;
}

dnnl_engine_t cpu_engine(struct cpu *cpu) {
    return cpu->engine;
}

dnnl_memory_t cpu_memory(struct cpu *cpu, const dnnl_memory_desc_t *md, void *data) {
    dnnl_memory_t m;
    if (!data)
        data = cpu_take(cpu, dnnl_memory_desc_get_size(md));
    DNNL_CHECK(dnnl_memory_create(&m, md, cpu->engine, data));
    cpu_own(cpu, m, destroy_memory);
    return m;
}

dnnl_primitive_t cpu_primitive(struct cpu *cpu, dnnl_primitive_desc_t pd) {
    dnnl_primitive_t p;
    DNNL_CHECK(dnnl_primitive_create(&p, pd));
    cpu_own(cpu, p, destroy_primitive);
    return p;
}

dnnl_primitive_desc_t cpu_describe(struct cpu *cpu, const void *op_desc, dnnl_primitive_attr_t attr,
                                   dnnl_primitive_desc_t hint) {
    dnnl_primitive_desc_t pd;
    DNNL_CHECK(dnnl_primitive_desc_create(&pd, op_desc, attr, cpu->engine, hint));
    cpu_own(cpu, pd, destroy_description);
    return pd;
}

const dnnl_memory_desc_t *cpu_query(dnnl_primitive_desc_t pd, dnnl_query_t what) {
    return dnnl_primitive_desc_query_md(pd, what, 0);
}

dnnl_memory_desc_t cpu_plain(int rank, const int *dims) {
    dnnl_memory_desc_t md;
    dnnl_dims_t d = {0};
    for (int i = 0; i < rank; i++)
        d[i] = dims[i];
    DNNL_CHECK(dnnl_memory_desc_init_by_tag(&md, rank, d, dnnl_f32,
                                            rank == 1   ? dnnl_a
                                            : rank == 2 ? dnnl_ab
                                                        : dnnl_abcd));
    return md;
}

dnnl_memory_desc_t cpu_any(const dnnl_memory_desc_t *like) {
    dnnl_memory_desc_t md;
    DNNL_CHECK(
        dnnl_memory_desc_init_by_tag(&md, like->ndims, like->dims, dnnl_f32, dnnl_format_tag_any));
    return md;
}

const dnnl_memory_desc_t *cpu_order(const struct tensor *t) {
    return t->layout;
}

dnnl_memory_t cpu_data(struct cpu *cpu, const struct tensor *t) {
    return cpu_memory(cpu, t->layout, t->data);
}

dnnl_memory_t cpu_grad(struct cpu *cpu, const struct tensor *t) {
    return cpu_memory(cpu, t->layout, t->grad);
}

dnnl_memory_desc_t *cpu_keep_order(struct cpu *cpu, const dnnl_memory_desc_t *md) {
    dnnl_memory_desc_t *kept = malloc(sizeof *kept);
    if (!kept)
        exit(fail(SYSTEM_FAILED, "out of memory"));
    *kept = *md;
    cpu_own(cpu, kept, free);
    return kept;
}

void cpu_tensor_open(struct cpu *cpu, struct tensor *t, const dnnl_memory_desc_t *md) {
    t->layout = cpu_keep_order(cpu, md);
    t->count = dnnl_memory_desc_get_size(md) / sizeof(float);
    t->data = cpu_take(cpu, t->count * sizeof(float));
}

struct cpu_step *cpu_step(struct op *op, enum cpu_pass pass) {
    struct cpu_op *state = op->state;
    if (pass == CPU_FORWARD)
        return &state->forward[state->forward_count++];
    return &state->backward[state->backward_count++];
}

void cpu_arg(struct cpu_step *step, int id, dnnl_memory_t memory) {
    step->args[step->count++] = (dnnl_exec_arg_t){id, memory};
}

struct cpu_step *cpu_forward_step(struct cpu *cpu, struct op *op, dnnl_primitive_desc_t pd) {
    cpu_tensor_open(cpu, op->out, cpu_query(pd, dnnl_query_dst_md));
    struct cpu_step *s = cpu_step(op, CPU_FORWARD);
    s->primitive = cpu_primitive(cpu, pd);
    cpu_arg(s, DNNL_ARG_SRC, cpu_data(cpu, op->in));
    cpu_arg(s, DNNL_ARG_DST, cpu_data(cpu, op->out));
    return s;
}

static dnnl_primitive_t reorder_primitive(struct cpu *cpu, const dnnl_memory_desc_t *from,
                                          const dnnl_memory_desc_t *to, float add) {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    DNNL_CHECK(dnnl_primitive_attr_create(&attr));
    DNNL_CHECK(dnnl_post_ops_create(&post));
    if (add != 0)
        DNNL_CHECK(dnnl_post_ops_append_sum(post, add));
    DNNL_CHECK(dnnl_primitive_attr_set_post_ops(attr, post));
    DNNL_CHECK(dnnl_reorder_primitive_desc_create(&pd, from, cpu->engine, to, cpu->engine, attr));
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
    cpu_own(cpu, pd, destroy_description);
    return cpu_primitive(cpu, pd);
}

void cpu_reorder(struct cpu *cpu, struct op *op, enum cpu_pass pass, const dnnl_memory_desc_t *from,
                 dnnl_memory_t from_memory, const dnnl_memory_desc_t *to, dnnl_memory_t to_memory) {
    if (from_memory == to_memory)
        return;
    struct cpu_step *s = cpu_step(op, pass);
    s->primitive = reorder_primitive(cpu, from, to, 0);
    cpu_arg(s, DNNL_ARG_FROM, from_memory);
    cpu_arg(s, DNNL_ARG_TO, to_memory);
}

dnnl_memory_t cpu_as(struct cpu *cpu, struct op *op, enum cpu_pass pass,
                     const dnnl_memory_desc_t *have, dnnl_memory_t memory,
                     const dnnl_memory_desc_t *want) {
    if (dnnl_memory_desc_equal(have, want))
        return memory;
    dnnl_memory_t copy = cpu_memory(cpu, want, NULL);
    cpu_reorder(cpu, op, pass, have, memory, want, copy);
    return copy;
}

dnnl_memory_t cpu_grad_target(struct cpu *cpu, struct op *op, const dnnl_memory_desc_t *md) {
    struct cpu_op *state = op->state;
    bool same = dnnl_memory_desc_equal(md, cpu_order(op->in));
    if (same && !op->accumulate)
        return cpu_grad(cpu, op->in);
    state->partial = cpu_take(cpu, dnnl_memory_desc_get_size(md));
    return cpu_memory(cpu, md, state->partial);
}

void cpu_grad_done(struct cpu *cpu, struct op *op, const dnnl_memory_desc_t *md,
                   dnnl_memory_t target) {
    struct cpu_op *state = op->state;
    if (!state->partial)
        return;
    struct cpu_step *s = cpu_step(op, CPU_BACKWARD);
    if (dnnl_memory_desc_equal(md, cpu_order(op->in))) {
        s->run = cpu_add_partial;
        return;
    }
    s->primitive = reorder_primitive(cpu, md, cpu_order(op->in), op->accumulate ? 1.f : 0.f);
    cpu_arg(s, DNNL_ARG_FROM, target);
    cpu_arg(s, DNNL_ARG_TO, cpu_grad(cpu, op->in));
}

void cpu_reorder_now(struct cpu *cpu, const dnnl_memory_desc_t *from, const float *in,
                     const dnnl_memory_desc_t *to, float *out) {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t p;
    dnnl_memory_t a, c;
    DNNL_CHECK(dnnl_memory_create(&a, from, cpu->engine, (void *)(uintptr_t)in));
    DNNL_CHECK(dnnl_memory_create(&c, to, cpu->engine, out));
    DNNL_CHECK(dnnl_reorder_primitive_desc_create(&pd, from, cpu->engine, to, cpu->engine, NULL));
    DNNL_CHECK(dnnl_primitive_create(&p, pd));
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, a}, {DNNL_ARG_TO, c}};
    DNNL_CHECK(dnnl_primitive_execute(p, cpu->stream, 2, args));
    DNNL_CHECK(dnnl_stream_wait(cpu->stream));
    dnnl_primitive_destroy(p);
    dnnl_primitive_desc_destroy(pd);
    dnnl_memory_destroy(a);
    dnnl_memory_destroy(c);
}

void cpu_execute(struct cpu *cpu, dnnl_primitive_t primitive, int count,
                 const dnnl_exec_arg_t *args) {
    DNNL_CHECK(dnnl_primitive_execute(primitive, cpu->stream, count, args));
}

void cpu_rewind(struct cpu *cpu) {
    cpu->chunk_now = 0;
    cpu->chunk_used = 0;
}

struct cpu *cpu_open(void) {
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        exit(fail(SYSTEM_FAILED, "out of memory"));
    DNNL_CHECK(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0));
    DNNL_CHECK(dnnl_stream_create(&cpu->stream, cpu->engine, dnnl_stream_default_flags));
    return cpu;
}

void cpu_close(struct cpu **out) {
    struct cpu *cpu = *out;
    while (cpu->owned_count) {
        struct owned *o = &cpu->owned[--cpu->owned_count];
        o->destroy(o->object);
    }
    free(cpu->owned);
    for (int i = 0; i < cpu->chunk_count; i++)
        munmap(cpu->chunks[i].begin, cpu->chunks[i].size);
    dnnl_stream_destroy(cpu->stream);
    dnnl_engine_destroy(cpu->engine);
    free(cpu);
    *out = NULL;
}
