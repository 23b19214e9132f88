/* nccl_comm: what the files of the NCCL stand-in share: nccl_comm.cc the communicators' lives,
 * nccl.cc the collectives. */
#ifndef DDPIPE_STANDIN_NCCL_COMM_H
#define DDPIPE_STANDIN_NCCL_COMM_H

#include "tests/standin/inside.h"
#include "trainer/comm.h"
#include <atomic>
#include <nccl.h>

struct ncclComm {
    int rank, size;
    bool blocking;
    std::string folder;     /* of the unique id */
    struct comm *gloo;      /* once connected */
    std::thread connecting; /* sets one of the next two at its end */
    std::atomic<bool> connected, refused;
    std::atomic<bool> aborted; /* operations are over at once */
    double patience;           /* seconds that a collective waits for a peer, then it … */
    bool hangs;                /* … until aborted; NCCL says nothing */
    bool failed;               /* a peer is gone: the same, but NCCL says so */
    bool used, finalized;
    int polls; /* that are still answered "in progress" */
    int round; /* of the exchange of addresses */
};

/* Operations that are pending or in graphs hold on to their communicator. */
typedef std::shared_ptr<ncclComm> standin_communicator;

/* Or NULL. */
standin_communicator standin_find_comm(ncclComm_t comm);
ncclResult_t standin_refuse(ncclResult_t result, const std::string &text);

#define NCCL_ENTER(planned)                                                                        \
    std::lock_guard<std::recursive_mutex> guard(standin_mutex());                                  \
    if (standin_fails(__func__))                                                                   \
    return standin_refuse(planned, std::string(__func__) + " fails as planned")

#endif
