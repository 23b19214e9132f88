/* faults.cc: devices that the environment grants or hides, failures that it plans, the counts of
 * calls, and what was not given back at exit. */
#include "tests/standin/inside.h"
#include <fcntl.h>
#include <fstream>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

struct state {
    std::map<std::string, long> calls, live;
    pid_t process; /* that the calls are of */
};

const std::pair<cudaError_t, const char *> texts[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "operation would result in a merge of separate captures"},
    {cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capture"},
    {cudaErrorStreamCaptureWrongThread, "attempt to end a capture from another thread"},
};

thread_local cudaError_t last_error;

void at_exit();

state &all() { /* never destroyed: exit handlers use it */
    static state *s = [] {
        atexit(at_exit);
        return new state;
    }();
    if (s->process != getpid()) {
        s->calls.clear();
        s->process = getpid();
    }
    return *s;
}

void at_exit() {
    std::string counts, leaks;
    for (const auto &c : all().calls)
        counts += c.first + " " + std::to_string(c.second) + "\n";
    for (const auto &l : all().live)
        if (l.second)
            leaks += " " + std::to_string(l.second) + " " + l.first;
    if (const char *path = getenv("DDPIPE_STANDIN_COUNTS")) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, counts.data(), counts.size()) < 0)
            perror(path);
        close(fd);
    }
    if (getenv("DDPIPE_STANDIN_LEAKS") && !leaks.empty()) {
        fprintf(stderr, "stand-in: leaks: not given back:%s\n", leaks.c_str());
        _exit(98);
    }
}

/* This process' rank, or "" where it has none. */
std::string own_rank() {
    if (const char *rank = getenv("RANK"))
        return rank;
    std::ifstream file("/proc/self/cmdline");
    for (std::string word; std::getline(file, word, '\0');) {
        if (word == "--rank" && std::getline(file, word, '\0'))
            return word;
        if (word.compare(0, 7, "--rank=") == 0)
            return word.substr(7);
    }
    return "";
}

/* What is seen of the host's devices, by their number there. */
cudaError_t devices(std::vector<int> *seen) {
    const char *gpus = getenv("DDPIPE_STANDIN_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (gpus && !strcmp(gpus, "none"))
        return cudaErrorInsufficientDriver;
    const int there = gpus ? atoi(gpus) : 1;
    for (int i = 0; i < there && !visible; i++)
        seen->push_back(i);
    for (char *end; visible && *visible; visible = end + (*end == ',')) {
        const long i = strtol(visible, &end, 10);
        if (end == visible || (*end && *end != ',') || i < 0 || i >= there)
            break; /* the first wrong one hides the rest */
        seen->push_back(static_cast<int>(i));
    }
    return seen->empty() ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t device(int number, int *physical) {
    std::vector<int> seen;
    if (cudaError_t e = devices(&seen))
        return e;
    if (number < 0 || number >= static_cast<int>(seen.size()))
        return cudaErrorInvalidDevice;
    *physical = seen[static_cast<size_t>(number)];
    return cudaSuccess;
}

} // namespace

std::recursive_mutex &standin_mutex() {
    static auto *mutex = new std::recursive_mutex;
    return *mutex;
}

void standin_die(const char *format, ...) {
    char line[1024] = "stand-in: ";
    va_list args;
    va_start(args, format);
    size_t size = strlen(line);
    vsnprintf(line + size, sizeof line - size - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        _exit(99);
    _exit(99);
}

bool standin_fails(const char *function) {
    std::lock_guard<std::recursive_mutex> guard(standin_mutex());
    const long call = ++all().calls[function];
    const char *plan = getenv("DDPIPE_STANDIN_FAIL");
    const size_t length = strlen(function);
    if (!plan || strncmp(plan, function, length) || plan[length] != ':')
        return false;
    char *end;
    const long planned = strtol(plan + length + 1, &end, 10);
    return call == planned && (*end != ':' || own_rank().empty() || own_rank() == end + 1);
}

void standin_live(const char *kind, int change) {
    all().live[kind] += change;
}

cudaError_t standin_remember(cudaError_t error) {
    /* "cudaErrorNotReady […] is not considered an error and is therefore not reported by
     * cudaGetLastError" (CUDA C++ Programming Guide, Error Checking). */
    if (error && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

cudaError_t standin_entry(const char *function, cudaError_t planned) {
    std::vector<int> seen;
    return standin_fails(function) ? planned : devices(&seen);
}

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER(cudaErrorInitializationError);
    std::vector<int> seen;
    devices(&seen);
    *count = static_cast<int>(seen.size());
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int number) {
    ENTER(cudaErrorDevicesUnavailable);
    int physical;
    return standin_remember(device(number, &physical));
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int number) {
    ENTER(cudaErrorInvalidDevice);
    int physical;
    if (cudaError_t e = device(number, &physical))
        return standin_remember(e);
    if (snprintf(id, static_cast<size_t>(length), "0000:1%X:00.0", physical) >= length)
        return standin_remember(cudaErrorInvalidValue);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int number) {
    ENTER(cudaErrorInvalidDevice);
    int physical;
    if (cudaError_t e = device(number, &physical))
        return standin_remember(e);
    *prop = {};
    snprintf(prop->name, sizeof prop->name, "stand-in %d", physical);
    prop->major = 9;
    prop->totalGlobalMem = static_cast<size_t>(16) << 30;
    prop->multiProcessorCount = 1;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &t : texts)
        if (t.first == error)
            return t.second;
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
