/* memory.cc: the device's memory and the host's pinned memory: plain memory between guard zones,
 * full of bytes that make no number. */
#include "tests/standin/inside.h"
#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t guard_bytes = 256; /* the alignment, too */
constexpr unsigned char guard_byte = 0xa5, garbage = 0xff;

struct allocation {
    size_t bytes;
    bool device;
    unsigned serial;
};

std::map<uintptr_t, allocation> &allocations() {
    static auto *all = new std::map<uintptr_t, allocation>;
    return *all;
}

/* The one that p lies in, or end(). */
std::map<uintptr_t, allocation>::iterator find(const void *pointer) {
    const uintptr_t p = reinterpret_cast<uintptr_t>(pointer);
    auto next = allocations().upper_bound(p);
    if (next == allocations().begin())
        return allocations().end();
    auto a = std::prev(next);
    return p < a->first + a->second.bytes ? a : allocations().end();
}

const char *kind(bool device) {
    return device ? "device allocations" : "host allocations";
}

cudaError_t allocate(void **out, size_t bytes, bool device) {
    static unsigned serial;
    *out = nullptr;
    if (cudaError_t e = standin_unsafe_call())
        return standin_remember(e);
    if (!bytes)
        return cudaSuccess;
    const size_t all = (bytes + 3 * guard_bytes - 1) / guard_bytes * guard_bytes;
    auto *raw = static_cast<unsigned char *>(aligned_alloc(guard_bytes, all));
    if (!raw)
        return standin_remember(cudaErrorMemoryAllocation);
    memset(raw, guard_byte, all);
    *out = memset(raw + guard_bytes, garbage, bytes);
    allocations()[reinterpret_cast<uintptr_t>(*out)] = {bytes, device, ++serial};
    standin_live(kind(device), 1);
    standin_memory_history().forget(*out, bytes);
    if (device)
        standin_memory_history().unwritten(*out, bytes);
    return cudaSuccess;
}

void check_guards(const unsigned char *data, const allocation &a) {
    const size_t after = (a.bytes + 2 * guard_bytes - 1) / guard_bytes * guard_bytes;
    for (size_t i = 0; i < guard_bytes; i++)
        if (data[i - guard_bytes] != guard_byte)
            standin_die("bounds: something wrote before %s", standin_describe(data).c_str());
    for (size_t i = a.bytes; i < after; i++)
        if (data[i] != guard_byte)
            standin_die("bounds: something wrote behind %s", standin_describe(data).c_str());
}

cudaError_t release(const char *function, void *p, bool device) {
    if (!p)
        return cudaSuccess;
    if (cudaError_t e = standin_unsafe_call())
        return standin_remember(e);
    auto a = allocations().find(reinterpret_cast<uintptr_t>(p));
    if (a == allocations().end() || a->second.device != device)
        return standin_remember(cudaErrorInvalidValue);
    standin_memory_history().use({function, standin_host, 0}, standin_host_clock(),
                                 {p, a->second.bytes, true});
    standin_memory_history().forget(p, a->second.bytes);
    check_guards(static_cast<const unsigned char *>(p), a->second);
    allocations().erase(a);
    standin_live(kind(device), -1);
    free(static_cast<unsigned char *>(p) - guard_bytes);
    return cudaSuccess;
}

} // namespace

std::string standin_describe(const void *p) {
    char text[128];
    auto a = find(p);
    if (a == allocations().end())
        snprintf(text, sizeof text, "%p", p);
    else
        snprintf(text, sizeof text, "%p (%s memory #%u of %zu bytes, +%zu)", p,
                 a->second.device ? "device" : "host", a->second.serial, a->second.bytes,
                 reinterpret_cast<uintptr_t>(p) - a->first);
    return text;
}

bool standin_is_on_device(const void *p) {
    auto a = find(p);
    return a != allocations().end() && a->second.device;
}

void standin_locate(const char *name, const standin_access &access, enum standin_place place) {
    if (!access.bytes || place == standin_anywhere)
        return;
    const char *verb = access.write ? "writes" : "reads";
    auto a = find(access.begin);
    if (a == allocations().end() && place == standin_on_host)
        return; /* pageable */
    if (a == allocations().end())
        standin_die("bounds: %s %s %zu bytes at %p, in no allocation", name, verb, access.bytes,
                    access.begin);
    if (reinterpret_cast<uintptr_t>(access.begin) - a->first + access.bytes > a->second.bytes)
        standin_die("bounds: %s %s %zu bytes at %s, beyond its end", name, verb, access.bytes,
                    standin_describe(access.begin).c_str());
    if ((place == standin_on_device && !a->second.device) ||
        (place == standin_on_host && a->second.device))
        standin_die("bounds: %s %s %zu bytes at %s, which is the wrong side", name, verb,
                    access.bytes, standin_describe(access.begin).c_str());
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    ENTER(cudaErrorMemoryAllocation);
    return allocate(p, bytes, true);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    ENTER(cudaErrorMemoryAllocation);
    return allocate(p, bytes, false);
}

cudaError_t cudaFree(void *p) {
    ENTER(cudaErrorLaunchFailure);
    return release(__func__, p, true);
}

cudaError_t cudaFreeHost(void *p) {
    ENTER(cudaErrorLaunchFailure);
    return release(__func__, p, false);
}
