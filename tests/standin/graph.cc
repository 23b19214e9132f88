/* graph.cc: captures and graphs. What streams that take part in a capture are given becomes nodes,
 * in the order given; a launch puts them on one stream in this order. Whether the capture's events
 * allow no order that gives another result is checked while it is recorded. */
#include "tests/standin/inside.h"
#include <set>

struct CUgraph_st {
    std::vector<standin_node> nodes;
};

struct CUgraphExec_st {
    std::vector<standin_node> nodes;
    std::shared_ptr<standin_record> last; /* its latest launch */
};

namespace {

std::set<std::shared_ptr<standin_capture>> &captures() { /* those under way */
    static auto *all = new std::set<std::shared_ptr<standin_capture>>;
    return *all;
}

std::set<const void *> &graphs() { /* executable ones, too */
    static auto *all = new std::set<const void *>;
    return *all;
}

template <typename T> void check(const char *function, T *graph) {
    if (!graphs().count(graph))
        standin_die("%s: no such graph", function);
}

template <typename T> void drop(const char *function, const char *kind, T *graph) {
    check(function, graph);
    graphs().erase(graph);
    standin_live(kind, -1);
    delete graph;
}

standin_clock &clock_in(standin_capture *c, cudaStream_t stream) {
    standin_clock &now = c->now[stream];
    if (now.size() <= stream->slot)
        now.resize(stream->slot + 1);
    return now;
}

bool joined(standin_capture *c) {
    standin_clock &origin = clock_in(c, c->origin), all = origin;
    for (const auto &stream : c->now)
        standin_join(&all, stream.second);
    origin.resize(all.size());
    return all == origin;
}

/* Has the host seen its end? */
bool seen(const standin_record &record) {
    standin_clock both = standin_host_clock();
    standin_join(&both, record.when);
    return both == standin_host_clock();
}

} // namespace

cudaError_t standin_break(const std::shared_ptr<standin_capture> &capture, cudaError_t error) {
    capture->broken = true;
    return error;
}

cudaError_t standin_unsafe_call() {
    for (const auto &c : captures())
        if (c->mode == cudaStreamCaptureModeGlobal ||
            (c->mode == cudaStreamCaptureModeThreadLocal &&
             c->thread == std::this_thread::get_id()))
            return standin_break(c, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t standin_capture_put(cudaStream_t stream, standin_node node) {
    standin_capture *c = stream->capture.get();
    if (c->broken)
        return cudaErrorStreamCaptureInvalidated;
    standin_clock &now = clock_in(c, stream);
    const standin_user user = {node.name, stream->slot, ++now[stream->slot]};
    for (const standin_placed &a : node.accesses) {
        standin_locate(node.name, a.access, a.place);
        if (a.access.bytes)
            c->history.use(user, now, a.access);
    }
    c->nodes.push_back(std::move(node));
    return cudaSuccess;
}

cudaError_t standin_capture_record(cudaEvent_t event, cudaStream_t stream) {
    if (stream->capture->broken)
        return cudaErrorStreamCaptureInvalidated;
    event->last = std::make_shared<standin_record>();
    event->last->stream = stream;
    event->last->when = clock_in(stream->capture.get(), stream);
    event->last->captured = stream->capture;
    return cudaSuccess;
}

cudaError_t standin_capture_wait(cudaStream_t stream, cudaEvent_t event) {
    const std::shared_ptr<standin_capture> own = stream->capture;
    if (own && own->broken)
        return cudaErrorStreamCaptureInvalidated;
    if (!event->last)
        return cudaSuccess;
    const std::shared_ptr<standin_capture> c = event->last->captured;
    if (!c)
        return standin_break(own, cudaErrorStreamCaptureIsolation);
    if (c->broken)
        return cudaErrorStreamCaptureInvalidated;
    if (!captures().count(c))
        return own ? standin_break(own, cudaErrorStreamCaptureIsolation) : cudaErrorCapturedEvent;
    if (own && own != c)
        return standin_break(own, cudaErrorStreamCaptureMerge);
    stream->capture = c;
    standin_join(&clock_in(c.get(), stream), event->last->when);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    ENTER(cudaErrorStreamCaptureUnsupported);
    standin_check_stream(__func__, stream);
    if (stream->capture)
        return standin_remember(cudaErrorStreamCaptureUnsupported);
    stream->capture = std::make_shared<standin_capture>();
    stream->capture->origin = stream;
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    clock_in(stream->capture.get(), stream);
    captures().insert(stream->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    ENTER(cudaErrorStreamCaptureInvalidated);
    standin_check_stream(__func__, stream);
    *graph = nullptr;
    const std::shared_ptr<standin_capture> c = stream->capture;
    if (!c || c->origin != stream)
        return standin_remember(c ? standin_break(c, cudaErrorStreamCaptureUnmatched)
                                  : cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return standin_remember(cudaErrorStreamCaptureWrongThread);
    captures().erase(c);
    const bool all_joined = joined(c.get());
    for (const auto &s : c->now)
        s.first->capture = nullptr;
    if (c->broken)
        return standin_remember(cudaErrorStreamCaptureInvalidated);
    if (!all_joined)
        return standin_remember(standin_break(c, cudaErrorStreamCaptureUnjoined));
    *graph = new CUgraph_st{std::move(c->nodes)};
    graphs().insert(*graph);
    standin_live("graphs", 1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    ENTER(cudaErrorMemoryAllocation);
    check(__func__, graph);
    *exec = new CUgraphExec_st{graph->nodes, nullptr};
    graphs().insert(*exec);
    standin_live("executable graphs", 1);
    return cudaSuccess;
}

/* After the stream's earlier work, and after the graph's earlier launches. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    ENTER(cudaErrorLaunchFailure);
    standin_check_stream(__func__, stream);
    check(__func__, exec);
    if (stream->capture)
        return standin_remember(standin_break(stream->capture, cudaErrorStreamCaptureUnsupported));
    if (exec->last)
        standin_wait(stream, exec->last);
    for (const standin_node &n : exec->nodes)
        standin_put_now(stream, n.name, n.accesses, n.run);
    exec->last = standin_mark(stream);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER(cudaErrorLaunchFailure);
    drop(__func__, "graphs", graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    ENTER(cudaErrorLaunchFailure);
    check(__func__, exec);
    if (exec->last && !seen(*exec->last))
        standin_die("%s: the host has not seen the end of the graph's last launch", __func__);
    drop(__func__, "executable graphs", exec);
    return cudaSuccess;
}
