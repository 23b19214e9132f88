#!/usr/bin/env bats
# The loader against a trainer that only prints what it gets (tests/tools/batch_dump.c). Each pixel
# of the made-up data set carries the number of its image: red + 256 · green, blue is 200.
#
# shellcheck disable=SC2030,SC2031,SC2094  # bats runs each test in a subshell; images() reads only

bats_require_minimum_version 1.5.0

setup_file() {
    bin=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    SHM=$(mktemp -d /dev/shm/ddpipe-test.XXXXXX)
    /usr/bin/python3 - "$BATS_FILE_TMPDIR/data" <<'END'
import os, sys
os.makedirs(sys.argv[1])
number = 0
for name in ["data_batch_%d.bin" % i for i in range(1, 6)] + ["test_batch.bin"]:
    if name == "test_batch.bin":
        number = 0
    with open(os.path.join(sys.argv[1], name), "wb") as f:
        for _ in range(60):
            f.write(bytes([number % 10]))
            for value in (number % 256, number // 256, 200):
                f.write(bytes([value]) * 1024)
            number += 1
END
    STORE=$("$bin/prep" --data "$BATS_FILE_TMPDIR/data" --any-content --store-dir "$SHM" --owner-pid $$)
    export SHM STORE
}

teardown_file() {
    rm -rf "$SHM"
}

setup() {
    bin=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    dump=${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/tools/batch_dump
    cd "$BATS_TEST_TMPDIR" || exit
    endpoint=ipc://$BATS_TEST_TMPDIR/l
    loader='' trainer=''
}

teardown() {
    for pid in $loader $trainer; do kill -KILL "$pid" 2>/dev/null || true; done
    # Whatever the ending was, the name of the endpoint is gone.
    [ ! -e l ]
}

load() { # OPTION…: in the background
    "$bin/loader" --store "$STORE" --endpoint "$endpoint" --batch-size 16 --timeout 20 "$@" \
        >out 2>err 3>&- &
    loader=$!
}

# Sets code and seconds. Waits at most as long as the loader's and the trainer's own limits.
finish() {
    local start=$SECONDS
    code=0
    wait "$loader" || code=$?
    loader=''
    seconds=$((SECONDS - start))
    cat err
}

hang() { # HOW: a trainer that does not end; waits until it is that far
    mkfifo ready
    "$dump" "$endpoint" "$1" >ready 2>trainer.err 3>&- &
    trainer=$!
    grep -q hanging ready
}

# The images between "end" lines of a phase and epoch, sorted.
images() { # PHASE EPOCH FILE
    awk -v phase="$1" -v epoch="$2" '
        $1 == "batch" { on = $2 == phase && $3 == epoch }
        $1 == "image" && on { print $2 }' "$3"
}

@test "every image comes exactly once over 1, 2, 3 and 5 ranks, through the real socket" {
    for world in 1 2 3 5; do
        for ((rank = 0; rank < world; rank++)); do
            load --rank $rank --world-size $world --limit-train 240 --limit-val 58 --augment standard
            "$dump" "$endpoint" 2 >"dump.$world.$rank" 3>&-
            finish
            [ "$code" -eq 0 ]
        done
        for epoch in 1 2; do
            for ((rank = 0; rank < world; rank++)); do images train $epoch "dump.$world.$rank"; done | sort -n >trained
            cmp trained <(seq 0 239)
            for ((rank = 0; rank < world; rank++)); do images val $epoch "dump.$world.$rank"; done | sort -n >validated
            cmp validated <(seq 0 57)
        done
    done
    # The order is shuffled, another in each epoch, and the same whatever the number of ranks.
    run ! cmp -s <(images train 1 dump.1.0) <(images train 2 dump.1.0)
    run ! cmp -s <(images train 1 dump.1.0) <(seq 0 239)
    cmp <(images train 1 dump.1.0) <(paste -d '\n' <(images train 1 dump.3.0) \
        <(images train 1 dump.3.1) <(images train 1 dump.3.2))
    # Labels belong to their images.
    [ -z "$(awk '$1 == "image" && $2 % 10 != $3' dump.*)" ]
}

@test "a trainer sees phases, steps and sizes in order" {
    load --limit-train 40 --limit-val 20 --drop-last --small 24 --small-epochs 1 --augment speed
    "$dump" "$endpoint" 2 3>&- | grep -v image >dump
    finish
    [ "$code" -eq 0 ]
    cmp dump - <<'END'
hello 40 20 rank 0 of 1, 2 and 2 steps, augment=speed cutout=0 shuffle=yes drop_last=yes small=24 small_epochs=1
batch train 1 1 16 24 24
batch train 1 2 16 24 24
end train 1
batch val 1 1 16 32 32
batch val 1 2 4 32 32
end val 1
batch train 2 1 16 32 32
batch train 2 2 16 32 32
end train 2
batch val 2 1 16 32 32
batch val 2 2 4 32 32
end val 2
END
}

@test "--max-steps counts over epochs, ends with one validation, and then only STOP is waited for" {
    load --limit-train 40 --limit-val 20 --val-batch-size 32 --max-steps 4 --no-shuffle
    "$dump" "$endpoint" quiet:99 3>&- >dump
    finish
    [ "$code" -eq 0 ]
    cmp <(grep -v -e image -e hello dump) - <<'END'
batch train 1 1 16 32 32
batch train 1 2 16 32 32
batch train 1 3 8 32 32
end train 1
batch val 1 1 20 32 32
end val 1
batch train 2 1 16 32 32
end train 2
batch val 2 1 20 32 32
end val 2
END
    cmp <(images train 1 dump) <(seq 0 39)
}

@test "--evaluate sends the validation images once, whatever the training batch, and then only STOP is waited for" {
    load --evaluate --limit-train 4 --limit-val 20
    "$dump" "$endpoint" quiet:99 3>&- >dump
    finish
    [ "$code" -eq 0 ]
    cmp <(grep -v image dump) - <<'END'
hello 4 20 rank 0 of 1, 0 and 2 steps, augment=standard cutout=0 shuffle=yes drop_last=no small=0 small_epochs=0
end train 1
batch val 1 1 16 32 32
batch val 1 2 4 32 32
end val 1
END
    cmp <(images val 1 dump) <(seq 0 19)
}

@test "a batch costs a credit, an END none, and without credits nothing is sent" {
    load --limit-train 16 --limit-val 16
    "$dump" "$endpoint" quiet:3 3>&- >dump
    finish
    [ "$code" -eq 0 ]
    cmp <(grep -v -e image -e hello dump) - <<'END'
batch train 1 1 16 32 32
end train 1
batch val 1 1 16 32 32
end val 1
batch train 2 1 16 32 32
end train 2
END
}

@test "more ranks than validation images: some have none, and say so by END" {
    load --limit-val 1 --rank 1 --world-size 2
    "$dump" "$endpoint" 1 3>&- >dump
    finish
    [ "$code" -eq 0 ]
    [ "$(grep -c 'batch val' dump)" -eq 0 ]
    grep -q 'end val 1' dump
}

@test "a killed trainer is noticed at once" {
    load
    hang hang
    kill -KILL "$trainer"
    finish
    [ "$code" -eq 111 ]
    [ "$seconds" -le 5 ]
    grep -q "trainer at $endpoint is gone" err
}

@test "a silent trainer, and none at all, are waited for until --timeout only" {
    "$bin/loader" --store "$STORE" --endpoint "$endpoint" --timeout 0.3 2>err || code=$?
    [ "$code" -eq 111 ]
    grep -q "no trainer at $endpoint" err
    "$bin/loader" --store "$STORE" --endpoint "$endpoint" --batch-size 16 --timeout 2 2>err 3>&- &
    loader=$!
    hang late
    finish
    [ "$code" -eq 111 ]
    grep -q "trainer at $endpoint is silent" err
}

@test "a message out of turn and a damaged one are refused" {
    load
    hang rude
    finish
    [ "$code" -eq 1 ]
    grep -q "sent HELLO" err
    kill -KILL "$trainer"
    rm ready
    load
    hang damaged
    finish
    [ "$code" -eq 1 ]
    grep -q "13 bytes" err
}

@test "a second trainer is refused" {
    load
    hang hang
    run "$dump" "$endpoint" 1
    [ "$status" -ne 0 ]
    finish
    [ "$code" -eq 111 ]
    grep -q "2 trainers" err
}

@test "TERM and INT end it at once, by the signal, and remove the name" {
    for signal in TERM INT; do
        # A background job of a shell ignores INT unless told otherwise.
        env --default-signal=INT "$bin/loader" --store "$STORE" --endpoint "$endpoint" 2>err 3>&- &
        loader=$!
        while [ ! -S l ]; do kill -0 "$loader"; done
        kill -s $signal "$loader"
        finish
        [ "$code" -eq $((128 + $(kill -l $signal))) ]
        [ "$seconds" -le 5 ]
        [ ! -e l ]
    done
}

@test "an endpoint that is too long, relative, or in use is refused" {
    long=ipc://$BATS_TEST_TMPDIR/$(printf 'x%.0s' {1..107})
    run "$bin/loader" --store "$STORE" --endpoint "$long"
    [ "$status" -eq 100 ]
    [[ "$output" == *"allows 107"* ]]
    run "$bin/loader" --store "$STORE" --endpoint ipc://l
    [ "$status" -eq 100 ]
    load
    hang hang
    run "$bin/loader" --store "$STORE" --endpoint "$endpoint"
    [ "$status" -eq 111 ]
    [[ "$output" == *"$BATS_TEST_TMPDIR/l"*"in use"* ]]
    # The one in use was not disturbed.
    kill -0 "$loader"
    kill -TERM "$loader"
    finish
    [ "$code" -eq 143 ]
}

@test "settings that contradict each other or the store are refused with both numbers" {
    refuses() { # CODE WORD… -- OPTION…
        local wanted=$1 word words=()
        shift
        while [ "$1" != -- ]; do
            words+=("$1")
            shift
        done
        shift
        run "$bin/loader" --store "$STORE" --endpoint "$endpoint" "$@"
        echo "$output"
        [ "$status" -eq "$wanted" ]
        for word in "${words[@]}"; do [[ "$output" == *"$word"* ]]; done
    }
    refuses 100 batch-size 301 300 -- --batch-size 301
    refuses 100 rank 2 world-size -- --rank 2 --world-size 2
    refuses 100 cutout 33 32 -- --cutout 33
    refuses 100 small-epochs -- --small 24
    refuses 100 augment -- --augment strong
    run "$bin/loader" --store "$SHM/nothing-there" --endpoint "$endpoint"
    [ "$status" -eq 1 ]
    [[ "$output" == *"$SHM/nothing-there"* ]]
    run "$bin/loader" --endpoint "$endpoint"
    [ "$status" -eq 100 ]
    [[ "$output" == *--store* ]]
}

@test "--bench prints one JSON object for each of three epochs" {
    "$bin/loader" --store "$STORE" --endpoint "$endpoint" --batch-size 16 --augment course --bench >bench
    /usr/bin/python3 - bench <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["epoch"] for line in lines] == [1, 2, 3]
for line in lines:
    assert line["images"] == 300
    assert abs(line["images"] / line["seconds"] / line["images_per_sec"] - 1) < 1e-3
END
}

@test "--print-config is JSON with every option" {
    "$bin/loader" --print-config --batch-size 7 >config
    "$bin/loader" --options | cut -f1 | grep -vx print-config >names
    /usr/bin/python3 - config names <<'END'
import json, sys
config = json.load(open(sys.argv[1]))
assert config["batch-size"] == 7
for name in open(sys.argv[2]).read().split():
    assert name in config, name
END
}
