/* parallel: a counter of pieces that threads draw from, so that long pieces and slow CPUs even
 * out by themselves. The calling thread works too: one thread means no thread is started. */
#include "lib/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/log.h"
#include "lib/stop.h"

enum { THREADS_MAX = 256 };

struct work {
    size_t count;
    int (*piece)(void *context, size_t index);
    void *context;
    atomic_size_t next;
    atomic_int result;
};

int parallel_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    int count = CPU_COUNT(&set);
    return count < 1 ? 1 : count;
}

static void *draw(void *arg) {
    struct work *work = arg;
    while (atomic_load(&work->result) == 0) {
        size_t index = atomic_fetch_add(&work->next, 1);
        if (index >= work->count)
            break;
        int none = 0;
        int r = 0;
        if (!stop_requested())
            r = work->piece(work->context, index);
        else if (atomic_compare_exchange_strong(&work->result, &none, SYSTEM_FAILED))
            fail(SYSTEM_FAILED, "interrupted by signal %d", stop_requested());
        if (r)
            atomic_compare_exchange_strong(&work->result, &none, r);
    }
    return NULL;
}

int parallel_for(size_t count, int threads, int (*piece)(void *context, size_t index),
                 void *context) {
    struct work work = {.count = count, .piece = piece, .context = context};
    pthread_t ids[THREADS_MAX];
    size_t wanted = (size_t)(threads > 0 ? threads : parallel_cpus());
    if (wanted > count)
        wanted = count;
    if (wanted > THREADS_MAX)
        wanted = THREADS_MAX;
    size_t started = 0;
    while (started + 1 < wanted) {
        int error = pthread_create(&ids[started], NULL, draw, &work);
        if (error) {
            fail(SYSTEM_FAILED, "cannot start thread %zu of %zu: %s", started + 2, wanted,
                 strerror(error));
            atomic_store(&work.result, SYSTEM_FAILED);
            break;
        }
        started++;
    }
    draw(&work);
    for (size_t i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    return atomic_load(&work.result);
}
