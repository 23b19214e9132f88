/* Proves that options come from the command line, the environment and the table in that order, that
 * every wrong one is refused with its name and value, and that help, version and JSON say what
 * the table says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/opts.h"

#include <cmocka.h> /* last: it has a macro fail() */

static bool loud;
static int64_t count;
static double rate;
static const char *name, *color;
static struct opt_list urls;

static const struct opt table[] = {
    {.name = "loud", .type = OPT_FLAG, .value = &loud, .env = "T_LOUD", .help = "say more"},
    {.name = "count",
     .type = OPT_INT,
     .value = &count,
     .min = -2,
     .max = 9,
     .fallback = "3",
     .env = "T_COUNT",
     .arg = "N",
     .help = "how many"},
    {.name = "rate", .type = OPT_REAL, .value = &rate, .min = 0, .max = 1, .fallback = "0.5"},
    {.name = "name", .type = OPT_STRING, .value = &name},
    {.name = "color",
     .type = OPT_CHOICE,
     .value = &color,
     .choices = "red|green",
     .fallback = "red"},
    {.name = "url", .type = OPT_LIST, .value = &urls},
};
static struct opts opts = {.program = "tester",
                           .summary = "Tests.",
                           .table = table,
                           .count = sizeof table / sizeof *table};

static int captured_fd = -1, kept_fd;
static char captured[8192];

static void capture(int fd) {
    captured_fd = memfd_create("captured", 0);
    assert_true(captured_fd >= 0);
    fflush(NULL);
    kept_fd = dup(fd);
    dup2(captured_fd, fd);
}

static const char *release(int fd) {
    fflush(NULL);
    dup2(kept_fd, fd);
    ssize_t n = pread(captured_fd, captured, sizeof captured - 1, 0);
    captured[n > 0 ? n : 0] = '\0';
    close(kept_fd);
    close(captured_fd);
    return captured;
}

static int parse(int *operand, ...) {
    char *argv[32] = {"tester"};
    int argc = 1;
    va_list ap;
    va_start(ap, operand);
    for (char *arg; (arg = va_arg(ap, char *));)
        argv[argc++] = arg;
    va_end(ap);
    capture(STDERR_FILENO);
    int rc = opts_parse(&opts, argc, argv, operand);
    release(STDERR_FILENO);
    return rc;
}

static int reset(void **state) {
    (void)state;
    unsetenv("T_LOUD");
    unsetenv("T_COUNT");
    opts.operands = NULL;
    return 0;
}

static void defaults_come_from_the_table(void **state) {
    (void)state;
    loud = true;
    urls.count = 7;
    assert_int_equal(parse(NULL, NULL), 0);
    assert_false(loud);
    assert_int_equal(count, 3);
    assert_true(rate >= 0.5 && rate <= 0.5);
    assert_null(name);
    assert_string_equal(color, "red");
    assert_int_equal(urls.count, 0);
    assert_false(opts_given(&opts, "count"));
}

static void both_spellings_are_read(void **state) {
    (void)state;
    assert_int_equal(parse(NULL, "--loud", "--count", "-2", "--rate=1e-1", "--name=a=b", "--color",
                           "green", "--url", "x", "--url=y", NULL),
                     0);
    assert_true(loud);
    assert_int_equal(count, -2);
    assert_true(rate >= 0.1 && rate <= 0.1);
    assert_string_equal(name, "a=b");
    assert_string_equal(color, "green");
    assert_int_equal(urls.count, 2);
    assert_string_equal(urls.items[0], "x");
    assert_string_equal(urls.items[1], "y");
    assert_true(opts_given(&opts, "count"));
}

static void the_command_line_wins_over_the_environment(void **state) {
    (void)state;
    setenv("T_COUNT", "7", 1);
    setenv("T_LOUD", "1", 1);
    assert_int_equal(parse(NULL, NULL), 0);
    assert_int_equal(count, 7);
    assert_true(loud);
    assert_true(opts_given(&opts, "count"));
    assert_int_equal(parse(NULL, "--count=1", NULL), 0);
    assert_int_equal(count, 1);
    setenv("T_COUNT", "", 1); /* as good as not set */
    assert_int_equal(parse(NULL, NULL), 0);
    assert_int_equal(count, 3);
    setenv("T_COUNT", "70", 1);
    assert_int_equal(parse(NULL, NULL), BAD_USAGE);
    assert_non_null(strstr(captured, "T_COUNT"));
    assert_non_null(strstr(captured, "70"));
}

/* Each is refused, and what is said holds both words. */
static void wrong_ones_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *arg, *value, *word, *other;
    } wrong[] = {
        {"--count", "10", "count", "-2 to 9"},
        {"--count", "-3", "count", "-3"},
        {"--count", "1x", "count", "1x"},
        {"--count", "", "count", "whole number"},
        {"--count", " 1", "count", " 1"},
        {"--count", "1.5", "count", "1.5"},
        {"--count", "99999999999999999999", "count", "99999999999999999999"},
        {"--rate", "nan", "rate", "nan"},
        {"--rate", "inf", "rate", "inf"},
        {"--rate", "1.0001", "rate", "1.0001"},
        {"--rate", "-0.1", "rate", "-0.1"},
        {"--color", "blue", "color", "red|green"},
        {"--color", "re", "color", "re"},
        {"--color", "red|green", "color", "red|green"},
        {"--loud=1", NULL, "loud", "no value"},
        {"--count", NULL, "count", "missing"},
        {"--cuont", "1", "cuont", "--count"},
        {"--zzzzzzzz", NULL, "zzzzzzzz", "unknown"},
        {"-c", NULL, "-c", "unknown"},
        {"word", NULL, "word", "operand"},
        {"--coun", "1", "coun", "--count"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int rc = parse(NULL, wrong[i].arg, wrong[i].value, NULL);
        if (rc != BAD_USAGE || !strstr(captured, wrong[i].word) ||
            !strstr(captured, wrong[i].other))
            fail_msg("%s %s: %d, \"%s\"", wrong[i].arg, wrong[i].value ? wrong[i].value : "", rc,
                     captured);
    }
    assert_int_equal(parse(NULL, "--count=1", "--count=1", NULL), BAD_USAGE);
    assert_non_null(strstr(captured, "twice"));
}

static void a_list_has_a_limit(void **state) {
    (void)state;
    char *argv[35] = {"tester"};
    for (int i = 1; i < 34; i++)
        argv[i] = "--url=x";
    assert_int_equal(opts_parse(&opts, 33, argv, NULL), 0);
    assert_int_equal(urls.count, 32);
    capture(STDERR_FILENO);
    int rc = opts_parse(&opts, 34, argv, NULL);
    release(STDERR_FILENO);
    assert_int_equal(rc, BAD_USAGE);
    assert_non_null(strstr(captured, "url"));
}

static void operands_follow_the_options(void **state) {
    (void)state;
    int operand = -1;
    opts.operands = "[FILE]…";
    assert_int_equal(parse(&operand, "--count=1", "a", "--loud", NULL), 0);
    assert_int_equal(operand, 2);
    assert_false(loud);
    assert_int_equal(parse(&operand, "--", "--loud", NULL), 0);
    assert_int_equal(operand, 2);
    assert_false(loud);
    assert_int_equal(parse(&operand, "--loud", "-", NULL), 0);
    assert_int_equal(operand, 2);
    assert_int_equal(parse(&operand, NULL), 0);
    assert_int_equal(operand, 1);
}

/* These exit, so they are asked in a process of their own. */
static int ask(const char *question) {
    capture(STDOUT_FILENO);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *argv[] = {"tester", (char *)(uintptr_t)question, NULL};
        opts_parse(&opts, 2, argv, NULL);
        _exit(77);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    release(STDOUT_FILENO);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void questions_are_answered_on_stdout(void **state) {
    (void)state;
    assert_int_equal(ask("--help"), 0);
    static const char *const words[] = {"tester",    "Tests.",  "--loud",    "--count N", "-2 to 9",
                                        "default 3", "T_COUNT", "red|green", "--version"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(captured, words[i]))
            fail_msg("\"%s\" is not in the help:\n%s", words[i], captured);
    assert_int_equal(ask("--version"), 0);
    assert_string_equal(captured, "tester (ddpipe) " DDPIPE_VERSION "\n");
    assert_int_equal(ask("--options"), 0);
    assert_string_equal(captured, "loud\tflag\ncount\tvalue\nrate\tvalue\nname\tvalue\n"
                                  "color\tvalue\nurl\tvalue\n");
}

static void json_has_every_value(void **state) {
    (void)state;
    assert_int_equal(parse(NULL, "--rate=0.1", "--name=a\"b", "--url=x", NULL), 0);
    capture(STDOUT_FILENO);
    opts_print_json(&opts);
    release(STDOUT_FILENO);
    assert_string_equal(captured,
                        "{\"loud\": false, \"count\": 3, \"rate\": 0.1, \"name\": \"a\\\"b\", "
                        "\"color\": \"red\", \"url\": [\"x\"]}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_come_from_the_table, reset),
        cmocka_unit_test_setup(both_spellings_are_read, reset),
        cmocka_unit_test_setup(the_command_line_wins_over_the_environment, reset),
        cmocka_unit_test_setup(wrong_ones_are_refused_by_name, reset),
        cmocka_unit_test_setup(a_list_has_a_limit, reset),
        cmocka_unit_test_setup(operands_follow_the_options, reset),
        cmocka_unit_test_setup(questions_are_answered_on_stdout, reset),
        cmocka_unit_test_setup(json_has_every_value, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
