/* opts: one table per program drives its parser, --help, --version, --options, --print-config
 * and environment defaults.
 *
 * "--name value" and "--name=value" are read; "--" ends the options. A value comes from the command
 * line, else from the environment variable, else from the table. An unknown, repeated, ambiguous
 * or out-of-range option is refused (BAD_USAGE) with its name, the value and what is allowed;
 * an unknown one with the nearest known name. */
#ifndef DDPIPE_OPTS_H
#define DDPIPE_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum opt_type {
    OPT_FLAG,   /* bool *value; takes no argument; "--no-x" is an option of its own where wanted */
    OPT_INT,    /* int64_t *value; min..max */
    OPT_REAL,   /* double *value; min..max; never nan or infinite */
    OPT_STRING, /* const char **value; NULL where the default is NULL */
    OPT_CHOICE, /* const char **value; one of choices, "a|b|c" */
    OPT_LIST,   /* struct opt_list *value; the option may be repeated */
};

struct opt_list {
    size_t count;
    const char *items[32];
};

struct opt {
    const char *name; /* without "--" */
    enum opt_type type;
    void *value;          /* see enum opt_type */
    double min, max;      /* OPT_INT, OPT_REAL: both ends allowed; both 0 means no limit */
    const char *choices;  /* OPT_CHOICE */
    const char *fallback; /* the default as it would be typed; NULL: none (0, false, NULL) */
    const char *env;      /* environment variable that replaces the default, or NULL */
    const char *arg;      /* name of the argument in --help: "DIR", "N" */
    const char *help;     /* one line; a line break continues it, indented, on the next */
};

struct opts {
    const char *program;
    const char *summary;  /* one sentence: what comes in, what goes out */
    const char *operands; /* "[FILE]…" for --help; NULL: none are taken */
    const struct opt *table;
    size_t count;
};

/* Reads the command line into the table's values. On return *operand is the index in argv of the
 * first operand (argc if none; operand may be NULL where operands is NULL).
 * --help, --version, --options (one line per option: name, TAB, "flag" or "value"; for scripts that
 * pass options on) print on stdout and exit 0; these are the only exits. */
int opts_parse(const struct opts *opts, int argc, char **argv, int *operand);

/* Was the option given, on the command line or in the environment? */
bool opts_given(const struct opts *opts, const char *name);

/* All values as one JSON object, {"name": value, …}, in the table's order, without line break, on
 * stdout: what --print-config (a flag every program's table has) asks for. */
void opts_print_json(const struct opts *opts);

#endif
