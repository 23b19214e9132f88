/* comm_gloo.cc: the collectives by Gloo over TCP, behind comm.h. C++ ends here.
 *
 * Gloo leaves values of this rank in a store under keys that end in its number ("rank_3", then
 * "3"), every rank in the same order, and reads those of all ranks. So set() is one gathering over
 * all ranks, kept by the key without its number, and get() reads what was gathered. */
#include "trainer/comm.h"
#include <cstring>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

extern "C" {
#include "lib/log.h"
}

struct comm {
    int rank, world_size;
    std::shared_ptr<gloo::rendezvous::Context> context;
    uint32_t tag;
    double timeout_seconds;
};

namespace {

class gathered_store : public gloo::rendezvous::Store {
  public:
    gathered_store(int size, comm_exchange *e, void *a) : world_size(size), exchange(e), arg(a) {}

    void set(const std::string &key, const std::vector<char> &mine) override {
        uint32_t length = static_cast<uint32_t>(mine.size());
        std::vector<char> slot(slot_bytes);
        if (mine.size() + sizeof length > slot.size())
            throw std::runtime_error("addresses of a rank take over 64 KiB");
        std::memcpy(slot.data(), &length, sizeof length);
        std::memcpy(slot.data() + sizeof length, mine.data(), mine.size());
        std::vector<char> &all = gathered[key.substr(0, number_at(key))];
        all.resize(slot_bytes * static_cast<size_t>(world_size));
        if (exchange(arg, slot.data(), slot.size(), all.data()))
            throw std::runtime_error("the ranks' addresses could not be exchanged");
    }

    std::vector<char> get(const std::string &key) override {
        size_t at = number_at(key);
        const char *slot = gathered.at(key.substr(0, at)).data() +
                           slot_bytes * static_cast<size_t>(std::stoi(key.substr(at)));
        uint32_t length;
        std::memcpy(&length, slot, sizeof length);
        return std::vector<char>(slot + sizeof length, slot + sizeof length + length);
    }

    void wait(const std::vector<std::string> &) override {}
    void wait(const std::vector<std::string> &, const std::chrono::milliseconds &) override {}

  private:
    static size_t number_at(const std::string &key) {
        return key.find_last_not_of("0123456789") + 1; /* npos + 1 is 0 */
    }

    static constexpr size_t slot_bytes = 1 << 16;
    int world_size;
    comm_exchange *exchange;
    void *arg;
    std::map<std::string, std::vector<char>> gathered;
};

template <class F> int attempt(const char *operation, F call) {
    try {
        call();
        return 0;
    } catch (const std::exception &e) {
        return fail(SYSTEM_FAILED, "%s: %s", operation, e.what());
    }
}

template <class T> int sum(struct comm *c, T *x, size_t count) {
    if (c->world_size == 1)
        return 0;
    return attempt("all-reduce", [&] {
        gloo::AllreduceOptions o(c->context);
        o.setOutput(x, count);
        o.setReduceFunction(
            static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<T>));
        o.setTag(c->tag++);
        gloo::allreduce(o);
    });
}

} // namespace

extern "C" int comm_open(struct comm **out, int rank, int world_size, const char *address,
                         double timeout_seconds, comm_exchange *exchange, void *arg) {
    std::unique_ptr<struct comm> c(new (std::nothrow)
                                       comm{rank, world_size, nullptr, 0, timeout_seconds});
    if (!c)
        return fail(SYSTEM_FAILED, "out of memory");
    int rc = world_size == 1 ? 0 : attempt("connecting the ranks", [&] {
        gathered_store store(world_size, exchange, arg);
        auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address));
        c->context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
        c->context->setTimeout(
            std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
        c->context->connectFullMesh(store, device);
    });
    if (!rc)
        *out = c.release();
    return rc;
}

extern "C" int comm_sum_f32(struct comm *c, float *x, size_t count) {
    return sum(c, x, count);
}
extern "C" int comm_sum_f64(struct comm *c, double *x, size_t count) {
    return sum(c, x, count);
}

extern "C" int comm_broadcast(struct comm *c, void *bytes, size_t size, int root) {
    if (c->world_size == 1)
        return 0;
    return attempt("broadcast", [&] {
        gloo::BroadcastOptions o(c->context);
        o.setOutput(static_cast<char *>(bytes), size);
        o.setRoot(root);
        o.setTag(c->tag++);
        gloo::broadcast(o);
    });
}

extern "C" int comm_allgather(struct comm *c, const void *mine, size_t size, void *all) {
    if (c->world_size == 1) {
        std::memcpy(all, mine, size);
        return 0;
    }
    return attempt("all-gather", [&] {
        gloo::AllgatherOptions o(c->context);
        o.setInput(static_cast<char *>(const_cast<void *>(mine)), size);
        o.setOutput(static_cast<char *>(all), size * static_cast<size_t>(c->world_size));
        o.setTag(c->tag++);
        gloo::allgather(o);
    });
}

extern "C" int comm_gather_f32(struct comm *c, const float *x, float *all, size_t count, int root) {
    if (c->world_size == 1) {
        std::memcpy(all, x, count * sizeof *x);
        return 0;
    }
    return attempt("gather", [&] {
        gloo::GatherOptions o(c->context);
        o.setInput(const_cast<float *>(x), count);
        if (c->rank == root)
            o.setOutput(all, count * static_cast<size_t>(c->world_size));
        o.setRoot(root);
        o.setTag(c->tag++);
        gloo::gather(o);
    });
}

extern "C" int comm_scatter_f32(struct comm *c, const float *all, float *x, size_t count,
                                int root) {
    if (c->world_size == 1) {
        std::memcpy(x, all, count * sizeof *x);
        return 0;
    }
    return attempt("scatter", [&] {
        gloo::ScatterOptions o(c->context);
        std::vector<float *> parts;
        for (int i = 0; i < c->world_size && c->rank == root; i++)
            parts.push_back(const_cast<float *>(all) + static_cast<size_t>(i) * count);
        if (c->rank == root)
            o.setInputs(parts, count);
        o.setOutput(x, count);
        o.setRoot(root);
        o.setTag(c->tag++);
        gloo::scatter(o);
    });
}

extern "C" int comm_barrier(struct comm *c) {
    if (c->world_size == 1)
        return 0;
    return attempt("barrier", [&] {
        gloo::BarrierOptions o(c->context);
        o.setTag(c->tag++);
        gloo::barrier(o);
    });
}

extern "C" int comm_rank(const struct comm *c) {
    return c->rank;
}
extern "C" int comm_world_size(const struct comm *c) {
    return c->world_size;
}
extern "C" double comm_timeout_seconds(const struct comm *c) {
    return c->timeout_seconds;
}

extern "C" void comm_close(struct comm **c) {
    delete *c;
    *c = nullptr;
}
