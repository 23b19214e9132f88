/* backend_cuda: the backend on an NVIDIA GPU: cuDNN's graphs and kernels of our own (kernels.h), on
 * one stream; batches come in on a second one, gradients are summed by NCCL on a third; a step is
 * recorded as one CUDA graph. In bin/trainer, which is built without CUDA, backend_none.c stands in
 * its place and refuses. */
#ifndef DDPIPE_BACKEND_CUDA_H
#define DDPIPE_BACKEND_CUDA_H

#include "trainer/backend.h"

/* This program has the backend. */
extern const bool backend_cuda_built;

struct backend_cuda_options {
    const char *precision; /* of activations and products: "fp32", "tf32", "bf16", "fp16" */
    int local_rank, local_world_size;
    bool autotune;          /* time cuDNN's candidates for each shape, once a device */
    bool profile;           /* wait after every operation, so that the host can time it */
    double timeout_seconds; /* of every wait for the GPU */
};

enum { BACKEND_CUDA_NAME = 64 };

/* Which GPU a rank of this node uses, as "GPU 0000:17:00.0": the local_rank-th of those that
 * CUDA_VISIBLE_DEVICES or Slurm let it see; the only one it sees, where each rank is shown its own.
 * Nothing is opened on it. BAD_USAGE where there are fewer than ranks, SYSTEM_FAILED where there is
 * none, or no driver. */
int backend_cuda_find(int local_rank, int local_world_size, char name[BACKEND_CUDA_NAME]);

int backend_cuda_open(struct backend **b, const struct backend_cuda_options *options);

#endif
