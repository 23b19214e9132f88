/* nvToolsExt: NVTX's ranges, which nobody watches in builds against the stand-in. */
#ifndef DDPIPE_STANDIN_NVTOOLSEXT_H
#define DDPIPE_STANDIN_NVTOOLSEXT_H

static inline int nvtxRangePushA(const char *message) {
    (void)message;
    return 0;
}

static inline int nvtxRangePop(void) {
    return 0;
}

#endif
