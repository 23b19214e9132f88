/* cuda_cpu.cc: the scheduler of cuda_cpu.h. A fiber takes threads of the block that have not begun
 * until none is left; where its thread waits at a barrier the fiber is parked and the next one goes
 * on. When no thread can run, complete barriers open, and incomplete ones are errors. */
#include "tests/cuda/cuda_cpu.h"
#include <memory>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

cuda_cpu_thread *cuda_cpu_self;
cuda_cpu_index cuda_cpu_block, cuda_cpu_block_size, cuda_cpu_grid;

namespace {

constexpr size_t stack_bytes = 128 * 1024;
constexpr unsigned warp = 32;

enum { FRESH, READY, AT_BLOCK, AT_WARP, ENDED };
const char *const state_names[] = {"", "", "at a barrier of the block", "at a barrier of its warp"};

struct fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[stack_bytes]};
    bool idle = true, made = false;
#if defined(__SANITIZE_THREAD__)
    void *sanitizer = nullptr;
#endif
};

std::vector<std::unique_ptr<fiber>> fibers;
fiber scheduler, *current = &scheduler;
#if defined(__SANITIZE_ADDRESS__)
const void *scheduler_stack; /* learnt on the first switch away from it */
size_t scheduler_bytes;
#endif
std::vector<cuda_cpu_thread> threads;
std::vector<unsigned> order; /* of the threads */
size_t begun;                /* how many of order */
const std::function<void()> *kernel;
uint64_t block_serial, random_state = 1;
char error_text[256];

void switch_to(fiber *to) {
    fiber *from = current;
    current = to;
#if defined(__SANITIZE_ADDRESS__)
    void *fake;
    const bool main = to == &scheduler;
    __sanitizer_start_switch_fiber(&fake, main ? scheduler_stack : to->stack.get(),
                                   main ? scheduler_bytes : stack_bytes);
#elif defined(__SANITIZE_THREAD__)
    if (!from->sanitizer)
        from->sanitizer = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->sanitizer, 0);
#endif
    swapcontext(&from->context, &to->context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_bytes);
#endif
    for (;;) {
        while (begun < threads.size()) {
            cuda_cpu_thread *thread = &threads[order[begun++]];
            cuda_cpu_self = thread;
            thread->fiber = current;
            (*kernel)();
            thread->state = ENDED;
        }
        current->idle = true;
        switch_to(&scheduler);
    }
}

fiber *idle_fiber() {
    size_t i = 0;
    while (i < fibers.size() && !fibers[i]->idle)
        i++;
    if (i == fibers.size())
        fibers.emplace_back(new fiber);
    fiber *f = fibers[i].get();
    if (!f->made) {
        getcontext(&f->context);
        f->context.uc_stack = {f->stack.get(), 0, stack_bytes};
        makecontext(&f->context, fiber_main, 0);
#if defined(__SANITIZE_THREAD__)
        if (!f->sanitizer)
            f->sanitizer = __tsan_create_fiber(0);
#endif
        f->made = true;
    }
    f->idle = false;
    return f;
}

/* Ends the block from within a thread; its fibers are left as they are and made anew. */
void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
void give_up(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    if (current != &scheduler)
        switch_to(&scheduler);
}

/* Opens a barrier for threads first to last, exclusive, or finds that they are not all there. */
bool open_barrier(size_t first, size_t last, int state) {
    const cuda_cpu_thread *one = nullptr;
    for (size_t i = first; i < last; i++)
        if (threads[i].state == state)
            one = &threads[i];
    if (!one)
        return false;
    for (size_t i = first; i < last; i++) {
        const cuda_cpu_thread &t = threads[i];
        if (t.state == state && t.line == one->line)
            continue;
        if (t.state == ENDED)
            give_up("divergence: thread %u waits %s, line %d; thread %u has ended", one->index.x,
                    state_names[state], one->line, t.index.x);
        else
            give_up("divergence: thread %u waits %s, line %d; thread %u %s, line %d", one->index.x,
                    state_names[state], one->line, t.index.x, state_names[t.state], t.line);
        return false;
    }
    for (size_t i = first; i < last; i++)
        threads[i].state = READY;
    return true;
}

bool open_barriers() {
    bool opened = false;
    for (size_t i = 0; i < threads.size(); i += warp)
        opened |= open_barrier(i, i + warp < threads.size() ? i + warp : threads.size(), AT_WARP);
    return opened || open_barrier(0, threads.size(), AT_BLOCK);
}

void run_block() {
    for (size_t i = 0; i < threads.size(); i++)
        threads[i] = {{static_cast<unsigned>(i)}, 0, 0, 0, FRESH, 0, nullptr};
    begun = 0;
    block_serial++;
    while (begun < threads.size() && !*error_text)
        switch_to(idle_fiber());
    while (!*error_text && open_barriers())
        for (size_t i = 0; i < threads.size() && !*error_text; i++)
            if (threads[order[i]].state == READY) {
                cuda_cpu_self = &threads[order[i]];
                switch_to(static_cast<fiber *>(cuda_cpu_self->fiber));
            }
    if (*error_text)
        for (auto &f : fibers) {
            f->idle = true;
            f->made = false;
        }
}

void shuffle(std::vector<unsigned> *v, size_t count) { /* xorshift64, Fisher-Yates */
    v->resize(count);
    for (size_t i = 0; i < count; i++) {
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        const size_t k = random_state % (i + 1);
        (*v)[i] = (*v)[k];
        (*v)[k] = static_cast<unsigned>(i);
    }
}

void wait(int state, int line) {
    cuda_cpu_thread *self = cuda_cpu_self;
    self->state = state;
    self->line = line;
    switch_to(&scheduler);
    cuda_cpu_self = self;
}

cuda_cpu_access access_now() {
    return {cuda_cpu_self->index.x, cuda_cpu_self->block_barriers, cuda_cpu_self->warp_barriers};
}

bool ordered(const cuda_cpu_access &before, const cuda_cpu_access &now) {
    return before.thread == now.thread || before.block_barriers < now.block_barriers ||
           (before.thread / warp == now.thread / warp && before.warp_barriers < now.warp_barriers);
}

void check(const cuda_cpu_history *h, const char *name, size_t at, const char *doing) {
    const cuda_cpu_access now = access_now();
    if (h->written && !ordered(h->writer, now))
        give_up("race: %s[%zu] written by thread %u, %s by thread %u", name, at, h->writer.thread,
                doing, now.thread);
}

void forget_other_blocks(cuda_cpu_history *h) {
    if (h->block == block_serial)
        return;
    h->block = block_serial;
    h->written = false;
    h->readers.clear();
}

} // namespace

const char *cudaGetErrorString(cudaError_t) {
    return error_text;
}

cudaError_t cuda_cpu_run(unsigned blocks, unsigned count, const std::function<void()> &body) {
    *error_text = 0;
    if (!blocks || !count || count > 1024) {
        snprintf(error_text, sizeof error_text, "%u blocks of %u threads", blocks, count);
        return 1;
    }
    std::vector<unsigned> block_order;
    shuffle(&block_order, blocks);
    shuffle(&order, count);
    threads.resize(count);
    kernel = &body;
    cuda_cpu_grid = {blocks};
    cuda_cpu_block_size = {count};
    for (size_t i = 0; i < blocks && !*error_text; i++) {
        cuda_cpu_block = {block_order[i]};
        run_block();
    }
    return *error_text ? 1 : 0;
}

void __syncthreads(int line) {
    wait(AT_BLOCK, line);
    cuda_cpu_self->block_barriers++;
}

void __syncwarp(unsigned mask, int line) {
    if (mask != 0xffffffffU)
        give_up("__syncwarp with the mask %#x, line %d: not simulated", mask, line);
    wait(AT_WARP, line);
    cuda_cpu_self->warp_barriers++;
}

uint64_t cuda_cpu_exchange(unsigned mask, uint64_t bits, unsigned from, int line) {
    const unsigned self = cuda_cpu_self->index.x;
    if (mask != 0xffffffffU || threads.size() % warp)
        give_up("a shuffle without all 32 lanes, line %d", line);
    cuda_cpu_self->exchange = bits;
    wait(AT_WARP, line);
    const uint64_t got = threads[from < warp ? self / warp * warp + from : self].exchange;
    wait(AT_WARP, line); /* before the next shuffle overwrites what others still read */
    return got;
}

void cuda_cpu_read(cuda_cpu_history *h, const char *name, size_t at) {
    forget_other_blocks(h);
    if (!h->written)
        give_up("%s[%zu] read by thread %u before it was written", name, at,
                cuda_cpu_self->index.x);
    check(h, name, at, "read");
    h->readers.push_back(access_now());
}

void cuda_cpu_write(cuda_cpu_history *h, const char *name, size_t at) {
    forget_other_blocks(h);
    check(h, name, at, "written");
    for (const cuda_cpu_access &reader : h->readers)
        if (!ordered(reader, access_now()))
            give_up("race: %s[%zu] read by thread %u, written by thread %u", name, at,
                    reader.thread, cuda_cpu_self->index.x);
    h->readers.clear();
    h->written = true;
    h->writer = access_now();
}

void cuda_cpu_beyond(const char *name, size_t at) {
    give_up("%s[%zu] lies beyond its end", name, at);
    abort(); /* the scheduler does not come back */
}
