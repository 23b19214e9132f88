/* inside: what the stand-in's own files share; others take standin.h. */
#ifndef DDPIPE_STANDIN_INSIDE_H
#define DDPIPE_STANDIN_INSIDE_H

#include "tests/standin/standin.h"
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdint.h>
#include <string>
#include <thread>

/* faults.cc */
[[noreturn]] void standin_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Keeps what cudaGetLastError says, and returns it. */
cudaError_t standin_remember(cudaError_t error);
/* An object of that kind is made (1) or given back (-1). */
void standin_live(const char *kind, int change);
/* The error a call of the function starts with: the planned one, that of a missing device, none. */
cudaError_t standin_entry(const char *function, cudaError_t planned);

std::recursive_mutex &standin_mutex();
#define ENTER(planned)                                                                             \
    std::lock_guard<std::recursive_mutex> guard(standin_mutex());                                  \
    if (cudaError_t entry_error = standin_entry(__func__, planned))                                \
    return standin_remember(entry_error)

/* race.cc: vector clocks (Lamport 1978; Fidge 1988): how many operations of each stream, by its
 * slot, happened before. */
typedef std::vector<uint32_t> standin_clock;
void standin_join(standin_clock *into, const standin_clock &from);
constexpr unsigned standin_host = 0; /* the slot of the host */

/* An operation that uses memory; time: its number in its stream. */
struct standin_user {
    const char *name; /* lives forever */
    unsigned slot;
    uint32_t time;
};
const char *standin_forever(const std::string &name);
std::string standin_slot_name(unsigned slot);

/* Who used which bytes: of each stretch the last writer, and the readers since. */
class standin_history {
    struct stretch {
        uintptr_t end;
        bool written;
        standin_user writer; /* name NULL: the host, or nobody */
        std::vector<standin_user> readers;
    };
    std::map<uintptr_t, stretch> stretches; /* disjoint, by their begin */
    void split(uintptr_t at);
    void cover(uintptr_t begin, uintptr_t end);

  public:
    /* Ends the process where a use is not ordered, by now, after one that conflicts with it. */
    void use(const standin_user &user, const standin_clock &now, const standin_access &access);
    /* For bytes that are forgotten. */
    void unwritten(const void *begin, size_t bytes);
    void forget(const void *begin, size_t bytes);
};
standin_history &standin_memory_history();

/* memory.cc */
enum standin_place { standin_allocated, standin_on_device, standin_on_host, standin_anywhere };
/* Ends the process where the access lies at no such place. */
void standin_locate(const char *name, const standin_access &access, enum standin_place place);
bool standin_is_on_device(const void *p);
std::string standin_describe(const void *p);

/* graph.cc, runtime.cc */
struct standin_placed {
    standin_access access;
    enum standin_place place;
};
/* true: done; false: it hangs, and is asked again. */
typedef std::function<bool()> standin_work;

struct standin_node {
    const char *name;
    std::vector<standin_placed> accesses;
    standin_work run;
};

struct standin_capture {
    cudaStream_t origin;
    enum cudaStreamCaptureMode mode;
    std::thread::id thread;
    std::map<cudaStream_t, standin_clock> now; /* of all streams that take part */
    standin_history history;
    std::vector<standin_node> nodes;
    bool broken = false;
};

/* One record of an event. */
struct standin_record {
    cudaStream_t stream;
    standin_clock when;
    std::shared_ptr<standin_capture> captured; /* or NULL */
    bool done = false;
    double seconds = 0;
};

struct standin_pending {
    const char *name;
    standin_work run; /* none: a mark */
    std::shared_ptr<standin_record> wait, record;
};

struct CUstream_st {
    unsigned slot;
    standin_clock now;
    std::deque<standin_pending> queue;
    std::shared_ptr<standin_capture> capture; /* that takes part in */
};

struct CUevent_st {
    bool timing;
    std::shared_ptr<standin_record> last;
};

cudaError_t standin_put(cudaStream_t stream, const char *name, std::vector<standin_placed> accesses,
                        standin_work run);
/* The same, known not to be captured. */
void standin_put_now(cudaStream_t stream, const char *name,
                     const std::vector<standin_placed> &accesses, standin_work run);
std::shared_ptr<standin_record> standin_mark(cudaStream_t stream);
void standin_wait(cudaStream_t stream, const std::shared_ptr<standin_record> &record);
/* Ends the process unless it is a stream. */
void standin_check_stream(const char *function, cudaStream_t stream);
/* What the host has seen the end of. */
standin_clock &standin_host_clock();

cudaError_t standin_capture_put(cudaStream_t stream, standin_node node);
cudaError_t standin_capture_record(cudaEvent_t event, cudaStream_t stream);
cudaError_t standin_capture_wait(cudaStream_t stream, cudaEvent_t event);
/* Calls that may not be made while a stream captures (CUDA Runtime API, cudaStreamBeginCapture and
 * enum cudaStreamCaptureMode): breaks the capture. */
cudaError_t standin_unsafe_call();
cudaError_t standin_break(const std::shared_ptr<standin_capture> &capture, cudaError_t error);

#endif
