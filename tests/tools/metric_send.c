/* metric_send ENDPOINT: a stand-in for trainers. Sends the records that its input describes, one a
 * line, to an aggregator:
 *   hello RANK WORLD
 *   progress RANK WORLD EPOCH IMAGES STEP STEPS
 *   train|val RANK WORLD EPOCH IMAGES SECONDS START_SECONDS LOSS_SUM CORRECT
 *   total RANK WORLD EPOCH COUNT LOSS_SUM CORRECT   of training, instead of the right one
 *   bye RANK WORLD REASON
 *   raw TEXT              these bytes as they are
 * After the last rank's record of a phase the total is sent as rank 0 would, unless one was given.
 */
#include <stdio.h>
#include <string.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "lib/metric.h"
#include "lib/sock.h"

static const double deadline_seconds = 10;

static int send_bytes(struct sock *s, const void *bytes, size_t size) {
    enum sock_event e = sock_send_bytes(s, bytes, size, 0, clock_deadline(deadline_seconds));
    return e == SOCK_OK ? 0 : fail(SYSTEM_FAILED, "cannot send: %s", sock_event_text(e));
}

/* Sums of what was sent, per epoch and phase. */
static struct total {
    unsigned ranks;
    struct metric sum;
} totals[8][2];

static int send_total(struct sock *s, const struct metric *m) {
    struct total *t = &totals[m->epoch % 8][m->phase];
    uint8_t bytes[METRIC_SIZE_MAX];
    t->ranks++;
    t->sum.kind = METRIC_TOTAL;
    t->sum.rank = 0;
    t->sum.world_size = m->world_size;
    t->sum.epoch = m->epoch;
    t->sum.phase = m->phase;
    t->sum.count += m->count;
    t->sum.correct += m->correct;
    t->sum.loss_sum += m->loss_sum;
    return t->ranks == m->world_size ? send_bytes(s, bytes, metric_write(bytes, &t->sum)) : 0;
}

static int parse(const char *line, struct metric *m) {
    unsigned reason = 0;
    unsigned long long images = 0, correct = 0;
    char word[16];
    if (sscanf(line, "%15s %u %u", word, &m->rank, &m->world_size) != 3)
        return -1;
    if (strcmp(word, "hello") == 0) {
        m->kind = METRIC_HELLO;
        return 0;
    }
    if (strcmp(word, "bye") == 0) {
        m->kind = METRIC_BYE;
        int n = sscanf(line, "%*s %*u %*u %u", &reason);
        m->reason = (enum metric_reason)reason;
        return n == 1 ? 0 : -1;
    }
    if (strcmp(word, "progress") == 0) {
        m->kind = METRIC_PROGRESS;
        int n = sscanf(line, "%*s %*u %*u %u %llu %u %u", &m->epoch, &images, &m->step, &m->steps);
        m->images = images;
        return n == 4 ? 0 : -1;
    }
    if (strcmp(word, "total") == 0) {
        m->kind = METRIC_TOTAL;
        int n = sscanf(line, "%*s %*u %*u %u %llu %lf %llu", &m->epoch, &images, &m->loss_sum,
                       &correct);
        m->count = images;
        m->correct = correct;
        totals[m->epoch % 8][METRIC_TRAIN].ranks = 1000;
        return n == 4 ? 0 : -1;
    }
    m->kind = METRIC_EPOCH;
    m->phase = strcmp(word, "val") == 0 ? METRIC_VAL : METRIC_TRAIN;
    if (sscanf(line, "%*s %*u %*u %u %llu %lf %lf %lf %llu", &m->epoch, &images, &m->seconds,
               &m->start_seconds, &m->loss_sum, &correct) != 6)
        return -1;
    m->images = m->count = images;
    m->correct = correct;
    m->learning_rate = 0.5;
    m->wait_seconds = m->seconds / 4;
    m->compute_seconds = m->seconds / 2;
    m->comm_seconds = m->seconds / 4;
    m->hidden_seconds = m->seconds / 8;
    m->iteration_seconds = m->seconds / 16;
    return 0;
}

static int send_line(struct sock *s, char *line) {
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "raw ", 4) == 0)
        return send_bytes(s, line + 4, strlen(line + 4));
    struct metric m = {.host = "test"};
    if (parse(line, &m) < 0)
        return fail(BAD_USAGE, "what is \"%s\"?", line);
    uint8_t bytes[METRIC_SIZE_MAX];
    int error = send_bytes(s, bytes, metric_write(bytes, &m));
    return error || m.kind != METRIC_EPOCH ? error : send_total(s, &m);
}

int main(int argc, char **argv) {
    log_open("metric_send", -1);
    if (argc != 2)
        return fail(BAD_USAGE, "usage: metric_send ENDPOINT");
    struct sock *s;
    int error = sock_connect(&s, SOCK_PUSH, argv[1]);
    if (error)
        return error;
    char line[512];
    while (!error && fgets(line, sizeof line, stdin))
        error = send_line(s, line);
    sock_close(&s, 5000);
    return error;
}
