/* comm_nccl.c: see comm_nccl.h. The communicator does not block: every call may return while NCCL
 * goes on in threads of its own, and is then asked until it is done, or the deadline is over.
 * Source: "Nonblocking Communicators" and "Fault Tolerance" in NCCL 2.28's user guide. */
#include "trainer/comm_nccl.h"
#include "lib/clock.h"
#include "lib/log.h"
#include <nccl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static const double finish_seconds = 2;

struct comm_nccl {
    ncclComm_t comm;
    int rank, world;
    double timeout_seconds;
    bool dead;
};

/* NCCL tells the reason of a failure apart, and of the last one only. */
static int failed(struct comm_nccl *c, ncclResult_t result, const char *what) {
    const char *reason = ncclGetLastError(c->comm);
    fail(SYSTEM_FAILED, "NCCL: %s: %s%s%s", what, ncclGetErrorString(result),
         reason && *reason ? ": " : "", reason ? reason : "");
    comm_nccl_abort(c);
    return SYSTEM_FAILED;
}

/* Waits while NCCL says that the call is still in progress. */
static int settle(struct comm_nccl *c, ncclResult_t result, const char *what) {
    int64_t deadline = clock_deadline(c->timeout_seconds);
    while (result == ncclInProgress) {
        ncclResult_t asked = ncclCommGetAsyncError(c->comm, &result);
        if (asked != ncclSuccess)
            return failed(c, asked, what);
        if (result == ncclInProgress && clock_ms_left(deadline) == 0) {
            fail(SYSTEM_FAILED, "NCCL: %s: no answer from all ranks within %g s", what,
                 c->timeout_seconds);
            comm_nccl_abort(c);
            return SYSTEM_FAILED;
        }
        sched_yield();
    }
    return result == ncclSuccess ? 0 : failed(c, result, what);
}

/* Every rank gives an id, rank 0's counts: the exchange is one of equals. */
static int agree(struct comm_nccl *c, const struct backend_ranks *r, ncclUniqueId *id) {
    ncclUniqueId mine = {0}, *all = calloc((size_t)r->world_size, sizeof *all);
    if (!all)
        return fail(SYSTEM_FAILED, "out of memory");
    ncclResult_t result = r->rank == 0 ? ncclGetUniqueId(&mine) : ncclSuccess;
    int rc = result == ncclSuccess ? r->exchange(r->arg, &mine, sizeof mine, all)
                                   : failed(c, result, "making an id");
    *id = all[0];
    free(all);
    return rc;
}

int comm_nccl_open(struct comm_nccl **out, const struct backend_ranks *r) {
    struct comm_nccl *c = calloc(1, sizeof *c);
    if (!c)
        return fail(SYSTEM_FAILED, "out of memory");
    *c = (struct comm_nccl){
        .rank = r->rank, .world = r->world_size, .timeout_seconds = r->timeout_seconds};
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int rc = agree(c, r, &id);
    if (!rc)
        rc = settle(c, ncclCommInitRankConfig(&c->comm, c->world, id, c->rank, &config),
                    "connecting the ranks");
    if (rc)
        comm_nccl_close(&c);
    else
        *out = c;
    return rc;
}

int comm_nccl_sum_f32(struct comm_nccl *c, float *x, size_t count, struct CUstream_st *stream) {
    return settle(c, ncclAllReduce(x, x, count, ncclFloat32, ncclSum, c->comm, stream),
                  "all-reduce");
}

int comm_nccl_sum_f64(struct comm_nccl *c, double *x, size_t count, struct CUstream_st *stream) {
    return settle(c, ncclAllReduce(x, x, count, ncclFloat64, ncclSum, c->comm, stream),
                  "all-reduce");
}

int comm_nccl_reduce_f64(struct comm_nccl *c, double *x, size_t count, int root,
                         struct CUstream_st *stream) {
    return settle(c, ncclReduce(x, x, count, ncclFloat64, ncclSum, root, c->comm, stream),
                  "reduce");
}

int comm_nccl_broadcast(struct comm_nccl *c, float *x, size_t count, int root,
                        struct CUstream_st *stream) {
    return settle(c, ncclBroadcast(x, x, count, ncclFloat32, root, c->comm, stream), "broadcast");
}

/* The calls of a group start together, at its end. */
static int end_group(struct comm_nccl *c, ncclResult_t result, const char *what) {
    ncclResult_t end = ncclGroupEnd();
    return settle(c, result == ncclSuccess || result == ncclInProgress ? end : result, what);
}

static void keep_error(ncclResult_t *first, ncclResult_t result) {
    if (*first == ncclSuccess || *first == ncclInProgress)
        *first = result;
}

int comm_nccl_gather(struct comm_nccl *c, const float *x, float *all, size_t count, int root,
                     struct CUstream_st *stream) {
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return failed(c, result, "gather");
    keep_error(&result, ncclSend(x, count, ncclFloat32, root, c->comm, stream));
    for (int r = 0; r < c->world && c->rank == root; r++)
        keep_error(&result,
                   ncclRecv(all + (size_t)r * count, count, ncclFloat32, r, c->comm, stream));
    return end_group(c, result, "gather");
}

int comm_nccl_scatter(struct comm_nccl *c, const float *all, float *x, size_t count, int root,
                      struct CUstream_st *stream) {
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return failed(c, result, "scatter");
    for (int r = 0; r < c->world && c->rank == root; r++)
        keep_error(&result,
                   ncclSend(all + (size_t)r * count, count, ncclFloat32, r, c->comm, stream));
    keep_error(&result, ncclRecv(x, count, ncclFloat32, root, c->comm, stream));
    return end_group(c, result, "scatter");
}

int comm_nccl_check(struct comm_nccl *c) {
    ncclResult_t state;
    if (c->dead)
        return SYSTEM_FAILED;
    ncclResult_t asked = ncclCommGetAsyncError(c->comm, &state);
    if (asked != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
        return failed(c, asked != ncclSuccess ? asked : state, "another rank failed");
    return 0;
}

void comm_nccl_abort(struct comm_nccl *c) {
    if (c->comm)
        ncclCommAbort(c->comm);
    c->comm = NULL;
    c->dead = true;
}

/* What is still on its way to other ranks gets there, unless they are gone, too. */
static void finish(struct comm_nccl *c) {
    int64_t deadline = clock_deadline(finish_seconds);
    ncclResult_t result = ncclCommFinalize(c->comm);
    while (result == ncclInProgress && clock_ms_left(deadline) > 0) {
        if (ncclCommGetAsyncError(c->comm, &result) != ncclSuccess)
            break;
        sched_yield();
    }
    if (result != ncclSuccess || ncclCommDestroy(c->comm) != ncclSuccess)
        ncclCommAbort(c->comm);
}

void comm_nccl_close(struct comm_nccl **c) {
    if (!*c)
        return;
    if ((*c)->comm)
        finish(*c);
    free(*c);
    *c = NULL;
}
