/* safetensors: the file format for weights (safetensors documentation, section "Format"):
 * u64 length of a JSON header, the header {name: {dtype, shape, data_offsets}}, the bytes. */
#ifndef DDPIPE_SAFETENSORS_H
#define DDPIPE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_RANK_MAX = 4 };

struct safetensor {
    char name[96];
    char dtype[8]; /* "F32", "I64", "U8" … */
    int rank;      /* 0: a scalar */
    int64_t dims[SAFETENSORS_RANK_MAX];
    size_t bytes;
    const void *data;
};

/* A file read whole. */
struct safetensors {
    char *file;
    size_t count;
    struct safetensor *tensors; /* data points into file; alignment is not promised */
};

/* Publishes the file whole (file.h). */
int safetensors_write(const char *path, const struct safetensor *tensors, size_t count);

/* BAD_INPUT names file, tensor and reason: offsets outside the file, overlapping or leaving gaps, a
 * size that does not fit the shape, a header that is no JSON, a name twice. */
int safetensors_open(struct safetensors *s, const char *path);
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);
void safetensors_close(struct safetensors *s);

#endif
