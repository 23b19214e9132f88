/* identity: which rank of how many this process is, and where rank 0 is.
 *
 * Asked in this order: the command line; torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT); those of the Slurm step that started this process
 * (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE), never those of
 * the job around it. The first that says something counts; another that says something else is an
 * error that names both. A Slurm step with one task per node may have started a launcher of several
 * ranks instead of a rank: then its numbers are of nodes, and must fit as such. */
#ifndef DDPIPE_IDENTITY_H
#define DDPIPE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

struct identity {
    int64_t rank, world_size;
    int64_t local_rank, local_world_size; /* on this node */
    const char *master_addr;              /* host of rank 0 */
    int64_t master_port;
    bool slurm_task; /* one Slurm task is one rank: cores bound to the task are the rank's own */
};

/* Takes what the command line said (numbers < 0, NULL: nothing) and fills in the rest. Without any
 * word: rank 0 of 1, at 127.0.0.1:29500; ranks that meet at a loopback address are all on one node.
 * BAD_USAGE for a contradiction, a value that is no number, a rank outside its world. */
int identity_find(struct identity *me);

#endif
