/* opts.c: a table of options into values, help, JSON. */
#include "lib/opts.h"
#include "lib/log.h"
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DDPIPE_VERSION
#define DDPIPE_VERSION "0.1.0"
#endif

enum { OPTIONS_MAX = 96 };
static bool given[OPTIONS_MAX]; /* by place in the table: a program has one table */

static bool limited(const struct opt *o) {
    return o->min < 0 || o->min > 0 || o->max < 0 || o->max > 0;
}

static int bad_value(const struct opt *o, const char *from, const char *text, const char *why) {
    return fail(BAD_USAGE, "%s%s %s: %s", from ? from : "--", from ? ":" : o->name, text, why);
}

static int out_of_range(const struct opt *o, const char *from, const char *text) {
    char why[128];
    snprintf(why, sizeof why, "must be %.15g to %.15g", o->min, o->max);
    return bad_value(o, from, text, why);
}

static bool is_choice(const char *choices, const char *text) {
    size_t length = strlen(text);
    for (const char *c = choices; *c;) {
        size_t n = strcspn(c, "|");
        if (n == length && !memcmp(c, text, n))
            return true;
        c += n + (c[n] == '|');
    }
    return false;
}

/* from: the environment variable's name, NULL for the command line. */
static int set(const struct opt *o, const char *from, const char *text) {
    char *end;
    char why[256];
    errno = 0;
    switch (o->type) {
    case OPT_FLAG:
        if (strcmp(text, "1") != 0 && strcmp(text, "0") != 0)
            return bad_value(o, from, text, "must be 0 or 1");
        *(bool *)o->value = text[0] == '1';
        return 0;
    case OPT_INT: {
        long long i = strtoll(text, &end, 10);
        if (end == text || *end || errno || isspace((unsigned char)text[0]))
            return bad_value(o, from, text, "a whole number is wanted");
        if (limited(o) && ((double)i < o->min || (double)i > o->max))
            return out_of_range(o, from, text);
        *(int64_t *)o->value = i;
        return 0;
    }
    case OPT_REAL: {
        double x = strtod(text, &end);
        if (end == text || *end || !isfinite(x) || isspace((unsigned char)text[0]))
            return bad_value(o, from, text, "a number is wanted");
        if (limited(o) && (x < o->min || x > o->max))
            return out_of_range(o, from, text);
        *(double *)o->value = x;
        return 0;
    }
    case OPT_CHOICE:
        if (!is_choice(o->choices, text)) {
            snprintf(why, sizeof why, "must be one of %s", o->choices);
            return bad_value(o, from, text, why);
        }
        *(const char **)o->value = text;
        return 0;
    case OPT_STRING: *(const char **)o->value = text; return 0;
    case OPT_LIST: {
        struct opt_list *list = o->value;
        if (list->count == sizeof list->items / sizeof *list->items)
            return bad_value(o, from, text, "given more than 32 times");
        list->items[list->count++] = text;
        return 0;
    }
    }
    return 0;
}

/* Edits between two names (Levenshtein), for the nearest one. */
static size_t distance(const char *a, size_t a_length, const char *b) {
    size_t row[64], n = strlen(b);
    if (n >= 63 || a_length >= 63)
        return 64;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[n];
}

static int unknown(const struct opts *opts, const char *arg, size_t length) {
    const char *nearest = NULL;
    size_t best = 4;
    for (size_t i = 0; i < opts->count; i++) {
        size_t d = distance(arg + 2, length - 2, opts->table[i].name);
        if (d < best) {
            best = d;
            nearest = opts->table[i].name;
        }
    }
    if (nearest)
        return fail(BAD_USAGE, "unknown option %.*s: did you mean --%s?", (int)length, arg,
                    nearest);
    return fail(BAD_USAGE, "unknown option %.*s (see --help)", (int)length, arg);
}

static void print_help(const struct opts *opts) {
    printf("usage: %s [OPTION]…%s%s\n%s\n\n", opts->program, opts->operands ? " " : "",
           opts->operands ? opts->operands : "", opts->summary);
    for (size_t i = 0; i < opts->count; i++) {
        const struct opt *o = &opts->table[i];
        char left[160];
        const char *arg = o->type == OPT_CHOICE ? o->choices : o->arg ? o->arg : "VALUE";
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->type == OPT_FLAG ? "" : " ",
                 o->type == OPT_FLAG ? "" : arg);
        printf(strlen(left) > 30 ? "  %s\n%34s" : "  %-32s%s", left, "");
        for (const char *h = o->help ? o->help : ""; *h; h++) {
            putchar(*h);
            if (*h == '\n')
                printf("%34s", "");
        }
        bool wide = limited(o) && o->max < 1e6 && (o->type == OPT_INT || o->type == OPT_REAL);
        if (wide)
            printf(" [%.6g to %.6g]", o->min, o->max);
        if (o->fallback)
            printf(" (default %s)", o->fallback);
        if (o->env)
            printf(" [$%s]", o->env);
        putchar('\n');
    }
    printf("  %-32s%s\n  %-32s%s\n", "--help", "print this and exit", "--version",
           "print the version and exit");
    printf("\nExit: 0 done; 1 input or result is wrong; 100 wrong usage; 111 system or peer "
           "failed.\n");
}

static void answer_and_exit(const struct opts *opts, const char *arg) {
    if (!strcmp(arg, "--help")) {
        print_help(opts);
    } else if (!strcmp(arg, "--version")) {
        printf("%s (ddpipe) %s\n", opts->program, DDPIPE_VERSION);
    } else if (!strcmp(arg, "--options")) {
        for (size_t i = 0; i < opts->count; i++)
            printf("%s\t%s\n", opts->table[i].name,
                   opts->table[i].type == OPT_FLAG ? "flag" : "value");
    } else {
        return;
    }
    exit(fflush(stdout) ? SYSTEM_FAILED : 0);
}

static int read_option(const struct opts *opts, int argc, char **argv, int *at) {
    const char *arg = argv[*at];
    size_t length = strcspn(arg, "=");
    const struct opt *o = NULL;
    for (size_t i = 0; i < opts->count && !o; i++)
        if (strlen(opts->table[i].name) == length - 2 &&
            !memcmp(opts->table[i].name, arg + 2, length - 2))
            o = &opts->table[i];
    if (!o)
        return unknown(opts, arg, length);
    if (given[o - opts->table] && o->type != OPT_LIST)
        return fail(BAD_USAGE, "--%s is given twice", o->name);
    given[o - opts->table] = true;
    if (o->type == OPT_FLAG) {
        if (arg[length])
            return fail(BAD_USAGE, "--%s takes no value", o->name);
        return set(o, NULL, "1");
    }
    if (arg[length])
        return set(o, NULL, arg + length + 1);
    if (*at + 1 >= argc)
        return fail(BAD_USAGE, "--%s: a value is missing", o->name);
    return set(o, NULL, argv[++*at]);
}

static int set_defaults(const struct opts *opts) {
    for (size_t i = 0; i < opts->count; i++) {
        const struct opt *o = &opts->table[i];
        given[i] = false;
        switch (o->type) {
        case OPT_FLAG: *(bool *)o->value = false; break;
        case OPT_INT: *(int64_t *)o->value = 0; break;
        case OPT_REAL: *(double *)o->value = 0; break;
        case OPT_STRING:
        case OPT_CHOICE: *(const char **)o->value = NULL; break;
        case OPT_LIST: *(struct opt_list *)o->value = (struct opt_list){0}; break;
        }
        int rc = o->fallback ? set(o, NULL, o->fallback) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

/* For what the command line left open. */
static int set_from_environment(const struct opts *opts) {
    for (size_t i = 0; i < opts->count; i++) {
        const struct opt *o = &opts->table[i];
        const char *text = o->env && !given[i] ? getenv(o->env) : NULL;
        if (!text || !*text)
            continue;
        given[i] = true;
        int rc = set(o, o->env, text);
        if (rc)
            return rc;
    }
    return 0;
}

int opts_parse(const struct opts *opts, int argc, char **argv, int *operand) {
    if (opts->count > OPTIONS_MAX)
        return fail(BAD_USAGE, "more than %d options in the table", OPTIONS_MAX);
    int rc = set_defaults(opts), at = 1;
    for (; at < argc && !rc; at++) {
        if (!strcmp(argv[at], "--")) {
            at++;
            break;
        }
        if (strncmp(argv[at], "--", 2) != 0) {
            if (argv[at][0] == '-' && argv[at][1])
                return fail(BAD_USAGE, "unknown option %s (options begin with --)", argv[at]);
            break;
        }
        answer_and_exit(opts, argv[at]);
        rc = read_option(opts, argc, argv, &at);
    }
    if (!rc)
        rc = set_from_environment(opts);
    if (!rc && !opts->operands && at < argc)
        rc = fail(BAD_USAGE, "\"%s\" is no option, and no operand is taken", argv[at]);
    if (operand)
        *operand = at;
    return rc;
}

bool opts_given(const struct opts *opts, const char *name) {
    for (size_t i = 0; i < opts->count; i++)
        if (!strcmp(opts->table[i].name, name))
            return given[i];
    return false;
}

static json_t *to_json(const struct opt *o) {
    switch (o->type) {
    case OPT_FLAG: return json_boolean(*(bool *)o->value);
    case OPT_INT: return json_integer(*(int64_t *)o->value);
    case OPT_REAL: return json_real(*(double *)o->value);
    case OPT_LIST: {
        const struct opt_list *list = o->value;
        json_t *array = json_array();
        for (size_t i = 0; i < list->count; i++)
            json_array_append_new(array, json_string(list->items[i]));
        return array;
    }
    default: {
        const char *text = *(const char **)o->value;
        return text ? json_string(text) : json_null();
    }
    }
}

void opts_print_json(const struct opts *opts) {
    json_t *object = json_object();
    for (size_t i = 0; i < opts->count; i++)
        json_object_set_new(object, opts->table[i].name, to_json(&opts->table[i]));
    json_dumpf(object, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    json_decref(object);
}
