/* fetch: makes a complete, verified data set directory, once per node however many callers there
 * are, and prints its path. See source.h for where it comes from. */
#include "fetch/catalog.h"
#include "fetch/download.h"
#include "fetch/lock.h"
#include "fetch/source.h"
#include "fetch/stage.h"
#include "lib/file.h"
#include "lib/log.h"
#include "lib/opts.h"
#include "lib/stop.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct settings {
    const char *dataset, *data_dir;
    struct opt_list urls;
    int64_t retries;
    double timeout_seconds, lock_seconds;
    bool offline, verify, print_config;
};

/* The XDG base directory specification: a relative XDG_CACHE_HOME does not count. */
static int choose_data_dir(struct settings *set) {
    static char path[STAGE_PATH_MAX];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (set->data_dir)
        return 0;
    if ((!cache || *cache != '/') && (!home || !*home))
        return fail(BAD_USAGE, "neither HOME nor XDG_CACHE_HOME is set: give --data-dir");
    set->data_dir = path;
    return cache && *cache == '/' ? file_join(path, sizeof path, cache, "ddpipe")
                                  : file_join(path, sizeof path, home, ".cache/ddpipe");
}

static int check(const struct settings *set) {
    for (size_t i = 0; i < set->urls.count; i++) {
        const char *url = set->urls.items[i];
        if (!download_knows(url))
            return fail(BAD_USAGE, "--url %s: an http://, https:// or file:// URL is wanted", url);
        if (set->offline && !download_is_local(url))
            return fail(BAD_USAGE, "--url %s contradicts --offline", url);
    }
    return 0;
}

/* Complete already? What is there but not whole is left for the user to look at. */
static int look(const struct stage *s, bool verify, bool *complete) {
    struct dataset_manifest m;
    int rc = dataset_manifest_read(s->final, verify, &m, complete);
    if (rc)
        return fail(rc, "\"%s\" is damaged: remove it to have it fetched anew", s->final);
    if (*complete) {
        bool whole = catalog_matches(s->catalog, &m);
        dataset_manifest_close(&m);
        if (!whole)
            return fail(BAD_INPUT, "\"%s/%s\" does not name every file of %s", s->final,
                        DATASET_MANIFEST, s->catalog->name);
    } else if (!access(s->final, F_OK)) {
        return fail(BAD_INPUT, "\"%s\" was not made by fetch: it has no %s; move it away", s->final,
                    DATASET_MANIFEST);
    }
    return 0;
}

static int fetch_once(struct stage *s, const struct settings *set) {
    char name[64], path[STAGE_PATH_MAX];
    struct source_settings how = {.urls = &set->urls,
                                  .offline = set->offline,
                                  .timeout_seconds = set->timeout_seconds,
                                  .retries = (int)set->retries};
    snprintf(name, sizeof name, ".%s.lock", set->dataset);
    int rc = file_join(path, sizeof path, s->data, name), lock = -1;
    if (!rc)
        rc = lock_open(&lock, path, set->lock_seconds);
    bool complete = false;
    if (!rc)
        rc = look(s, set->verify, &complete); /* another one may have made it meanwhile */
    if (!rc && !complete)
        rc = source_fetch(s, &how);
    lock_close(&lock);
    return rc;
}

static int run(const struct settings *set) {
    struct catalog catalog;
    struct stage stage;
    bool complete;
    catalog_get(&catalog, set->dataset);
    int rc = file_make_folders(set->data_dir, 0755);
    if (rc)
        return rc;
    char *data = realpath(set->data_dir, NULL);
    if (!data)
        return fail(SYSTEM_FAILED, "cannot resolve \"%s\": %s", set->data_dir, strerror(errno));
    rc = stage_name(&stage, data, &catalog);
    free(data);
    if (!rc)
        rc = look(&stage, set->verify, &complete);
    if (!rc && !complete)
        rc = fetch_once(&stage, set);
    if (!rc && (puts(stage.final) < 0 || fflush(stdout)))
        rc = fail(SYSTEM_FAILED, "cannot write to standard output: %s", strerror(errno));
    return rc;
}

int main(int argc, char **argv) {
    static struct settings set;
    static const struct opt table[] = {
        {.name = "dataset",
         .type = OPT_CHOICE,
         .value = &set.dataset,
         .choices = CATALOG_NAMES,
         .fallback = "cifar10",
         .help = "data set"},
        {.name = "data-dir",
         .type = OPT_STRING,
         .value = &set.data_dir,
         .env = "DDPIPE_DATA",
         .arg = "DIR",
         .help = "where data sets are kept; without it ddpipe in $XDG_CACHE_HOME or ~/.cache"},
        {.name = "url",
         .type = OPT_LIST,
         .value = &set.urls,
         .arg = "URL",
         .help = "an archive of CIFAR-10 (binary or PNG sprites), or the folder of\n"
                 "Fashion-MNIST's files: https, http or file; may be repeated. Only\n"
                 "these are tried, in order; the content must be the published one"},
        {.name = "offline",
         .type = OPT_FLAG,
         .value = &set.offline,
         .help = "use no network: only what is there, or a source on this machine"},
        {.name = "verify",
         .type = OPT_FLAG,
         .value = &set.verify,
         .help = "compare the digest of every file that is there, not only its size"},
        {.name = "download-timeout",
         .type = OPT_REAL,
         .value = &set.timeout_seconds,
         .min = 1,
         .max = 604800,
         .fallback = "1800",
         .arg = "SECONDS",
         .help = "limit for one source"},
        {.name = "retries",
         .type = OPT_INT,
         .value = &set.retries,
         .min = 0,
         .max = 20,
         .fallback = "3",
         .arg = "N",
         .help = "attempts after the first, continuing what came so far"},
        {.name = "lock-timeout",
         .type = OPT_REAL,
         .value = &set.lock_seconds,
         .min = 0,
         .max = 604800,
         .fallback = "600",
         .arg = "SECONDS",
         .help = "how long to wait for another fetch of this data set"},
        {.name = "print-config",
         .type = OPT_FLAG,
         .value = &set.print_config,
         .help = "print the settings as JSON and exit"},
    };
    static const struct opts opts = {
        .program = "fetch",
        .summary = "Gets a data set, verifies it, and prints the directory that holds it.",
        .table = table,
        .count = sizeof table / sizeof table[0],
    };
    log_open("fetch", -1);
    int rc = opts_parse(&opts, argc, argv, NULL);
    if (!rc)
        rc = choose_data_dir(&set);
    if (!rc)
        rc = check(&set);
    if (rc)
        return rc;
    if (set.print_config) {
        opts_print_json(&opts);
        return 0;
    }
    stop_install();
    rc = run(&set);
    stop_finish();
    return rc;
}
