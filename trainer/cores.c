/* cores.c: see cores.h. */
#include "trainer/cores.h"
#include "lib/parallel.h"
#include <stdlib.h>
#include <unistd.h>

/* Bound by Slurm to fewer cores than the machine has: no other rank uses them. */
static bool are_own(const struct identity *me, int cores) {
    return me->slurm_task && cores < sysconf(_SC_NPROCESSORS_ONLN);
}

int cores_threads(const struct identity *me) {
    int cores = parallel_cpus();
    const char *per_task = getenv("SLURM_CPUS_PER_TASK");
    int wanted = me->slurm_task && per_task ? atoi(per_task) : 0;
    if (wanted > 0)
        return wanted < cores ? wanted : cores;
    int share = are_own(me, cores) ? cores : cores / (int)me->local_world_size;
    return share > 0 ? share : 1;
}

bool cores_spare(const struct identity *me, int threads, cpu_set_t *spare) {
    cpu_set_t compute;
    if (sched_getaffinity(0, sizeof compute, &compute) < 0)
        return false;
    int cores = CPU_COUNT(&compute);
    bool own = are_own(me, cores);
    int left = cores - threads * (own ? 1 : (int)me->local_world_size);
    if (left < 1)
        return false;
    int wanted = own ? 0 : (int)me->local_rank % left, seen = 0;
    CPU_ZERO(spare);
    for (size_t cpu = CPU_SETSIZE; cpu-- > 0 && seen < left;) {
        if (!CPU_ISSET(cpu, &compute))
            continue;
        if (seen++ == wanted)
            CPU_SET(cpu, spare);
        CPU_CLR(cpu, &compute);
    }
    return sched_setaffinity(0, sizeof compute, &compute) == 0;
}
