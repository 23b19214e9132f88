/* replay: reads JSON lines as report.c wrote them and prints their epochs again. */
#include "aggregator/replay.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/report.h"
#include "lib/log.h"

/* An absent number is not found; null stands for one that is not finite. */
static bool take(const json_t *o, const char *name, double *out) {
    const json_t *v = json_object_get(o, name);
    *out = json_is_null(v) ? NAN : json_number_value(v);
    return json_is_null(v) || json_is_number(v);
}

static int from_json(const char *path, size_t line, const json_t *o, struct stats_summary *s) {
    double epoch, train_count, val_count;
    const struct {
        const char *name;
        double *value;
    } always[] = {
        {"epoch", &epoch},
        {"cumulative_time", &s->cumulative_time},
        {"epoch_time", &s->epoch_time},
        {"images_per_sec", &s->images_per_sec},
        {"train_count", &train_count},
        {"val_count", &val_count},
    };
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (!take(o, always[i].name, always[i].value))
            return fail(BAD_INPUT, "%s:%zu: no number \"%s\"", path, line, always[i].name);
    if (!(epoch >= 1 && epoch <= UINT32_MAX))
        return fail(BAD_INPUT, "%s:%zu: epoch %g", path, line, epoch);
    s->epoch = (uint32_t)epoch;
    s->train_count =
        take(o, "train_loss", &s->train_loss) && take(o, "train_accuracy", &s->train_accuracy);
    s->val_count = take(o, "val_loss", &s->val_loss) && take(o, "val_accuracy", &s->val_accuracy);
    if ((train_count > 0) != (s->train_count > 0) || (val_count > 0) != (s->val_count > 0))
        return fail(BAD_INPUT, "%s:%zu: counts and losses do not go together", path, line);
    return 0;
}

static int replay_line(const char *path, size_t line, const char *text, size_t length) {
    if (length == 0 || text[length - 1] != '\n')
        return fail(BAD_INPUT, "%s:%zu: the line is cut short", path, line);
    json_error_t why;
    json_t *o = json_loadb(text, length, 0, &why);
    if (!o)
        return fail(BAD_INPUT, "%s:%zu: %s", path, line, why.text);
    const char *kind = json_string_value(json_object_get(o, "kind"));
    int error = 0;
    if (!kind)
        error = fail(BAD_INPUT, "%s:%zu: no object with a \"kind\"", path, line);
    else if (strcmp(kind, "epoch") == 0) {
        struct stats_summary s = {0};
        error = from_json(path, line, o, &s);
        if (!error)
            error = report_line(&s);
    }
    json_decref(o);
    return error;
}

int replay_print(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file)
        return fail(BAD_INPUT, "cannot open \"%s\": %s", path, strerror(errno));
    char *text = NULL;
    size_t room = 0;
    ssize_t length;
    int error = 0;
    for (size_t line = 1; !error && (length = getline(&text, &room, file)) > 0; line++)
        error = replay_line(path, line, text, (size_t)length);
    if (!error && ferror(file))
        error = fail(SYSTEM_FAILED, "cannot read \"%s\": %s", path, strerror(errno));
    free(text);
    fclose(file);
    return error;
}
