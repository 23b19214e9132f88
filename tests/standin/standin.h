/* standin: a stand-in for a GPU: CUDA's runtime (runtime.cc, graph.cc), NCCL (nccl.cc) and the
 * project's kernels (kernels.cc), all on the CPU, for tests of what drives them.
 *
 * What is put on a stream runs only when somebody asks how far the stream is, one operation a
 * question. What hardware would leave to chance ends the process with 99 and a line on stderr:
 * operations that use the same bytes, one of them writing, and no event between them; reads of
 * device memory that nobody wrote; any use beyond the end of an allocation.
 *
 * Environment:
 *   DDPIPE_STANDIN_GPUS=N|none       devices of the host (1); none: there is no driver
 *   CUDA_VISIBLE_DEVICES             as CUDA reads it, numbers alone
 *   DDPIPE_STANDIN_FAIL=NAME:K[:R]   the K-th call (from 1) of the function NAME fails, in rank R's
 *                                    process alone (RANK, or the option --rank)
 *   DDPIPE_STANDIN_COUNTS=FILE       gets a line "NAME calls" a function when the process exits
 *   DDPIPE_STANDIN_PATIENCE=S        seconds that a collective waits for a silent rank before it
 * hangs for good (20) DDPIPE_STANDIN_LEAKS=1           what is not given back at exit: a line, exit
 * code 98 */
#ifndef DDPIPE_STANDIN_H
#define DDPIPE_STANDIN_H

#include <cuda_runtime_api.h>
#include <functional>
#include <vector>

struct standin_access {
    const void *begin;
    size_t bytes;
    bool write;
};

/* Puts run on the stream, or into the graph that it captures. accesses: of memory of the device, or
 * of cudaHostAlloc; no bytes: none. Bytes that are both read and written stand twice. */
cudaError_t standin_enqueue(cudaStream_t stream, const char *name,
                            std::vector<standin_access> accesses, std::function<void()> run);

/* Counts a call of the function; true where it must fail. */
bool standin_fails(const char *function);

#endif
