/* NCCL as the stand-in does it, between two processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/log.h"

#include <cmocka.h>

#include "tests/standin/fixture.h"
#include <nccl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A rank's part in the tests of NCCL; a peer that leaves, and one that is left. */
static ncclUniqueId id;
static int rank;

static void nccl(ncclResult_t e) {
    if (e)
        fail_msg("%s: %s", ncclGetErrorString(e), ncclGetLastError(NULL));
}

static ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t e = ncclInProgress;
    while (e == ncclInProgress)
        nccl(ncclCommGetAsyncError(comm, &e));
    return e;
}

static ncclComm_t join(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclResult_t e;
    config.blocking = 0;
    assert_int_equal(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    nccl(ncclCommGetAsyncError(comm, &e));
    assert_int_equal(e, ncclInProgress);
    nccl(settle(comm));
    assert_int_equal(ncclAllReduce(fix.device, fix.device, COUNT, ncclFloat, ncclSum, comm, fix.a),
                     ncclInProgress);
    nccl(settle(comm));
    return comm;
}

/* Sums, sends the sum around, and broadcasts what came. */
static void rank_talks(void) {
    float back[COUNT];
    fixture_set(fix.host, (float)(10 * rank));
    fixture_up(fix.device, fix.host, fix.a);
    ncclComm_t comm = join();
    fixture_down(back, fix.device, fix.a);
    fixture_finish(fix.a);
    fixture_check(back, 10, 2);
    fixture_up(fix.device, fix.host, fix.a);
    nccl(ncclGroupStart());
    nccl(ncclSend(fix.device, COUNT, ncclFloat, 1 - rank, comm, fix.a));
    nccl(ncclRecv(fix.other, COUNT, ncclFloat, 1 - rank, comm, fix.a));
    nccl(ncclGroupEnd());
    fixture_down(back, fix.other, fix.a);
    fixture_finish(fix.a);
    fixture_check(back, (float)(10 * (1 - rank)), 1);
    nccl(ncclBroadcast(fix.other, fix.other, COUNT, ncclFloat, 1, comm, fix.a));
    nccl(ncclReduce(fix.device, fix.device, COUNT, ncclFloat, ncclSum, 0, comm, fix.a));
    fixture_down(back, fix.other, fix.a);
    fixture_finish(fix.a);
    fixture_check(back, 0, 1);
    fixture_down(back, fix.device, fix.a);
    fixture_finish(fix.a);
    fixture_check(back, 10, rank ? 1 : 2);
    assert_int_equal(ncclCommFinalize(comm), ncclInProgress);
    nccl(settle(comm));
    nccl(ncclCommDestroy(comm));
}

static void rank_is_left(void) {
    float back[COUNT];
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    ncclComm_t comm = join();
    fixture_finish(fix.a);
    if (rank)
        _exit(0);
    nccl(ncclAllReduce(fix.device, fix.device, COUNT, ncclFloat, ncclSum, comm, fix.a));
    fixture_down(back, fix.device, fix.a);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaStreamQuery(fix.a), cudaErrorNotReady);
    assert_int_equal(settle(comm), ncclRemoteError);
    nccl(ncclCommAbort(comm));
    fixture_finish(fix.a);
}

static void rank_destroys_early(void) {
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    ncclComm_t comm = join();
    fixture_finish(fix.a);
    nccl(ncclAllReduce(fix.device, fix.device, COUNT, ncclFloat, ncclSum, comm, fix.a));
    ncclCommDestroy(comm);
}

static int both_ranks(void (*what)(void)) {
    int status;
    nccl(ncclGetUniqueId(&id));
    rank = 1;
    const pid_t peer = fork();
    if (peer == 0) {
        what();
        _exit(0);
    }
    rank = 0;
    const int rc = fixture_child(what);
    assert_int_equal(waitpid(peer, &status, 0), peer);
    assert_int_not_equal(access(id.internal, F_OK), 0);
    return rc ? rc : WEXITSTATUS(status);
}

/* The only rank; how often its state is "in progress" once it is connected. */
static int alone(ncclComm_t *comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t e = ncclInProgress;
    int polls = 0;
    config.blocking = 0;
    nccl(ncclGetUniqueId(&id));
    assert_int_equal(ncclCommInitRankConfig(comm, 1, id, 0, &config), ncclInProgress);
    while (access(id.internal, F_OK) == 0)
        ;
    for (; e == ncclInProgress; polls++)
        nccl(ncclCommGetAsyncError(*comm, &e));
    nccl(e);
    return polls - 1;
}

static void two_streams(void) {
    ncclComm_t comm;
    alone(&comm);
    fixture_ok(cudaMemsetAsync(fix.device, 0, BYTES, fix.a));
    fixture_ok(cudaMemsetAsync(fix.other, 0, BYTES, fix.b));
    ncclAllReduce(fix.device, fix.device, COUNT, ncclFloat, ncclSum, comm, fix.a);
    nccl(settle(comm));
    ncclAllReduce(fix.other, fix.other, COUNT, ncclFloat, ncclSum, comm, fix.b);
}

static void one_rank(void **state) {
    (void)state;
    ncclComm_t comm;
    assert_true(alone(&comm) >= 2);
    assert_int_equal(ncclCommFinalize(comm), ncclInProgress);
    nccl(settle(comm));
    nccl(ncclCommDestroy(comm));
    assert_int_equal(fixture_child(two_streams), RACE);
    assert_non_null(strstr(fix.said, "race: ncclAllReduce"));
}

static void collectives(void **state) {
    (void)state;
    assert_int_equal(both_ranks(rank_talks), 0);
}

static void hangs_until_aborted(void **state) {
    (void)state;
    assert_int_equal(both_ranks(rank_is_left), 0);
}

static void destroyed_while_pending(void **state) {
    (void)state;
    assert_int_equal(both_ranks(rank_destroys_early), RACE);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_open, fixture_close)
    const struct CMUnitTest tests[] = {
        TEST(one_rank),
        TEST(collectives),
        TEST(hangs_until_aborted),
        TEST(destroyed_while_pending),
    };
    signal(SIGPIPE, SIG_IGN); /* Gloo may write to a peer that is gone */
    return cmocka_run_group_tests_name("standin_nccl", tests, NULL, NULL);
}
