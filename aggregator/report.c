/* report: writes summaries as lines for people and as JSON lines. */
#include "aggregator/report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/log.h"

struct report {
    const char *path; /* NULL: no file */
    FILE *file;
};

int report_open(struct report **r, const char *metrics) {
    struct report *made = calloc(1, sizeof *made);
    if (!made)
        return fail(SYSTEM_FAILED, "no memory for a report");
    made->path = metrics;
    if (metrics) {
        int fd = open(metrics, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        struct stat st;
        made->file = fd < 0 ? NULL : fdopen(fd, "a");
        if (!made->file || fstat(fd, &st) < 0) {
            int code =
                fail(SYSTEM_FAILED, "cannot write --metrics \"%s\": %s", metrics, strerror(errno));
            report_close(&made);
            return code;
        }
        if (st.st_size > 0) {
            report_close(&made);
            return fail(BAD_INPUT, "--metrics \"%s\" holds the numbers of another run", metrics);
        }
    }
    *r = made;
    return 0;
}

int report_close(struct report **r) {
    int code = 0;
    if ((*r)->file && fclose((*r)->file) != 0)
        code = fail(SYSTEM_FAILED, "cannot write \"%s\": %s", (*r)->path, strerror(errno));
    free(*r);
    *r = NULL;
    return code;
}

/* JSON knows no nan and no infinity. */
static json_t *number(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *to_json(const char *kind, const struct stats_summary *s) {
    json_t *o = json_pack("{s:s, s:I}", "kind", kind, "epoch", (json_int_t)s->epoch);
    json_object_set_new(o, "cumulative_time", number(s->cumulative_time));
    json_object_set_new(o, "epoch_time", number(s->epoch_time));
    json_object_set_new(o, "images", json_integer((json_int_t)s->images));
    json_object_set_new(o, "images_per_sec", number(s->images_per_sec));
    json_object_set_new(o, "train_count", json_integer((json_int_t)s->train_count));
    if (s->train_count > 0) {
        json_object_set_new(o, "train_loss", number(s->train_loss));
        json_object_set_new(o, "train_accuracy", number(s->train_accuracy));
    }
    json_object_set_new(o, "val_count", json_integer((json_int_t)s->val_count));
    if (s->val_count > 0) {
        json_object_set_new(o, "val_loss", number(s->val_loss));
        json_object_set_new(o, "val_accuracy", number(s->val_accuracy));
        json_object_set_new(o, "val_seconds", number(s->val_seconds));
    }
    json_object_set_new(o, "learning_rate", number(s->learning_rate));
    if (s->seconds_per_iteration > 0)
        json_object_set_new(o, "seconds_per_iteration", number(s->seconds_per_iteration));
    json_object_set_new(o, "stall",
                        json_pack("{s:o, s:o, s:o, s:o}", "wait", number(s->wait), "compute",
                                  number(s->compute), "comm", number(s->comm), "hidden",
                                  number(s->hidden)));
    return o;
}

/* Takes the object over. */
static int write_json(struct report *r, json_t *o) {
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(o);
    if (!text)
        return fail(SYSTEM_FAILED, "no memory for a line of \"%s\"", r->path);
    int written = fprintf(r->file, "%s\n", text);
    free(text);
    if (written < 0 || fflush(r->file) != 0)
        return fail(SYSTEM_FAILED, "cannot write \"%s\": %s", r->path, strerror(errno));
    return 0;
}

int report_rank(struct report *r, uint32_t rank, const struct stats_summary *s) {
    if (!r->file)
        return 0;
    json_t *o = to_json("rank_epoch", s);
    json_object_set_new(o, "rank", json_integer(rank));
    json_object_set_new(o, "seconds", number(s->epoch_time));
    return write_json(r, o);
}

int report_epoch(struct report *r, const struct stats_summary *s) {
    int error = r->file ? write_json(r, to_json("epoch", s)) : 0;
    return error ? error : report_line(s);
}

static int end_line(void) {
    if (putchar('\n') == EOF || fflush(stdout) != 0)
        return fail(SYSTEM_FAILED, "cannot write to standard output: %s", strerror(errno));
    return 0;
}

int report_line(const struct stats_summary *s) {
    printf("Epoch = %2u: Cumulative Time = %5.3f", (unsigned)s->epoch, s->cumulative_time);
    if (s->images_per_sec > 0) /* else evaluation */
        printf(", Epoch Time = %5.3f, Images/sec = %.1f", s->epoch_time, s->images_per_sec);
    if (s->train_count > 0)
        printf(", Training Loss = %.3f, Training Accuracy = %.3f", s->train_loss,
               s->train_accuracy);
    if (s->val_count > 0)
        printf(", Validation Loss = %5.3f, Validation Accuracy = %5.3f", s->val_loss,
               s->val_accuracy);
    return end_line();
}

int report_end(enum metric_reason reason, const struct stats_summary *last) {
    static const char *const words[] = {
        [METRIC_TARGET] = "Target reached",
        [METRIC_LIMIT] = "Limit reached without the target",
        [METRIC_DONE] = "Done",
        [METRIC_FAILED] = "Failed",
    };
    printf("%s: Epoch = %u, Cumulative Time = %.3f", words[reason], (unsigned)last->epoch,
           last->cumulative_time);
    if (last->val_count > 0)
        printf(", Validation Accuracy = %.3f", last->val_accuracy);
    return end_line();
}
