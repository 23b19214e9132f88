#!/usr/bin/env bats
# tests/gpu/check.sh, which is for a machine with a GPU, against the stand-in: every layer of every network
# on the CUDA backend, forward and backward, within derived bounds of the reference backend; training on
# real images; all that is measured, but for its numbers.
# shellcheck disable=SC2154 # setup.bash
bats_require_minimum_version 1.5.0
load setup

@test "check.sh proves, trains, measures and writes JSON" {
    unset DDPIPE_STANDIN_LEAKS # phases may be cut off
    ln -s "$(realpath "${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/standin/layers")" "$BIN/"
    "$BATS_TEST_DIRNAME/../gpu/check.sh" --bin "$BIN" --stand-in --data "$DATA" --out check.json 3>&- | tee out
    grep -q "^layers .* ok .* networks within their bounds, 0 over" out
    /usr/bin/python3 - <<'END'
import json
r = json.load(open("check.json"))
assert r["device"] == "a stand-in", r
states = {name: p["state"] for name, p in r["phases"].items()}
done = {name for name, state in states.items() if state == "ok"}
assert done == {"layers", "measure", "speednet", "wideresnet"}, states
assert set(states.values()) == {"ok", "left out"}, states
rows = {(t["source"], t["model"]) for t in r["training"] if t["images_per_sec"] > 0}
assert rows == {(s, m) for s in ("ddpipe", "ddpipe-autotune") for m in ("wideresnet", "vgg11")}, rows
END
}

@test "check.sh reports what fails, and ends with 1" {
    mkdir few
    for program in fetch prep loader trainer aggregator; do ln -s "$BIN/$program" few/; done
    printf '#!/bin/sh\necho "conv3 OVER"; exit 1\n' >few/layers
    printf '#!/bin/sh\nexit 111\n' >few/trainer-cuda
    chmod +x few/layers few/trainer-cuda
    run -1 "$BATS_TEST_DIRNAME/../gpu/check.sh" --bin few --stand-in --data "$DATA" --out check.json 3>&-
    [[ $output == *"layers"*"failed"*"2 over"* && $output == *"speednet"*"failed"* ]]
    run -100 "$BATS_TEST_DIRNAME/../gpu/check.sh" --stand-in
    run -100 "$BATS_TEST_DIRNAME/../gpu/check.sh" --data /nowhere
}
