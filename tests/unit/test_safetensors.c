/* Weight files: what is written is read back; a net's weights survive; every cut and every damaged
 * header is refused, and nothing is read outside the file (run under SAN=address). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/file.h"
#include "trainer/checkpoint.h"
#include "trainer/init.h"
#include "trainer/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/ddpipe-test.XXXXXX", path[64];

static int open_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/w", folder);
    return 0;
}

static int close_folder(void **state) {
    (void)state;
    return file_remove_tree(folder);
}

static void round_trip(void **state) {
    (void)state;
    const float a[6] = {1, -2, 3.5f, 0, 1e-30f, 9};
    const int64_t b = 77;
    struct safetensor t[2] = {
        {.name = "x.\"weight", .dtype = "F32", .rank = 2, .dims = {2, 3}, .bytes = 24, .data = a},
        {.name = "n", .dtype = "I64", .rank = 0, .bytes = 8, .data = &b}};
    struct safetensors s;
    assert_int_equal(safetensors_write(path, t, 2), 0);
    assert_int_equal(safetensors_open(&s, path), 0);
    assert_int_equal(s.count, 2);
    const struct safetensor *x = safetensors_find(&s, "x.\"weight");
    assert_non_null(x);
    assert_int_equal(x->rank, 2);
    assert_int_equal(x->dims[1], 3);
    assert_memory_equal(x->data, a, sizeof a);
    assert_memory_equal(safetensors_find(&s, "n")->data, &b, sizeof b);
    assert_null(safetensors_find(&s, "y"));
    safetensors_close(&s);
}

/* Refused: opening says BAD_INPUT, and leaves nothing to close. */
static void refused(const char *bytes, size_t size) {
    struct safetensors s;
    assert_int_equal(file_publish(path, bytes, size, 0600), 0);
    assert_int_equal(safetensors_open(&s, path), 1);
    assert_null(s.file);
}

static void every_cut(void **state) {
    (void)state;
    const float a[4] = {1, 2, 3, 4};
    struct safetensor t = {
        .name = "a", .dtype = "F32", .rank = 1, .dims = {4}, .bytes = 16, .data = a};
    char *bytes;
    size_t size;
    assert_int_equal(safetensors_write(path, &t, 1), 0);
    assert_int_equal(file_read(path, 1 << 20, &bytes, &size), 0);
    for (size_t cut = 0; cut < size; cut++)
        refused(bytes, cut);
    free(bytes);
}

static void damaged(const char *header, size_t data) {
    char bytes[1024] = {0};
    size_t length = strlen(header);
    bytes[0] = (char)length;
    bytes[1] = (char)(length >> 8);
    memcpy(bytes + 8, header, length);
    refused(bytes, 8 + length + data);
}

static void damaged_headers(void **state) {
    (void)state;
    damaged("[]", 0);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]}}", 12);
    damaged("{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 12);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[-2,-1],\"data_offsets\":[0,8]}}", 8);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
            0);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8);
    damaged("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            4);
}

static struct net *open_net(struct backend *b, const char *widths) {
    struct model m;
    struct model_options o = {
        .name = "speednet", .widths = widths, .activation = "relu", .channels = 3, .classes = 10};
    struct init_patches p = {.moment = {{0}}};
    struct net *net;
    for (int i = 0; i < 12; i++)
        p.moment[i][i] = 1;
    assert_int_equal(model_build(&m, &o), 0);
    assert_int_equal(net_open(&net, &m, b, (struct shape){2, 3, 32, 32}), 0);
    assert_int_equal(init_weights(net, 5, &p), 0);
    return net;
}

/* From blocked order (cpu) into the file and out of it into plain order (ref) and back: the same
 * weights bit for bit. A file of another network is refused, and the net is left as it was. */
static void checkpoints(void **state) {
    (void)state;
    struct backend *cpu, *ref;
    assert_int_equal(backend_cpu_open(&cpu, 1) || backend_ref_open(&ref), 0);
    struct net *a = open_net(cpu, "5,17,33"), *b = open_net(ref, "5,17,33");
    struct net *other = open_net(ref, "5,17,34");
    a->stats[3] = 7;
    a->batches_tracked = 12;
    assert_int_equal(checkpoint_save(a, path), 0);
    memset(b->weights, 0, b->arena_count * sizeof(float));
    assert_int_equal(checkpoint_load(b, path), 0);
    assert_int_equal(b->batches_tracked, 12);
    assert_memory_equal(a->stats, b->stats, a->stat_floats * sizeof(float));
    for (int i = 0; i < a->param_count; i++) {
        size_t count = a->params[i].count;
        float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
        net_get(a, &a->params[i], a->weights, x);
        net_get(b, &b->params[i], b->weights, y);
        assert_memory_equal(x, y, count * sizeof *x);
        free(x);
        free(y);
    }
    float *before = malloc(other->arena_count * sizeof *before);
    memcpy(before, other->weights, other->arena_count * sizeof *before);
    assert_int_equal(checkpoint_load(other, path), 1);
    assert_memory_equal(before, other->weights, other->arena_count * sizeof *before);
    free(before);
    net_close(&a);
    net_close(&b);
    net_close(&other);
    cpu->call->close(&cpu);
    ref->call->close(&ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(every_cut),
        cmocka_unit_test(damaged_headers),
        cmocka_unit_test(checkpoints),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
