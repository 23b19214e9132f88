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

@test "weights trained here load in PyTorch and measure the same accuracy on 10,000 images" {
    run=$BATS_TEST_TMPDIR/run
    jobs/run_pipeline.sh --recipe quick --data "$DATA" --epochs 1 --max-steps 150 --run-dir "$run" > "$BATS_TEST_TMPDIR/log"
    correct=$(/usr/bin/python3 - "$run/metrics.jsonl" <<'END'
import json, sys
last = [r for r in map(json.loads, open(sys.argv[1])) if r["kind"] == "epoch"][-1]
assert last["val_count"] == 10000
print(round(last["val_accuracy"] * 10000))
END
)
    /usr/bin/python3 tests/parity/test_load.py "$run/model.safetensors" "$DATA" "$correct" speednet 16,64,128 relu > "$BATS_TEST_TMPDIR/out" || failed=1
    report < "$BATS_TEST_TMPDIR/out"
    [ -z "${failed:-}" ]
}
