/* nccl.cc: NCCL's collectives by the project's own comm.h over Gloo, when the stream comes to them.
 *
 * As with NCCL: the first collective of a communicator that does not block is answered "in
 * progress". One whose peer is gone hangs until the communicator is aborted. Collectives of a
 * communicator on two streams need an event between them. Every rank takes part in every group of
 * sends and receives. */
#include "tests/standin/nccl_comm.h"
#include <algorithm>
#include <chrono>
#include <numeric>
#include <string.h>

namespace {

/* Carries out a collective; not 0: a peer is gone. */
typedef std::function<int(struct comm *)> collective;

struct message {
    const void *from; /* or */
    void *to;
    size_t bytes, peer;
};

struct queued { /* between ncclGroupStart and ncclGroupEnd */
    standin_communicator comm;
    cudaStream_t stream;
    const char *name;
    std::vector<standin_placed> accesses;
    collective run;
    std::vector<message> messages; /* in place of run */
};

thread_local int group_depth;
thread_local std::vector<queued> group;

size_t size_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
    }
}

standin_placed read_of(const void *p, size_t bytes) {
    return {{p, bytes, false}, standin_allocated};
}
standin_placed write_of(void *p, size_t bytes) {
    return {{p, bytes, true}, standin_allocated};
}

ncclResult_t put(const queued &q) {
    const standin_communicator c = q.comm;
    std::vector<standin_placed> accesses = q.accesses;
    accesses.push_back({{c.get(), 1, true}, standin_anywhere}); /* in order, one at a time */
    const cudaError_t e = standin_put(q.stream, q.name, std::move(accesses), [c, run = q.run] {
        const auto began = std::chrono::steady_clock::now();
        if (!c->aborted && !c->failed && !c->hangs && run(c->gloo)) {
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
            c->hangs = took.count() >= c->patience;
            c->failed = !c->hangs;
        }
        return c->aborted || !(c->failed || c->hangs);
    });
    if (e)
        return standin_refuse(ncclUnhandledCudaError, cudaGetErrorString(standin_remember(e)));
    if (c->blocking || c->used)
        return ncclSuccess;
    c->used = true;
    c->polls = 1;
    return ncclInProgress;
}

ncclResult_t submit(ncclComm_t comm, queued q) {
    q.comm = standin_find_comm(comm);
    const standin_communicator &c = q.comm;
    if (!c || c->finalized)
        return standin_refuse(ncclInvalidArgument, "no such communicator");
    if (c->refused || c->failed)
        return standin_refuse(ncclRemoteError, "the communicator has failed");
    if (!c->connected || c->polls)
        return standin_refuse(ncclInvalidUsage, "the communicator is still in progress");
    for (const message &m : q.messages)
        if (m.peer >= static_cast<size_t>(c->size))
            return standin_refuse(ncclInvalidArgument, "no such peer");
    if (!group_depth)
        return put(q);
    group.push_back(std::move(q));
    return ncclSuccess;
}

int sum(struct comm *c, void *x, size_t count, ncclDataType_t type) {
    return type == ncclDouble ? comm_sum_f64(c, static_cast<double *>(x), count)
                              : comm_sum_f32(c, static_cast<float *>(x), count);
}

ncclResult_t check_sum(ncclDataType_t type, ncclRedOp_t op) {
    if (op == ncclSum && (type == ncclFloat || type == ncclDouble))
        return ncclSuccess;
    return standin_refuse(ncclInvalidArgument, "sums of float and double alone are simulated");
}

/* Every rank gets everything that all send, and takes what is its own. */
int deliver(struct comm *c, const std::vector<message> &messages) {
    const size_t world = static_cast<size_t>(comm_world_size(c)),
                 me = static_cast<size_t>(comm_rank(c));
    std::vector<uint64_t> mine(world), sizes(world * world), taken(world);
    for (const message &m : messages)
        mine[m.peer] += m.from ? m.bytes : 0;
    if (int rc = comm_allgather(c, mine.data(), world * sizeof(uint64_t), sizes.data()))
        return rc;
    uint64_t longest = 1;
    for (auto from = sizes.begin(); from != sizes.end(); from += static_cast<ptrdiff_t>(world))
        longest = std::max(
            longest, std::accumulate(from, from + static_cast<ptrdiff_t>(world), uint64_t{0}));
    std::vector<char> sent, all(longest * world);
    for (size_t peer = 0; peer < world; peer++)
        for (const message &m : messages)
            if (m.from && m.peer == peer)
                sent.insert(sent.end(), static_cast<const char *>(m.from),
                            static_cast<const char *>(m.from) + m.bytes);
    sent.resize(longest);
    if (int rc = comm_allgather(c, sent.data(), longest, all.data()))
        return rc;
    for (const message &m : messages) {
        if (m.from)
            continue;
        const uint64_t *of_peer = &sizes[m.peer * world];
        if (taken[m.peer] + m.bytes > of_peer[me])
            standin_die("ncclRecv of %zu bytes from rank %zu, which sends %zu", m.bytes, m.peer,
                        static_cast<size_t>(of_peer[me] - taken[m.peer]));
        memcpy(m.to,
               &all[m.peer * longest + std::accumulate(of_peer, of_peer + me, uint64_t{0}) +
                    taken[m.peer]],
               m.bytes);
        taken[m.peer] += m.bytes;
    }
    for (size_t peer = 0; peer < world; peer++)
        if (taken[peer] != sizes[peer * world + me])
            standin_die("rank %zu sends %zu bytes that no ncclRecv takes", peer,
                        static_cast<size_t>(sizes[peer * world + me] - taken[peer]));
    return 0;
}

} // namespace

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER(ncclInternalError);
    if (ncclResult_t e = check_sum(type, op))
        return e;
    const size_t bytes = count * size_of(type);
    return submit(comm, {nullptr,
                         stream,
                         __func__,
                         {read_of(from, bytes), write_of(to, bytes)},
                         [=](struct comm *c) {
                             memmove(to, from, bytes);
                             return sum(c, to, count, type);
                         },
                         {}});
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER(ncclInternalError);
    if (ncclResult_t e = check_sum(type, op))
        return e;
    const size_t bytes = count * size_of(type);
    const bool mine = comm && comm->rank == root;
    return submit(comm, {nullptr,
                         stream,
                         __func__,
                         {read_of(from, bytes), write_of(to, mine ? bytes : 0)},
                         [=](struct comm *c) {
                             std::vector<char> x(static_cast<const char *>(from),
                                                 static_cast<const char *>(from) + bytes);
                             int rc = sum(c, x.data(), count, type);
                             if (!rc && mine)
                                 memcpy(to, x.data(), bytes);
                             return rc;
                         },
                         {}});
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER(ncclInternalError);
    const size_t bytes = count * size_of(type);
    const bool mine = comm && comm->rank == root;
    return submit(comm, {nullptr,
                         stream,
                         __func__,
                         {read_of(from, mine ? bytes : 0), write_of(to, bytes)},
                         [=](struct comm *c) {
                             if (mine)
                                 memmove(to, from, bytes);
                             return comm_broadcast(c, to, bytes, root);
                         },
                         {}});
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER(ncclInternalError);
    if (!group_depth)
        standin_die("%s outside a group is not simulated", __func__);
    const size_t bytes = count * size_of(type);
    return submit(comm, {nullptr,
                         stream,
                         "ncclGroup",
                         {read_of(from, bytes)},
                         nullptr,
                         {{from, nullptr, bytes, static_cast<size_t>(peer)}}});
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    NCCL_ENTER(ncclInternalError);
    if (!group_depth)
        standin_die("%s outside a group is not simulated", __func__);
    const size_t bytes = count * size_of(type);
    return submit(comm, {nullptr,
                         stream,
                         "ncclGroup",
                         {write_of(to, bytes)},
                         nullptr,
                         {{nullptr, to, bytes, static_cast<size_t>(peer)}}});
}

ncclResult_t ncclGroupStart(void) {
    NCCL_ENTER(ncclInternalError);
    group_depth++;
    return ncclSuccess;
}

/* Sends and receives become one operation, after the collectives. */
ncclResult_t ncclGroupEnd(void) {
    NCCL_ENTER(ncclInternalError);
    if (!group_depth)
        return standin_refuse(ncclInvalidUsage, "no group to end");
    if (--group_depth)
        return ncclSuccess;
    std::vector<queued> calls;
    calls.swap(group);
    queued together = {};
    ncclResult_t result = ncclSuccess;
    for (queued &q : calls) {
        if (q.run) {
            const ncclResult_t e = put(q);
            result = e ? e : result;
            continue;
        }
        if (together.comm && (together.comm != q.comm || together.stream != q.stream))
            standin_die("a group's sends on two communicators or streams are not simulated");
        together.messages.push_back(q.messages[0]);
        together.accesses.push_back(q.accesses[0]);
        together.comm = q.comm;
        together.stream = q.stream;
    }
    if (!together.comm)
        return result;
    together.name = "ncclGroup";
    together.run = [messages = together.messages](struct comm *c) { return deliver(c, messages); };
    const ncclResult_t e = put(together);
    return e ? e : result;
}
