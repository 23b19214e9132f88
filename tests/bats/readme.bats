# What README tells people to type: the stages by hand, one rank; and the programs alone.
# shellcheck shell=bash
bats_require_minimum_version 1.5.0

setup() {
    bin=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    D=$BATS_TEST_TMPDIR
}

teardown() {
    # shellcheck disable=SC2046 # one number a word
    kill $(jobs -p) 2>/dev/null || true
    [ -z "${STORE:-}" ] || "$bin/prep" --remove "$STORE"
}

# Proves that the five programs need nothing but each other: started by hand, with README's command lines
# (made short by limits), they train, report an epoch, and end with 0.
@test "five terminals: the stages started by hand train and report" {
    STORE=$("$bin/prep" --data "$("$bin/fetch")")
    "$bin/aggregator" --listen "ipc://$D/metrics" --world-size 1 > "$D/epochs" 3>&- &
    aggregator=$!
    "$bin/loader" --store "$STORE" --rank 0 --world-size 1 --endpoint "ipc://$D/loader.0" --batch-size 128 \
        --limit-train 256 --limit-val 100 3>&- &
    loader=$!
    "$bin/trainer" --model vgg11 --endpoint "ipc://$D/loader.0" --metrics "ipc://$D/metrics" --epochs 1
    wait "$loader"
    wait "$aggregator"
    cat "$D/epochs"
    [[ "$(head -n 1 "$D/epochs")" =~ ^"Epoch =  1: Cumulative Time = "[0-9.]+", Epoch Time = "[0-9.]+", Images/sec = "[0-9.]+", Training Loss = "[0-9.]+", Training Accuracy = "[0-9.]+", Validation Loss = "[0-9.]+", Validation Accuracy = "[0-9.]+$ ]]
}

# Proves that --synthetic measures compute without any other program.
@test "the trainer alone, on made-up images" {
    run "$bin/trainer" --synthetic --epochs 1 --synthetic-steps 2 --batch-size 8 --target-accuracy 0
    echo "$output"
    [ "$status" -eq 0 ]
    [[ "$output" == *"epoch 1 train: 16 images"* ]]
}

# Proves that every program answers --help and --version, and refuses what it does not know with 100.
@test "help, version and unknown options, in every program" {
    for program in fetch prep loader trainer aggregator; do
        "$bin/$program" --help | grep -q "^usage: $program"
        "$bin/$program" --version | grep -q "^$program (ddpipe) "
        run "$bin/$program" --no-such-option
        [ "$status" -eq 100 ]
        [[ "$output" == *--no-such-option* ]]
    done
}
