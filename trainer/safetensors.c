/* safetensors.c: see safetensors.h. JSON by jansson. */
#include "trainer/safetensors.h"
#include "lib/file.h"
#include "lib/log.h"
#include "lib/pack.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t file_max_bytes = (size_t)4 << 30;

static size_t dtype_size(const char *dtype) {
    static const struct {
        const char *name;
        size_t size;
    } sizes[] = {{"F64", 8},  {"I64", 8}, {"F32", 4}, {"I32", 4}, {"F16", 2},
                 {"BF16", 2}, {"I16", 2}, {"U8", 1},  {"I8", 1},  {"BOOL", 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(dtype, sizes[i].name))
            return sizes[i].size;
    return 0;
}

static json_t *describe(const struct safetensor *t, size_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++)
        json_array_append_new(shape, json_integer(t->dims[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + t->bytes));
}

int safetensors_write(const char *path, const struct safetensor *tensors, size_t count) {
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        json_object_set_new(root, tensors[i].name, describe(&tensors[i], bytes));
        bytes += tensors[i].bytes;
    }
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    size_t length = text ? (strlen(text) + 7) / 8 * 8 : 0; /* padded with spaces: data is aligned */
    char *file = text ? malloc(8 + length + bytes) : NULL;
    if (!file) {
        free(text);
        return fail(SYSTEM_FAILED, "out of memory for \"%s\"", path);
    }
    struct pack p = pack_open(file, 8);
    pack_u64(&p, length);
    memset(file + 8, ' ', length);
    memcpy(file + 8, text, strlen(text));
    char *at = file + 8 + length;
    for (size_t i = 0; i < count; i++) {
        memcpy(at, tensors[i].data, tensors[i].bytes);
        at += tensors[i].bytes;
    }
    int rc = file_publish(path, file, 8 + length + bytes, 0644);
    free(file);
    free(text);
    return rc;
}

static int wrong(const char *path, const char *name, const char *reason) {
    return fail(BAD_INPUT, "\"%s\": tensor \"%s\": %s", path, name, reason);
}

static int read_tensor(struct safetensor *t, const char *path, const char *name, json_t *entry,
                       const char *data, size_t size) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape"),
           *offsets = json_object_get(entry, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (!dtype || !json_is_array(shape) || json_array_size(offsets) != 2)
        return wrong(path, name, "dtype, shape or data_offsets are missing");
    if (!dtype_size(dtype))
        return wrong(path, name, "unknown dtype");
    if (json_array_size(shape) > SAFETENSORS_RANK_MAX || strlen(name) >= sizeof t->name)
        return wrong(path, name, "more than 4 dimensions, or a name over 95 bytes");
    if (begin < 0 || end < begin || (size_t)end > size)
        return wrong(path, name, "data_offsets lie outside the file");
    *t = (struct safetensor){
        .rank = (int)json_array_size(shape), .bytes = (size_t)(end - begin), .data = data + begin};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    size_t elements = 1;
    for (int i = 0; i < t->rank; i++) {
        t->dims[i] = json_integer_value(json_array_get(shape, (size_t)i));
        if (t->dims[i] < 0 || (t->dims[i] && elements > file_max_bytes / (size_t)t->dims[i]))
            return wrong(path, name, "impossible shape");
        elements *= (size_t)t->dims[i];
    }
    if (elements * dtype_size(dtype) != t->bytes)
        return wrong(path, name, "data_offsets do not fit dtype and shape");
    return 0;
}

static int by_place(const void *a, const void *b) {
    const struct safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The format has no room for two tensors in one place, nor for bytes that belong to none. */
static int check_cover(struct safetensors *s, const char *path, const char *data, size_t size) {
    qsort(s->tensors, s->count, sizeof *s->tensors, by_place);
    const char *at = data;
    for (size_t i = 0; i < s->count; i++) {
        if ((const char *)s->tensors[i].data != at)
            return wrong(path, s->tensors[i].name, "overlaps its neighbour or leaves a gap");
        at += s->tensors[i].bytes;
    }
    if (at != data + size)
        return fail(BAD_INPUT, "\"%s\": offset %td: %td bytes belong to no tensor", path,
                    at - s->file, data + size - at);
    return 0;
}

static int read_header(struct safetensors *s, const char *path, json_t *root, const char *data,
                       size_t size) {
    const char *name;
    json_t *entry;
    s->tensors = calloc(json_object_size(root) + 1, sizeof *s->tensors);
    if (!s->tensors)
        return fail(SYSTEM_FAILED, "out of memory");
    json_object_foreach(root, name, entry) {
        if (!strcmp(name, "__metadata__"))
            continue;
        int rc = read_tensor(&s->tensors[s->count], path, name, entry, data, size);
        if (rc)
            return rc;
        s->count++;
    }
    return check_cover(s, path, data, size);
}

int safetensors_open(struct safetensors *s, const char *path) {
    size_t size;
    memset(s, 0, sizeof *s);
    int rc = file_read(path, file_max_bytes, &s->file, &size);
    if (rc)
        return rc;
    struct pack p = unpack_open(s->file, size);
    uint64_t length = unpack_u64(&p);
    json_error_t error;
    json_t *root = NULL;
    if (p.failed || length > size - 8)
        rc = fail(BAD_INPUT, "\"%s\": %zu bytes are too few for a safetensors header of %llu", path,
                  size, (unsigned long long)length);
    else if (!(root = json_loadb(s->file + 8, length, JSON_REJECT_DUPLICATES, &error)) ||
             !json_is_object(root))
        rc = fail(BAD_INPUT, "\"%s\": offset %d: header: %s", path, 8 + (root ? 0 : error.position),
                  root ? "no JSON object" : error.text);
    else
        rc = read_header(s, path, root, s->file + 8 + length, size - 8 - length);
    json_decref(root);
    if (rc)
        safetensors_close(s);
    return rc;
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name) {
    for (size_t i = 0; i < s->count; i++)
        if (!strcmp(s->tensors[i].name, name))
            return &s->tensors[i];
    return NULL;
}

void safetensors_close(struct safetensors *s) {
    free(s->tensors);
    free(s->file);
    memset(s, 0, sizeof *s);
}
