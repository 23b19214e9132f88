/* nccl_comm.cc: NCCL's communicators, connected by the project's own comm.h over Gloo. The unique
 * id is a folder that the ranks leave their addresses in.
 *
 * As with NCCL: a communicator that does not block connects while its caller asks for its state. A
 * communicator whose operations are pending, or in a graph, when it is destroyed would hang for
 * ever: that ends the process. */
#include "tests/standin/nccl_comm.h"
#include <chrono>
#include <filesystem>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

constexpr double join_seconds = 60;
constexpr int polls_in_progress = 2;

std::map<ncclComm_t, standin_communicator> &comms() {
    static auto *all = new std::map<ncclComm_t, standin_communicator>;
    return *all;
}

thread_local std::string last_text;

/* The folder of the last id that this process made, gone when all have joined. */
char made[NCCL_UNIQUE_ID_BYTES];
pid_t maker;

void remove_folder(const std::string &folder) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
}

void remove_made() {
    if (getpid() == maker)
        remove_folder(made);
}

bool put_file(const std::string &path, const void *bytes, size_t size) {
    const std::string draft = path + ".draft";
    FILE *f = fopen(draft.c_str(), "w");
    bool ok = f && fwrite(bytes, 1, size, f) == size;
    ok = f && !fclose(f) && ok;
    return ok && !rename(draft.c_str(), path.c_str());
}

bool get_file(const std::string &path, void *bytes, size_t size) {
    FILE *f = fopen(path.c_str(), "r");
    bool ok = f && fread(bytes, 1, size, f) == size;
    if (f)
        fclose(f);
    return ok;
}

/* Leaves a file of this rank and waits for those of all. */
bool gather_files(ncclComm *c, const std::string &name, const void *mine, size_t size, char *all) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(join_seconds);
    const std::string path = c->folder + "/" + name + ".";
    if (!put_file(path + std::to_string(c->rank), mine, size))
        return false;
    for (int r = 0; r < c->size; r++)
        while (!get_file(path + std::to_string(r), all + static_cast<size_t>(r) * size, size)) {
            if (c->aborted || access(c->folder.c_str(), F_OK) ||
                std::chrono::steady_clock::now() > end)
                return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    return true;
}

int exchange(void *arg, const void *mine, size_t size, void *all) {
    auto *c = static_cast<ncclComm *>(arg);
    return gather_files(c, std::to_string(c->round++), mine, size, static_cast<char *>(all)) ? 0
                                                                                             : -1;
}

/* Rank 0 waits for the others before it removes the folder; they need not wait for it. */
void connect(ncclComm *c) {
    const int rc = comm_open(&c->gloo, c->rank, c->size, "127.0.0.1", c->patience, exchange, c);
    std::vector<char> joined(static_cast<size_t>(c->size));
    if (!rc && c->rank)
        put_file(c->folder + "/joined." + std::to_string(c->rank), "", 1);
    else if (!rc)
        gather_files(c, "joined", "", 1, joined.data());
    if (c->rank == 0)
        remove_folder(c->folder);
    (rc ? c->refused : c->connected) = true;
}

/* Takes it from the list, to be freed with the last operation that uses it. */
void drop(const standin_communicator &c) {
    if (c->connecting.joinable())
        c->connecting.join();
    if (c->gloo)
        comm_close(&c->gloo);
    standin_memory_history().forget(c.get(), 1);
    standin_live("communicators", -1);
    comms().erase(c.get());
}

} // namespace

standin_communicator standin_find_comm(ncclComm_t comm) {
    auto c = comms().find(comm);
    return c == comms().end() ? nullptr : c->second;
}

ncclResult_t standin_refuse(ncclResult_t result, const std::string &text) {
    last_text = text;
    return result;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    NCCL_ENTER(ncclSystemError);
    const char *folder = getenv("TMPDIR");
    const int length = snprintf(id->internal, sizeof id->internal, "%s/standin-nccl-XXXXXX",
                                folder ? folder : "/tmp");
    if (length >= static_cast<int>(sizeof id->internal) || !mkdtemp(id->internal))
        return standin_refuse(ncclSystemError, "no folder for the unique id");
    if (!maker)
        atexit(remove_made);
    maker = getpid();
    memcpy(made, id->internal, sizeof made);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    NCCL_ENTER(ncclSystemError);
    *comm = nullptr;
    if (rank < 0 || rank >= size || !memchr(id.internal, 0, sizeof id.internal))
        return standin_refuse(ncclInvalidArgument, "no such rank, or no unique id");
    const bool blocking = !config || config->blocking != 0;
    standin_communicator c(new ncclComm{});
    c->rank = rank;
    c->size = size;
    c->blocking = blocking;
    c->folder = id.internal;
    const char *patience = getenv("DDPIPE_STANDIN_PATIENCE");
    c->patience = patience ? atof(patience) : 20;
    c->polls = blocking ? 0 : polls_in_progress;
    c->connecting = std::thread(connect, c.get());
    comms()[c.get()] = c;
    standin_live("communicators", 1);
    *comm = c.get();
    if (!blocking)
        return ncclInProgress;
    c->connecting.join();
    return c->connected ? ncclSuccess : standin_refuse(ncclSystemError, "the ranks do not connect");
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    NCCL_ENTER(ncclInternalError);
    const standin_communicator c = standin_find_comm(comm);
    if (!c)
        return standin_refuse(ncclInvalidArgument, "no such communicator");
    const bool pending = c.use_count() > 2; /* beside the list and c */
    if (c->refused || c->failed)
        *state = standin_refuse(ncclRemoteError, "a peer is gone");
    else if (!c->connected || c->polls > 0 || (c->finalized && pending))
        *state = ncclInProgress;
    else
        *state = ncclSuccess;
    if (c->connected && c->polls > 0)
        c->polls--;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    NCCL_ENTER(ncclInternalError);
    const standin_communicator c = standin_find_comm(comm);
    if (!c || c->finalized)
        return standin_refuse(ncclInvalidArgument, "no such communicator, or finalized before");
    c->finalized = true;
    c->polls = c->blocking ? 0 : 1;
    return c->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    NCCL_ENTER(ncclInternalError);
    const standin_communicator c = standin_find_comm(comm);
    if (!c)
        return standin_refuse(ncclInvalidArgument, "no such communicator");
    if (c.use_count() > 2)
        standin_die("%s: %ld operations of the communicator are pending, or in graphs", __func__,
                    c.use_count() - 2);
    drop(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    NCCL_ENTER(ncclInternalError);
    const standin_communicator c = standin_find_comm(comm);
    if (!c)
        return standin_refuse(ncclInvalidArgument, "no such communicator");
    c->aborted = true;
    drop(c);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) {
    return last_text.c_str();
}
