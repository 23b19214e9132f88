/* Proves that a manifest comes back as it was written, that a file of another size or content is
 * found, and that no cut or changed manifest is taken for a whole one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/dataset.h"
#include "lib/digest.h"
#include "lib/file.h"
#include "lib/log.h"

#include <cmocka.h> /* last: it has a macro fail() */

static char dir[64], path[128];

static void put(const char *name, const char *content) {
    assert_int_equal(file_join(path, sizeof path, dir, name), 0);
    assert_int_equal(file_publish(path, content, strlen(content), 0644), 0);
}

/* A directory with two files and their manifest. */
static int open_dir(void **state) {
    (void)state;
    struct dataset_file files[2] = {{.name = "a.bin", .size = 4}, {.name = "b c.bin", .size = 0}};
    struct dataset_manifest m = {"some-set", DATASET_IDX, 2, files};
    strcpy(dir, "/tmp/ddpipe-test.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    put("a.bin", "four");
    put("b c.bin", "");
    digest_of_bytes(DIGEST_SHA256, "four", 4, files[0].sha256);
    digest_of_bytes(DIGEST_SHA256, "", 0, files[1].sha256);
    return dataset_manifest_write(dir, &m);
}

static int close_dir(void **state) {
    (void)state;
    return file_remove_tree(dir);
}

static int read_it(bool check_digests) {
    struct dataset_manifest m;
    bool found;
    int rc = dataset_manifest_read(dir, check_digests, &m, &found);
    assert_int_equal(found, !rc);
    if (!rc)
        dataset_manifest_close(&m);
    return rc;
}

static void it_comes_back(void **state) {
    (void)state;
    struct dataset_manifest m;
    bool found;
    assert_int_equal(dataset_manifest_read(dir, true, &m, &found), 0);
    assert_true(found);
    assert_string_equal(m.name, "some-set");
    assert_int_equal(m.format, DATASET_IDX);
    assert_int_equal(m.count, 2);
    assert_string_equal(m.files[0].name, "a.bin");
    assert_int_equal(m.files[0].size, 4);
    assert_string_equal(m.files[1].name, "b c.bin");
    dataset_manifest_close(&m);
    assert_null(m.files);
}

static void none_is_no_error(void **state) {
    (void)state;
    struct dataset_manifest m;
    bool found = true;
    assert_int_equal(dataset_manifest_read("/nowhere", false, &m, &found), 0);
    assert_false(found);
}

static void changed_files_are_found(void **state) {
    (void)state;
    put("a.bin", "fouR");
    assert_int_equal(read_it(false), 0);
    assert_int_equal(read_it(true), BAD_INPUT);
    put("a.bin", "fours");
    assert_int_equal(read_it(false), BAD_INPUT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(read_it(false), BAD_INPUT);
}

/* Cut anywhere but at the end of a line it is refused; with fewer than all lines too, as long as
 * there is not one whole file in it. */
static void a_cut_manifest_is_refused(void **state) {
    (void)state;
    char *text;
    size_t size;
    assert_int_equal(file_join(path, sizeof path, dir, DATASET_MANIFEST), 0);
    assert_int_equal(file_read(path, 10000, &text, &size), 0);
    size_t first_file = (size_t)(strstr(text, "file ") - text);
    for (size_t n = 0; n < size; n++) {
        if (n > first_file && text[n - 1] == '\n')
            continue;
        assert_int_equal(file_publish(path, text, n, 0644), 0);
        assert_int_equal(read_it(false), BAD_INPUT);
    }
    free(text);
}

#define HEAD "ddpipe-dataset 1\nname x\nformat idx\n"
#define HEX "04efaf080f5a3e74e1c29d1ca6a48569382cbbcd324e8d59d2b83ef21c039f00"

static void other_lines_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "ddpipe-dataset 2\nname x\nformat idx\nfile 4 " HEX " a.bin\n",
        "ddpipe-dataset 1\nname x\nformat jpeg\nfile 4 " HEX " a.bin\n",
        HEAD "file 4 " HEX " ../a.bin\n",
        HEAD "file 4 " HEX " x/../a.bin\n",
        HEAD "file 4 " HEX " /etc/passwd\n",
        HEAD "file 4 " HEX " \n",
        HEAD "file 4 04ef a.bin\n",
        HEAD "file 4 " HEX "00 a.bin\n",
        HEAD "file x " HEX " a.bin\n",
        HEAD "\n",
        HEAD "folder a\n",
        HEAD,
    };
    put(DATASET_MANIFEST, HEAD "file 4 " HEX " a.bin\n");
    assert_int_equal(read_it(true), 0); /* so it is the change that is refused */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put(DATASET_MANIFEST, wrong[i]);
        if (read_it(false) != BAD_INPUT)
            fail_msg("taken: %s", wrong[i]);
    }
    /* This one leads to the right file, by leaving the directory. */
    char round[256];
    snprintf(round, sizeof round, HEAD "file 4 " HEX " ../%s/a.bin\n", strrchr(dir, '/') + 1);
    put(DATASET_MANIFEST, round);
    assert_int_equal(read_it(true), BAD_INPUT);
}

static void formats_have_their_words(void **state) {
    (void)state;
    for (int i = DATASET_CIFAR_BINARY; i <= DATASET_IDX; i++)
        assert_int_equal(dataset_format_of(dataset_format_name((enum dataset_format)i)), i);
    assert_int_equal(dataset_format_of("jpeg"), -1);
    assert_int_equal(dataset_format_of(""), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_comes_back, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(none_is_no_error, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(changed_files_are_found, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(a_cut_manifest_is_refused, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(other_lines_are_refused, open_dir, close_dir),
        cmocka_unit_test(formats_have_their_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
