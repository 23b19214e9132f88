#!/usr/bin/env bats
# cuDNN's execution plans for the networks' graphs (tests/gpu/plans.c), made without a GPU: for
# described devices, and with a stub for the driver where plans are compiled at run time.

bats_require_minimum_version 1.5.0

setup_file() {
    export PLANS=${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/gpu/plans
    export rc=0
    [ -x "$PLANS" ] || return 0
    # cuDNN and cuBLAS leave memory behind, under names that are gone when leaks are counted.
    ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH=${PLANS%/*} "$PLANS" \
        "$BATS_TEST_DIRNAME"/devices/dp_{a30,a100,h200}.json \
        >"$BATS_FILE_TMPDIR/out" 2>"$BATS_FILE_TMPDIR/err" || rc=$?
}

setup() {
    [ -x "$PLANS" ] || skip "built without cuDNN: no cudnn.h in CUDNN_HOME (by default CUDA_HOME)"
}

refused() { # LAYER DEVICES
    [ "$(grep -c "layer \"$1\": .* bf16 128x64x32x32" "$BATS_FILE_TMPDIR/err")" = "$2" ]
}

@test "every graph of every network has a plan on A30, A100 and H200" {
    tail -n 3 "$BATS_FILE_TMPDIR/err"
    [ "$rc" = 0 ]
}

# Each kind in each type; the graphs themselves are those that the trainer's own binding asks for.
@test "the graphs of all kinds are among them" {
    for kind in conv-{forward,data,weight}; do
        for type in fp32 tf32 bf16 fp16; do
            for device in a30 a100 h200; do
                grep -q "^$device  *$kind $type " "$BATS_FILE_TMPDIR/out"
            done
        done
    done
    for kind in norm-{forward,backward,inference}; do
        for type in fp32 bf16 fp16; do
            grep -q " $kind $type .*+relu" "$BATS_FILE_TMPDIR/out"
        done
    done
}

# wideresnet: the gradient of a block's input is the sum of two.
@test "a convolution can add to a gradient" {
    for type in fp32 tf32 bf16 fp16; do
        grep -q "conv-data $type 1024x160x32x32-160x32x32 k3 +add" "$BATS_FILE_TMPDIR/out"
    done
}

@test "fp32 convolutions keep off tensor cores" {
    run ! grep " conv-[a-z]* fp32 .*tensor-core" "$BATS_FILE_TMPDIR/out"
    grep -q " conv-[a-z]* tf32 .*tensor-core" "$BATS_FILE_TMPDIR/out"
}

@test "wrong shapes, biases and statistics are refused by name, and a workspace over the limit" {
    for layer in wrong-map wrong-bias wrong-statistics no-workspace; do
        refused "$layer" 3
    done
}
