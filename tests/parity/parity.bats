# The trainer against PyTorch. Each test's figures are printed (bats -x, or run the script by hand).
# shellcheck shell=bash
bats_require_minimum_version 1.5.0

setup_file() {
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    export BIN=${BIN:-$PWD/bin} TESTBIN=${TESTBIN:-$PWD/build/release/tests}
    DATA=$("$BIN/fetch" --dataset cifar10) && export DATA
}

report() { # figures on the terminal and in the log, pass or fail
    sed 's/^/# /' >&3
}

@test "layers, gradients and six steps of three networks are PyTorch's" {
    /usr/bin/python3 tests/parity/test_parity.py "$TESTBIN" > "$BATS_TEST_TMPDIR/out" || failed=1
    report < "$BATS_TEST_TMPDIR/out"
    [ -z "${failed:-}" ]
}

@test "two ranks: equal bit for bit, and DistributedDataParallel's, after 20 steps" {
    /usr/bin/python3 tests/parity/test_ddp.py "$TESTBIN" "$DATA" > "$BATS_TEST_TMPDIR/out" || failed=1
    report < "$BATS_TEST_TMPDIR/out"
    [ -z "${failed:-}" ]
}

@test "ddp, allreduce and gather-scatter: the same weights on 1 to 4 ranks, the same bits on every rank" {
    /usr/bin/python3 tests/parity/test_sync.py > "$BATS_TEST_TMPDIR/out" || failed=1
    report < "$BATS_TEST_TMPDIR/out"
    [ -z "${failed:-}" ]
}

@test "--sync-batchnorm: two ranks with half a batch each are one rank with all of it" {
    /usr/bin/python3 tests/parity/test_sync_norm.py "$DATA" > "$BATS_TEST_TMPDIR/out" || failed=1
    report < "$BATS_TEST_TMPDIR/out"
    [ -z "${failed:-}" ]
}

last_epoch() { # RUN KEY: of its last epoch's line
    /usr/bin/python3 -c 'import json, sys; print([r for r in map(json.loads, open(sys.argv[1])) if r["kind"] == "epoch"][-1][sys.argv[2]])' \
        "$1/metrics.jsonl" "$2"
}

# Every validation image once, whatever the number of ranks: a count of 10,000 and a loss that is the same but for the order of
# additions (an image twice or missing would move it by about 1e-4); as many right but for near ties, and as PyTorch counts them.
@test "weights trained here load in PyTorch and measure the same accuracy on 10,000 images, on 1 rank and on 3" {
    run=$BATS_TEST_TMPDIR/run weights=$BATS_TEST_TMPDIR/run.0/model.safetensors corrects='' losses=''
    jobs/run_pipeline.sh --recipe quick --data "$DATA" --epochs 1 --max-steps 150 --run-dir "$run.0" > "$BATS_TEST_TMPDIR/log"
    for ranks in 0 1 3; do # 0: as training measured it
        ((ranks == 0)) || jobs/run_pipeline.sh --recipe quick --data "$DATA" --evaluate --init "$weights" \
            --ranks-per-node $ranks --global-batch-size $((ranks * 96)) --run-dir "$run.$ranks" > "$BATS_TEST_TMPDIR/log"
        [ "$(last_epoch "$run.$ranks" val_count)" = 10000 ]
        corrects+=${corrects:+,}$(last_epoch "$run.$ranks" val_accuracy | awk '{printf "%.0f", $1 * 10000}')
        losses+=" $(last_epoch "$run.$ranks" val_loss)"
    done
    # shellcheck disable=SC2086
    echo $losses | awk '{exit !($1 > 1 && ($1 - $2)^2 < 1e-10 && ($1 - $3)^2 < 1e-10)}'
    /usr/bin/python3 tests/parity/test_load.py "$weights" "$DATA" "$corrects" speednet 16,64,128 relu > "$BATS_TEST_TMPDIR/out" || failed=1
    report < "$BATS_TEST_TMPDIR/out"
    [ -z "${failed:-}" ]
}
