/* libcuda_stub.c: stands in for the driver (libcuda.so.1) where there is none, so that cuDNN
 * compiles plans at run time. Nothing can run on it.
 *
 * cuDNN compiles for a described device by itself, but first wants a driver library with these
 * names, and to load the result. Most functions only have to say that they succeeded; cuInit says
 * that there is no device. Their arguments are left alone, so none are declared. Source of the
 * names: what cuDNN 9.19 looks up (LD_DEBUG=symbols). */

enum { NO_DEVICE = 100, DRIVER_VERSION = 13000 };

#define SUCCEEDS(name)                                                                             \
    int name(void);                                                                                \
    int name(void) {                                                                               \
        return 0;                                                                                  \
    }

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuGetErrorName(int error, const char **name);
int cuGetErrorString(int error, const char **text);
int cuLibraryLoadData(const void **library);
int cuLibraryGetKernel(const void **kernel);
int cuModuleLoadData(const void **module);
int cuModuleLoadDataEx(const void **module);
int cuModuleGetFunction(const void **function);

static const char object; /* what handles point to */

int cuInit(unsigned flags) {
    return flags ? 1 : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 0;
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    *name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "stub";
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    return cuGetErrorName(error, text);
}

static int handle(const void **out) {
    *out = &object;
    return 0;
}

int cuLibraryLoadData(const void **library) {
    return handle(library);
}
int cuLibraryGetKernel(const void **kernel) {
    return handle(kernel);
}
int cuModuleLoadData(const void **module) {
    return handle(module);
}
int cuModuleLoadDataEx(const void **module) {
    return handle(module);
}
int cuModuleGetFunction(const void **function) {
    return handle(function);
}

SUCCEEDS(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLibraryLoadFromFile)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuStreamGetCtx)
