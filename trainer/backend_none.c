/* backend_none.c: backend_cuda.h in a program that is built without CUDA. */
#include "lib/log.h"
#include "trainer/backend_cuda.h"

const bool backend_cuda_built = false;

static int refuse(void) {
    return fail(BAD_USAGE, "--device cuda: this program was built without CUDA: use trainer-cuda");
}

int backend_cuda_find(int local_rank, int local_world_size, char name[BACKEND_CUDA_NAME]) {
    (void)local_rank, (void)local_world_size, (void)name;
    return refuse();
}

int backend_cuda_open(struct backend **b, const struct backend_cuda_options *options) {
    (void)b, (void)options;
    return refuse();
}
