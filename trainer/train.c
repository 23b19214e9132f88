/* train.c: see train.h. The source dictates the order: train batches, END, validation batches, END,
 * then the next epoch. */
#include "trainer/train.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/stop.h"
#include <math.h>
#include <stdlib.h>

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

/* Labels of a batch, checked: the loss reads logits by them. */
static int take_labels(struct train *t, const struct batch *b) {
    for (uint32_t i = 0; i < b->count; i++) {
        t->labels[i] = batch_label(b->labels, i);
        if (t->labels[i] >= t->net->model.classes)
            return fail(BAD_INPUT, "epoch %u, step %u, image %u: label %d, there are %d classes",
                        b->epoch, b->step, i, t->labels[i], t->net->model.classes);
    }
    return 0;
}

/* Kinds of step, which differ in the calls that they make. */
enum { EVALUATE, FIRST_PASS, INNER_PASS, LAST_PASS };

static void begin_step(struct train *t, const struct plan *plan, int kind) {
    struct backend *b = t->net->backend;
    if (b->call->step_begin)
        b->call->step_begin(b, plan, kind);
}

static void end_step(struct train *t) {
    struct backend *b = t->net->backend;
    if (b->call->step_end)
        b->call->step_end(b);
}

static int forward(struct train *t, const struct batch *b, bool training, int kind,
                   struct plan **plan) {
    struct shape shape = {(int)b->count, (int)b->c, (int)b->h, (int)b->w};
    int rc = take_labels(t, b);
    if (rc)
        return rc;
    *plan = net_plan(t->net, shape, training);
    if (!*plan)
        return SYSTEM_FAILED;
    begin_step(t, *plan, kind);
    net_forward(t->net, *plan, b->pixels, (uint64_t)t->batches);
    net_loss(t->net, *plan, t->labels, training ? (float)t->smoothing : 0);
    t->uncounted += b->count;
    return 0;
}

/* Loss and correct images of the batches since the last call go into m. A device is asked once a
 * second, since the question waits for all its work. */
static int count(struct train *t, const struct batch *b, bool now, struct metric *m) {
    if (t->net->backend->call->step_begin && !now && clock_ns() - t->counted_ns < 1000000000)
        return 0;
    struct backend_loss loss = net_totals(t->net);
    t->counted_ns = clock_ns();
    if (!isfinite(loss.loss_sum))
        return fail(BAD_INPUT,
                    "the loss is %g at %sepoch %u, step %u (learning rate %g): lower --lr "
                    "or warm up longer",
                    loss.loss_sum, t->uncounted > b->count ? "or before " : "", b->epoch, b->step,
                    m->learning_rate);
    m->loss_sum += loss.loss_sum;
    m->correct += (uint64_t)loss.correct;
    m->count += t->uncounted;
    t->uncounted = 0;
    return 0;
}

/* The gradients are there: averages them over ranks and batches, and takes the step. */
static int update(struct train *t, struct metric *m, int64_t *exposed) {
    int64_t busy = 0;
    int rc = ddp_finish(t->ddp, &busy, exposed);
    if (rc)
        return rc;
    optim_step(t->optim, t->net, m->learning_rate,
               1. / ((double)comm_world_size(t->comm) * (double)t->kept));
    t->kept = 0;
    t->steps++;
    m->comm_seconds += seconds(*exposed);
    m->hidden_seconds += busy > *exposed ? seconds(busy - *exposed) : 0;
    return 0;
}

static int step(struct train *t, const struct batch *b, struct metric *m) {
    struct plan *plan;
    int64_t began = clock_ns(), exposed = 0;
    bool last = t->kept + 1 == t->accumulate;
    m->learning_rate = schedule_rate(&t->schedule, t->steps);
    int rc = forward(t, b, true, last ? LAST_PASS : t->kept ? INNER_PASS : FIRST_PASS, &plan);
    if (rc)
        return rc;
    t->batches++;
    t->kept++;
    net_backward(t->net, plan, last ? ddp_ready : NULL, t->ddp);
    if (last)
        rc = update(t, m, &exposed);
    else
        ddp_accumulate(t->ddp);
    end_step(t);
    if (last && t->average)
        average_step(t->average, t->net, t->steps);
    rc = rc ? rc : count(t, b, false, m);
    m->images += b->count;
    m->compute_seconds += seconds(clock_ns() - began - exposed);
    return rc;
}

static int evaluate(struct train *t, const struct batch *b, struct metric *m) {
    struct plan *plan;
    int64_t began = clock_ns();
    int rc = forward(t, b, false, EVALUATE, &plan);
    if (rc)
        return rc;
    end_step(t);
    rc = count(t, b, false, m);
    m->images += b->count;
    m->compute_seconds += seconds(clock_ns() - began);
    return rc;
}

static int progress(struct train *t, const struct metric *m, const struct batch *b) {
    struct metric p = *m;
    p.kind = METRIC_PROGRESS;
    p.step = b->step;
    p.steps = source_hello(t->source)->train_steps;
    p.start_seconds = seconds(clock_ns() - t->began_ns);
    return report_send(t->report, &p);
}

/* Seconds per iteration, as courses ask for it: over the first 40 without the first. */
struct pace {
    int count;
    int64_t first_ns, last_ns; /* ends of the first, and of the last of the 40 */
};

static void pace_count(struct pace *p) {
    if (++p->count > 40)
        return;
    p->last_ns = clock_ns();
    p->first_ns = p->count == 1 ? p->last_ns : p->first_ns;
}

static double pace_seconds(const struct pace *p) {
    int count = p->count < 40 ? p->count : 40;
    return count > 1 ? seconds(p->last_ns - p->first_ns) / (count - 1) : 0;
}

/* One phase of one epoch, to its END. */
static int run_phase(struct train *t, uint32_t epoch, enum batch_phase phase, struct metric *m) {
    int64_t began = clock_ns(), waited = 0, exposed = 0;
    struct pace pace = {0};
    *m = (struct metric){.kind = METRIC_EPOCH,
                         .epoch = epoch,
                         .phase = phase == BATCH_TRAIN ? METRIC_TRAIN : METRIC_VAL};
    for (;;) {
        struct batch_message message;
        int rc = source_next(t->source, &message, &waited);
        if (rc)
            return rc;
        if (stop_requested())
            return fail(SYSTEM_FAILED, "stopped by signal %d", stop_requested());
        if (message.batch.phase != phase || message.batch.epoch != epoch)
            return fail(BAD_INPUT, "the loader sent phase %d of epoch %u in phase %d of epoch %u",
                        (int)message.batch.phase, message.batch.epoch, (int)phase, epoch);
        m->seconds = seconds(clock_ns() - began);
        if (message.kind == BATCH_END) {
            int64_t asked = clock_ns();
            rc = count(t, &message.batch, true, m);
            if (rc)
                return rc;
            m->compute_seconds += seconds(clock_ns() - asked);
            m->seconds = seconds(clock_ns() - began);
            break;
        }
        rc = phase == BATCH_TRAIN ? step(t, &message.batch, m) : evaluate(t, &message.batch, m);
        if (!rc && phase == BATCH_TRAIN) {
            m->seconds = seconds(clock_ns() - began);
            rc = progress(t, m, &message.batch);
        }
        if (rc)
            return rc;
        pace_count(&pace);
    }
    if (phase == BATCH_TRAIN && t->kept) { /* the last update has fewer batches */
        int rc = update(t, m, &exposed);
        if (rc)
            return rc;
        if (t->average)
            average_step(t->average, t->net, t->steps);
        m->seconds = seconds(clock_ns() - began);
    }
    m->iteration_seconds = pace_seconds(&pace);
    m->wait_seconds = seconds(waited);
    m->start_seconds = seconds(clock_ns() - t->began_ns);
    return report_send(t->report, m);
}

/* What the ranks' records of a phase add up to, and rank 0's word of it to the aggregator. */
static int sum_ranks(struct train *t, const struct metric *mine, struct metric *total) {
    const struct backend_collectives *device = t->net->backend->call->collectives;
    double sums[3] = {(double)mine->count, (double)mine->correct, mine->loss_sum};
    int rc = 0;
    if (!device)
        rc = comm_sum_f64(t->comm, sums, 3);
    else if (comm_world_size(t->comm) > 1)
        device->sum_host(t->net->backend, sums, 3, -1);
    if (rc)
        return rc;
    *total = (struct metric){.kind = METRIC_TOTAL,
                             .epoch = mine->epoch,
                             .phase = mine->phase,
                             .count = (uint64_t)sums[0],
                             .correct = (uint64_t)sums[1],
                             .loss_sum = sums[2]};
    return comm_rank(t->comm) == 0 ? report_send(t->report, total) : 0;
}

/* Of GPUs rank 0 also says what all train together, summed by NCCL: what the aggregator must find.
 */
static void tell_rate(struct train *t, const struct metric *mine) {
    const struct backend_collectives *device = t->net->backend->call->collectives;
    double rate = mine->seconds > 0 ? (double)mine->images / mine->seconds : 0;
    if (!device || comm_world_size(t->comm) == 1 || mine->images == 0)
        return;
    device->sum_host(t->net->backend, &rate, 1, 0);
    if (comm_rank(t->comm) == 0)
        log_note("epoch %u: %.1f images/s on all %d GPUs", mine->epoch, rate,
                 comm_world_size(t->comm));
}

/* The same sums on every rank, so the same decision. */
static int decide(struct train *t, const struct metric *train, const struct metric *val,
                  bool *met) {
    struct metric total;
    tell_rate(t, train);
    int rc = sum_ranks(t, train, &total);
    rc = rc ? rc : sum_ranks(t, val, &total);
    if (rc)
        return rc;
    uint32_t expected = source_hello(t->source)->n_val;
    if (total.count != expected)
        return fail(BAD_INPUT, "epoch %u: %llu images were validated by all ranks, there are %u",
                    val->epoch, (unsigned long long)total.count, expected);
    double accuracy = total.count ? (double)total.correct / (double)total.count : 0;
    t->in_a_row = t->target > 0 && accuracy >= t->target ? t->in_a_row + 1 : 0;
    *met = t->target > 0 && t->in_a_row >= t->patience;
    return 0;
}

static int check_replicas(struct train *t, uint32_t epoch) {
    char digest[REPLICAS_DIGEST_SIZE];
    if (!t->check_replicas || comm_world_size(t->comm) == 1)
        return 0;
    int rc = replicas_check(t->comm, t->net, digest);
    if (!rc)
        log_note("epoch %u: replicas equal, digest %s", epoch, digest);
    return rc;
}

static int run_epoch(struct train *t, uint32_t epoch, bool *met) {
    struct metric train, val;
    if (t->stem_bias_epochs && epoch == t->stem_bias_epochs + 1)
        optim_freeze_stem(t->optim, t->net);
    int rc = run_phase(t, epoch, BATCH_TRAIN, &train);
    rc = rc ? rc : ddp_broadcast_stats(t->ddp);
    rc = rc ? rc : check_replicas(t, epoch);
    if (rc)
        return rc;
    const char *lost = net_not_finite(t->net);
    if (lost) /* BatchNorm can hide it from the loss */
        return fail(BAD_INPUT,
                    "\"%s\" is not finite after epoch %u, step %lld (learning rate %g): "
                    "lower --lr or warm up longer",
                    lost, epoch, (long long)t->steps, train.learning_rate);
    if (t->average) {
        average_swap(t->average, t->net);
        rc = ddp_broadcast_stats(t->ddp);
    }
    rc = rc ? rc : run_phase(t, epoch, BATCH_VAL, &val);
    if (t->average)
        average_swap(t->average, t->net);
    return rc ? rc : decide(t, &train, &val, met);
}

int train_run(struct train *t) {
    const struct batch_hello *hello = source_hello(t->source);
    uint32_t most =
        hello->batch_size > hello->val_batch_size ? hello->batch_size : hello->val_batch_size;
    t->labels = malloc(most * sizeof *t->labels);
    if (!t->labels)
        return fail(SYSTEM_FAILED, "out of memory");
    t->began_ns = clock_ns();
    struct metric m = {.kind = METRIC_HELLO, .steps = hello->train_steps};
    int rc = report_send(t->report, &m);
    bool met = false;
    for (uint32_t epoch = 1; !rc && !met && epoch <= t->epochs; epoch++) {
        if (t->max_steps && t->batches >= t->max_steps)
            break;
        rc = run_epoch(t, epoch, &met);
    }
    t->reason = rc              ? METRIC_FAILED
                : met           ? METRIC_TARGET
                : t->target > 0 ? METRIC_LIMIT
                                : METRIC_DONE;
    free(t->labels);
    t->labels = NULL;
    return rc;
}
