/* prep: decodes a data set's directory into a store in shared memory, which every loader of the
 * node maps, and prints its path. Or shows, draws, removes a store. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/opts.h"
#include "lib/stop.h"
#include "lib/store.h"
#include "prep/build.h"
#include "prep/info.h"
#include "prep/sheet.h"

struct settings {
    const char *data, *store_dir, *resize, *info, *dump, *remove;
    int64_t threads, owner_pid;
    bool any_content, sweep, print_config;
};

/* Where prep was started from another pid namespace its parent is 0; process 1 then stands for
 * the life of the container. */
static pid_t owner_of(const struct settings *set) {
    pid_t parent = getppid();
    if (set->owner_pid > 0)
        return (pid_t)set->owner_pid;
    return parent > 0 ? parent : 1;
}

static int parse_resize(const char *text, struct decode_options *options) {
    char rest;
    if (!text)
        return 0;
    if (strspn(text, "0123456789x") != strlen(text) ||
        sscanf(text, "%5ux%5u%c", &options->resize_h, &options->resize_w, &rest) != 2 ||
        options->resize_h < 1 || options->resize_w < 1 || options->resize_h > STORE_SIDE_MAX ||
        options->resize_w > STORE_SIDE_MAX)
        return fail(BAD_USAGE,
                    "--resize \"%s\": HEIGHTxWIDTH is wanted, such as 32x32, sides of 1 to "
                    "%d",
                    text, STORE_SIDE_MAX);
    return 0;
}

static int build(const struct settings *set) {
    struct decode_options options = {.dir = set->data, .any_content = set->any_content};
    int r = parse_resize(set->resize, &options);
    if (r)
        return r;
    struct store *store;
    r = build_store(&store, &options, set->store_dir, (int)set->threads, owner_of(set));
    if (r)
        return r;
    puts(store->path);
    store_close(&store);
    return 0;
}

static int show(const char *name, const char *picture) {
    struct store *store;
    int r = store_open(&store, name);
    if (r)
        return r;
    if (picture)
        r = sheet_write(store, picture);
    else
        info_print(store);
    store_close(&store);
    return r;
}

static int run(const struct settings *set, int operands, char **operand) {
    int jobs = (set->data != NULL) + (set->info != NULL) + (set->dump != NULL) +
               (set->remove != NULL) + set->sweep;
    if (jobs != 1)
        return fail(BAD_USAGE, "exactly one of --data, --info, --dump, --remove and --sweep is "
                               "wanted");
    if (set->dump && operands != 1)
        return fail(BAD_USAGE, "--dump STORE wants the name of one PNG file after it");
    if (!set->dump && operands > 0)
        return fail(BAD_USAGE, "unexpected argument \"%s\"", operand[0]);
    if (set->info)
        return show(set->info, NULL);
    if (set->dump)
        return show(set->dump, operand[0]);
    if (set->remove)
        return store_remove(set->remove, (pid_t)set->owner_pid);
    if (set->sweep)
        return store_sweep(set->store_dir);
    return build(set);
}

static struct settings set;
static const struct opt table[] = {
    {.name = "data",
     .type = OPT_STRING,
     .value = &set.data,
     .arg = "DIR",
     .help = "directory of the data set: CIFAR binary, PNG sprites, PNG folders or IDX"},
    {.name = "store-dir",
     .type = OPT_STRING,
     .value = &set.store_dir,
     .fallback = STORE_DIR,
     .arg = "DIR",
     .help = "where the store is made"},
    {.name = "threads",
     .type = OPT_INT,
     .value = &set.threads,
     .min = 0,
     .max = 256,
     .fallback = "0",
     .arg = "N",
     .help = "threads that decode; 0: one per CPU"},
    {.name = "any-content",
     .type = OPT_FLAG,
     .value = &set.any_content,
     .help = "take CIFAR-10 files whose content is not the published one"},
    {.name = "resize",
     .type = OPT_STRING,
     .value = &set.resize,
     .arg = "HxW",
     .help = "bring every image of PNG folders to this size; without it\n"
             "images of different sizes are refused"},
    {.name = "owner-pid",
     .type = OPT_INT,
     .value = &set.owner_pid,
     .min = 0,
     .max = 4194304,
     .fallback = "0",
     .arg = "PID",
     .help = "process that owns the store: once it is dead and nobody reads the\n"
             "store, a later start of prep removes it; 0: the parent process"},
    {.name = "info",
     .type = OPT_STRING,
     .value = &set.info,
     .arg = "STORE",
     .help = "print what a store holds, a key and its value a line"},
    {.name = "dump",
     .type = OPT_STRING,
     .value = &set.dump,
     .arg = "STORE",
     .help = "write a contact sheet of the store to FILE.png"},
    {.name = "remove",
     .type = OPT_STRING,
     .value = &set.remove,
     .arg = "STORE",
     .help = "remove a store, unless a process reads it; with --owner-pid only\n"
             "that owner leaves, and the last one to leave removes it"},
    {.name = "sweep",
     .type = OPT_FLAG,
     .value = &set.sweep,
     .help = "remove what dead processes left in --store-dir"},
    {.name = "print-config",
     .type = OPT_FLAG,
     .value = &set.print_config,
     .help = "print the settings as JSON and exit"},
};

int main(int argc, char **argv) {
    static const struct opts opts = {
        .program = "prep",
        .summary = "Decodes a data set into a store in shared memory and prints the store's path.",
        .operands = "[FILE.png]",
        .table = table,
        .count = sizeof table / sizeof table[0],
    };
    log_open("prep", -1);
    int operand;
    int r = opts_parse(&opts, argc, argv, &operand);
    if (r)
        return r;
    if (set.print_config) {
        opts_print_json(&opts);
        return 0;
    }
    stop_install();
    r = run(&set, argc - operand, argv + operand);
    stop_finish();
    return r;
}
