/* runtime.cc: streams, which are queues of what was put there, events, which are marks in them, and
 * copies. A question runs the one operation that comes first among those it waits for, of this or
 * another stream, and is answered "not ready"; only where nothing is left is the answer yes. */
#include "tests/standin/inside.h"
#include <chrono>
#include <set>
#include <string.h>

namespace {

std::set<cudaStream_t> &streams() {
    static auto *all = new std::set<cudaStream_t>;
    return *all;
}

std::set<cudaEvent_t> &events() {
    static auto *all = new std::set<cudaEvent_t>;
    return *all;
}

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* Runs an operation of the stream, or one that it waits for, and the marks around it. False: there
 * is none, or it hangs. */
bool step(cudaStream_t stream) {
    for (bool ran = false;;) {
        if (stream->queue.empty())
            return ran;
        standin_pending &head = stream->queue.front();
        if (head.wait && !head.wait->done)
            return ran || step(head.wait->stream);
        if (head.run && ran)
            return true;
        if (head.run && !head.run())
            return false;
        ran |= static_cast<bool>(head.run);
        if (head.record) {
            head.record->done = true;
            head.record->seconds = seconds();
        }
        stream->queue.pop_front();
    }
}

void check_event(const char *function, cudaEvent_t event) {
    if (!events().count(event))
        standin_die("%s: no such event", function);
}

void tick(cudaStream_t stream) {
    standin_join(&stream->now, standin_host_clock());
    if (stream->now.size() <= stream->slot)
        stream->now.resize(stream->slot + 1);
    stream->now[stream->slot]++;
}

} // namespace

standin_clock &standin_host_clock() {
    static auto *clock = new standin_clock;
    return *clock;
}

void standin_check_stream(const char *function, cudaStream_t stream) {
    if (!streams().count(stream))
        standin_die("%s: no such stream%s", function,
                    stream ? "" : " (the default stream is not simulated)");
}

void standin_put_now(cudaStream_t stream, const char *name,
                     const std::vector<standin_placed> &accesses, standin_work run) {
    tick(stream);
    const standin_user user = {name, stream->slot, stream->now[stream->slot]};
    for (const standin_placed &a : accesses)
        standin_locate(name, a.access, a.place);
    for (const bool write : {false, true})
        for (const standin_placed &a : accesses)
            if (a.access.bytes && a.access.write == write)
                standin_memory_history().use(user, stream->now, a.access);
    stream->queue.push_back({name, std::move(run), nullptr, nullptr});
}

cudaError_t standin_put(cudaStream_t stream, const char *name, std::vector<standin_placed> accesses,
                        standin_work run) {
    standin_check_stream(name, stream);
    if (stream->capture)
        return standin_capture_put(stream, {name, std::move(accesses), std::move(run)});
    standin_put_now(stream, name, accesses, std::move(run));
    return cudaSuccess;
}

cudaError_t standin_enqueue(cudaStream_t stream, const char *name,
                            std::vector<standin_access> accesses, std::function<void()> run) {
    std::lock_guard<std::recursive_mutex> guard(standin_mutex());
    std::vector<standin_placed> placed;
    for (const standin_access &a : accesses)
        placed.push_back({a, standin_allocated});
    return standin_remember(
        standin_put(stream, standin_forever(name), std::move(placed), [run = std::move(run)] {
            run();
            return true;
        }));
}

std::shared_ptr<standin_record> standin_mark(cudaStream_t stream) {
    tick(stream);
    auto record = std::make_shared<standin_record>();
    record->stream = stream;
    record->when = stream->now;
    stream->queue.push_back({"cudaEventRecord", nullptr, nullptr, record});
    return record;
}

void standin_wait(cudaStream_t stream, const std::shared_ptr<standin_record> &record) {
    standin_join(&stream->now, record->when);
    stream->queue.push_back({"cudaStreamWaitEvent", nullptr, record, nullptr});
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    ENTER(cudaErrorInvalidValue);
    if (kind == cudaMemcpyDefault)
        kind = static_cast<enum cudaMemcpyKind>(2 * standin_is_on_device(from) +
                                                standin_is_on_device(to));
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return standin_remember(
        standin_put(stream, __func__,
                    {{{from, bytes, false}, from_device ? standin_on_device : standin_on_host},
                     {{to, bytes, true}, to_device ? standin_on_device : standin_on_host}},
                    [=] {
                        memmove(to, from, bytes);
                        return true;
                    }));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    ENTER(cudaErrorInvalidValue);
    return standin_remember(
        standin_put(stream, __func__, {{{to, bytes, true}, standin_on_device}}, [=] {
            memset(to, value, bytes);
            return true;
        }));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cudaErrorInitializationError);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    ENTER(cudaErrorMemoryAllocation);
    static unsigned slots = standin_host;
    if (!(flags & cudaStreamNonBlocking))
        standin_die("%s: streams that wait for the default stream are not simulated", __func__);
    *stream = new CUstream_st{++slots, {}, {}, nullptr};
    streams().insert(*stream);
    standin_live("streams", 1);
    return cudaSuccess;
}

/* What is pending is carried out first, as far as it goes. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER(cudaErrorLaunchFailure);
    standin_check_stream(__func__, stream);
    if (stream->capture)
        return standin_remember(standin_break(stream->capture, cudaErrorStreamCaptureUnsupported));
    while (step(stream))
        ;
    for (standin_pending &p : stream->queue)
        if (p.record)
            p.record->done = true;
    streams().erase(stream);
    standin_live("streams", -1);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER(cudaErrorLaunchFailure);
    standin_check_stream(__func__, stream);
    if (stream->capture)
        return standin_remember(standin_break(stream->capture, cudaErrorStreamCaptureUnsupported));
    if (cudaError_t e = standin_unsafe_call())
        return standin_remember(e);
    if (!stream->queue.empty()) {
        step(stream);
        return cudaErrorNotReady;
    }
    standin_join(&standin_host_clock(), stream->now);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    ENTER(cudaErrorLaunchFailure);
    standin_check_stream(__func__, stream);
    check_event(__func__, event);
    if (stream->capture || (event->last && event->last->captured))
        return standin_remember(standin_capture_wait(stream, event));
    if (event->last)
        standin_wait(stream, event->last);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    ENTER(cudaErrorMemoryAllocation);
    *event = new CUevent_st{!(flags & cudaEventDisableTiming), nullptr};
    events().insert(*event);
    standin_live("events", 1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER(cudaErrorLaunchFailure);
    standin_check_stream(__func__, stream);
    check_event(__func__, event);
    if (stream->capture)
        return standin_remember(standin_capture_record(event, stream));
    event->last = standin_mark(stream);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER(cudaErrorLaunchFailure);
    check_event(__func__, event);
    if (event->last && event->last->captured)
        return standin_remember(standin_break(event->last->captured, cudaErrorCapturedEvent));
    if (cudaError_t e = standin_unsafe_call())
        return standin_remember(e);
    if (!event->last)
        return cudaSuccess;
    if (!event->last->done) {
        step(event->last->stream);
        return cudaErrorNotReady;
    }
    standin_join(&standin_host_clock(), event->last->when);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    ENTER(cudaErrorLaunchFailure);
    check_event(__func__, start);
    check_event(__func__, end);
    for (cudaEvent_t e : {start, end})
        if (!e->timing || !e->last || e->last->captured)
            return standin_remember(cudaErrorInvalidResourceHandle);
    if (!start->last->done || !end->last->done)
        return cudaErrorNotReady;
    *ms = static_cast<float>((end->last->seconds - start->last->seconds) * 1e3);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER(cudaErrorLaunchFailure);
    check_event(__func__, event);
    events().erase(event);
    standin_live("events", -1);
    delete event;
    return cudaSuccess;
}
