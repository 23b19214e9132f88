/* aggregator: receives the records of every rank, prints a line an epoch, and writes them all as
 * JSON lines. Or prints the lines of an earlier run again. */
#include <stdbool.h>
#include <stdint.h>

#include "aggregator/collect.h"
#include "aggregator/replay.h"
#include "aggregator/report.h"
#include "lib/log.h"
#include "lib/opts.h"
#include "lib/sock.h"
#include "lib/stop.h"

struct settings {
    const char *listen, *metrics, *replay;
    int64_t world_size;
    double timeout;
    bool print_config;
};

static int run(const struct settings *set) {
    if (set->replay)
        return replay_print(set->replay);
    if (!set->listen || set->world_size < 1)
        return fail(BAD_USAGE, "--listen and --world-size are wanted, or --replay");
    struct report *report;
    int error = report_open(&report, set->metrics);
    if (error)
        return error;
    struct sock *in;
    bool key;
    error = sock_use_run_key(&key);
    if (!error)
        error = sock_bind(&in, SOCK_PULL, set->listen);
    if (!error) {
        error = collect_run(in, report, (uint32_t)set->world_size, set->timeout);
        sock_close(&in, 0);
    }
    int close_error = report_close(&report);
    return error ? error : close_error;
}

int main(int argc, char **argv) {
    static struct settings set;
    static const struct opt table[] = {
        {.name = "listen",
         .type = OPT_STRING,
         .value = &set.listen,
         .arg = "ENDPOINT",
         .help = "where the trainers connect: ipc:///PATH or tcp://HOST:PORT"},
        {.name = "world-size",
         .type = OPT_INT,
         .value = &set.world_size,
         .min = 0,
         .max = 65536,
         .fallback = "0",
         .arg = "W",
         .help = "how many ranks there are"},
        {.name = "metrics",
         .type = OPT_STRING,
         .value = &set.metrics,
         .arg = "FILE",
         .help = "new file for every rank's and epoch's numbers, as JSON lines"},
        {.name = "timeout",
         .type = OPT_REAL,
         .value = &set.timeout,
         .min = 0.1,
         .max = 1e6,
         .fallback = "1800",
         .arg = "S",
         .help = "a rank that owes a word for that many seconds ends the run;\n"
                 "ranks other than 0 speak at the end of a phase only"},
        {.name = "replay",
         .type = OPT_STRING,
         .value = &set.replay,
         .arg = "FILE",
         .help = "print the epoch lines of a metrics file and exit"},
        {.name = "print-config",
         .type = OPT_FLAG,
         .value = &set.print_config,
         .help = "print the settings as JSON and exit"},
    };
    static const struct opts opts = {
        .program = "aggregator",
        .summary = "Sums the records of all ranks and prints one line an epoch. Losses and "
                   "accuracies are\nmeans over images; images/s is the sum of the ranks'; the "
                   "epoch's time is the slowest\nrank's training, cumulative time runs from the "
                   "start to the end of the validation.",
        .table = table,
        .count = sizeof table / sizeof table[0],
    };
    log_open("aggregator", -1);
    int error = opts_parse(&opts, argc, argv, NULL);
    if (error)
        return error;
    if (set.print_config) {
        opts_print_json(&opts);
        return 0;
    }
    stop_install();
    error = run(&set);
    stop_finish();
    return error;
}
