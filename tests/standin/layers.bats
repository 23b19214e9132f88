#!/usr/bin/env bats
# tests/gpu/layers.c against the stand-in: every layer of every network on the CUDA backend, forward
# and backward, within derived bounds of the reference backend. With a GPU tests/gpu/check.sh runs it.

layers() {
    OMP_NUM_THREADS=1 "${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/standin/layers" "$1" >out ||
        { grep -v ' ok$' out && false; }
    [ "$(grep -c ' ok$' out)" -ge 30 ]
}

setup() { cd "$BATS_TEST_TMPDIR" || exit; }

@test "layers in fp32" { layers fp32; }
@test "layers in bf16" { layers bf16; }
