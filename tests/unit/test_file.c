/* Proves that a published file is whole or absent and leaves nothing beside it, that reading has
 * its limits, and that trees are made and removed without following links. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/log.h"

#include <cmocka.h> /* last: it has a macro fail() */

static char dir[64];

static const char *at(const char *name) {
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static int open_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/ddpipe-test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int close_dir(void **state) {
    (void)state;
    int rc = file_remove_tree(dir);
    return rc || access(dir, F_OK) == 0;
}

static size_t entries(void) {
    DIR *d = opendir(dir);
    size_t count = 0;
    assert_non_null(d);
    while (readdir(d))
        count++;
    closedir(d);
    return count - 2;
}

static void what_is_published_is_read_back(void **state) {
    (void)state;
    static const char content[] = "a\0b\n";
    char *bytes;
    size_t size;
    struct stat s;
    assert_int_equal(file_publish(at("x"), "older and longer", 16, 0644), 0);
    assert_int_equal(file_publish(at("x"), content, sizeof content, 0600), 0);
    assert_int_equal(stat(at("x"), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(file_read(at("x"), sizeof content, &bytes, &size), 0);
    assert_int_equal(size, sizeof content);
    assert_memory_equal(bytes, content, sizeof content);
    assert_int_equal(bytes[size], 0);
    free(bytes);
    assert_int_equal(entries(), 1);
}

static void the_empty_file_is_a_file(void **state) {
    (void)state;
    char *bytes;
    size_t size = 1;
    assert_int_equal(file_publish(at("empty"), "", 0, 0644), 0);
    assert_int_equal(file_read(at("empty"), 0, &bytes, &size), 0);
    assert_int_equal(size, 0);
    assert_string_equal(bytes, "");
    free(bytes);
}

/* The limit on a file's size stands for the full disk: write() fails half-way. */
static void a_failed_write_leaves_the_older_file_and_nothing_else(void **state) {
    (void)state;
    static char large[1 << 16];
    struct rlimit limit, small = {.rlim_cur = 1000};
    char *bytes;
    size_t size;
    assert_int_equal(file_publish(at("x"), "old", 3, 0644), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small.rlim_max = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = file_publish(at("x"), large, sizeof large, 0644);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(rc, SYSTEM_FAILED);
    assert_int_equal(entries(), 1);
    assert_int_equal(file_read(at("x"), 100, &bytes, &size), 0);
    assert_string_equal(bytes, "old");
    free(bytes);
    assert_int_not_equal(file_publish(at("absent/x"), "", 0, 0644), 0);
}

static void reading_has_its_limits(void **state) {
    (void)state;
    char *bytes;
    size_t size;
    assert_int_equal(file_publish(at("x"), "four", 4, 0644), 0);
    assert_int_equal(file_read(at("x"), 3, &bytes, &size), BAD_INPUT);
    assert_int_equal(file_read(at("absent"), 3, &bytes, &size), BAD_INPUT);
    assert_int_equal(file_read(dir, 1 << 20, &bytes, &size), BAD_INPUT);
    assert_int_equal(file_read("/dev/zero", 3, &bytes, &size), BAD_INPUT);
}

static void folders_are_made_at_any_depth(void **state) {
    (void)state;
    struct stat s;
    assert_int_equal(file_make_folders(at("a/b//c/"), 0755), 0);
    assert_int_equal(file_make_folders(at("a/b/c"), 0755), 0);
    assert_int_equal(stat(at("a/b/c"), &s), 0);
    assert_true(S_ISDIR(s.st_mode));
    assert_int_equal(file_publish(at("x"), "", 0, 0644), 0);
    assert_int_equal(file_make_folders(at("x"), 0755), BAD_INPUT);
    assert_int_equal(file_make_folders(at("x/y"), 0755), BAD_INPUT);
    assert_int_equal(file_make_folders("", 0755), BAD_INPUT);
}

static void a_tree_is_removed_but_not_what_it_points_to(void **state) {
    (void)state;
    assert_int_equal(file_make_folders(at("tree/deep/er"), 0755), 0);
    assert_int_equal(file_make_folders(at("other"), 0755), 0);
    assert_int_equal(file_publish(at("other/kept"), "", 0, 0644), 0);
    assert_int_equal(file_publish(at("tree/deep/x"), "", 0, 0644), 0);
    assert_int_equal(symlink("../other", at("tree/link")), 0);
    assert_int_equal(file_remove_tree(at("tree")), 0);
    assert_int_not_equal(access(at("tree"), F_OK), 0);
    assert_int_equal(access(at("other/kept"), F_OK), 0);
    assert_int_equal(symlink("nowhere", at("dangling")), 0);
    assert_int_equal(file_remove_tree(at("dangling")), 0);
    struct stat s;
    assert_int_not_equal(lstat(at("dangling"), &s), 0);
    assert_int_equal(file_remove_tree(at("absent")), 0);
}

static void a_path_that_does_not_fit_is_refused(void **state) {
    (void)state;
    char path[8];
    assert_int_equal(file_join(path, sizeof path, "abc", "def"), 0);
    assert_string_equal(path, "abc/def");
    assert_int_equal(file_join(path, sizeof path, "abc", "defg"), BAD_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_published_is_read_back, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(the_empty_file_is_a_file, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(a_failed_write_leaves_the_older_file_and_nothing_else,
                                        open_dir, close_dir),
        cmocka_unit_test_setup_teardown(reading_has_its_limits, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(folders_are_made_at_any_depth, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(a_tree_is_removed_but_not_what_it_points_to, open_dir,
                                        close_dir),
        cmocka_unit_test(a_path_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
