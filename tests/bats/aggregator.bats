#!/usr/bin/env bats
# The aggregator against a sender of made-up records (tests/tools/metric_send.c).

setup() {
    bin=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    send=${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/tools/metric_send
    cd "$BATS_TEST_TMPDIR" || exit
    endpoint=ipc://$BATS_TEST_TMPDIR/in
}

teardown() {
    if [ -n "${aggregator:-}" ]; then kill -KILL "$aggregator" 2>/dev/null || true; fi
    # Whatever the ending was, the name of the endpoint is gone.
    [ ! -e in ]
}

listen() { # WORLD OPTION…
    local world=$1
    shift
    "$bin/aggregator" --listen "$endpoint" --world-size "$world" "$@" >out 2>err 3>&- &
    aggregator=$!
}

finish() { # sets code; the aggregator has an upper limit of its own in every test
    code=0
    wait "$aggregator" || code=$?
    aggregator=
}

feed() { "$send" "$endpoint" 3>&-; }

# Proves every formula on numbers that a person can check: unequal ranks, so that a mean of means or
# a mean of rates would show. Loss (30+90)/(30+10) = 3; images/s 30/2+10/4 = 17.5; slowest 4 s.
@test "sums over unequal ranks are divided once" {
    listen 2 --metrics m.jsonl
    feed <<'END'
hello 0 2
hello 1 2
train 0 2 1 30 2 2 30 15
train 1 2 1 10 4 4 90 5
val 0 2 1 3 1 6.5 6 3
val 1 2 1 1 1 7 10 0
bye 0 2 2
bye 1 2 2
END
    finish
    [ "$code" -eq 0 ]
    [ "$(head -1 out)" = "Epoch =  1: Cumulative Time = 7.000, Epoch Time = 4.000, Images/sec = 17.5, Training Loss = 3.000, Training Accuracy = 0.500, Validation Loss = 4.000, Validation Accuracy = 0.750" ]
    # The file has the same numbers, one object a rank and one for all.
    /usr/bin/python3 - <<'END'
import json
rows = [json.loads(line) for line in open("m.jsonl")]
assert [(r["kind"], r.get("rank")) for r in rows] == [("rank_epoch", 0), ("rank_epoch", 1), ("epoch", None)]
e = rows[2]
want = dict(epoch=1, cumulative_time=7, epoch_time=4, images_per_sec=17.5, train_loss=3, train_accuracy=.5,
            val_loss=4, val_accuracy=.75, val_count=4, val_seconds=1, stall=dict(wait=.75, compute=1.5, comm=.75, hidden=.375))
assert {k: e[k] for k in want} == want, e
r = rows[1]
want = dict(rank=1, epoch=1, images=10, seconds=4, images_per_sec=2.5, train_loss=9, train_accuracy=.5,
            val_loss=10, val_accuracy=0, val_count=1, learning_rate=.5)
assert {k: r[k] for k in want} == want, r
END
}

# Proves that nothing is printed that the ranks' own records do not add up to: a count and a loss that
# differ by the least that can be told.
@test "totals that the ranks' records do not add up to are refused" {
    while IFS='|' read -r total word; do
        listen 2
        printf '%s\n' 'hello 0 2' 'hello 1 2' 'train 0 2 1 30 2 2 30 15' "total $total" 'train 1 2 1 10 4 4 90 5' \
            'val 0 2 1 3 1 6.5 6 3' 'val 1 2 1 1 1 7 10 0' 'bye 0 2 2' 'bye 1 2 2' | feed
        finish
        [ "$code" -eq "${word%% *}" ] || { cat err && false; }
        [ "${word%% *}" -eq 0 ] || { grep -q "${word#* }" err && [ ! -s out ]; } || { cat err out && false; }
    done <<'END'
0 2 1 40 120 20|0
0 2 1 40 120 19|1 epoch 1, training: .* 20 correct of 40, the ranks reduced 19 of 40
0 2 1 39 120 20|1 epoch 1, training: .* 20 correct of 40, the ranks reduced 20 of 39
0 2 1 40 120.000000000001 20|1 epoch 1, training: .* a loss of 120, the ranks reduced 120.00000000000099$
END
}

# Proves that epochs come in order and only once complete, whichever rank is ahead.
@test "an epoch is reported when its last record is in" {
    listen 2
    { printf '%s\n' 'hello 0 2' 'hello 1 2' 'train 0 2 1 8 1 1 1 1' 'val 0 2 1 8 1 2 1 1' 'train 0 2 2 8 1 3 1 1' \
        'train 1 2 1 8 1 1 1 1' 'val 1 2 1 8 1 2 1 1' 'train 1 2 2 8 1 3 1 1' 'val 1 2 2 8 1 4 1 1' \
        'val 0 2 2 8 1 4 1 1' 'bye 0 2 0' 'bye 1 2 0'; } | feed
    finish
    [ "$code" -eq 0 ]
    [ "$(grep -o '^Epoch = *[0-9]*' out | tr -dc '0-9\n' | xargs)" = "1 2" ]
    [[ $(tail -1 out) == "Target reached: Epoch = 2, "* ]]
}

# Proves that no number is made up: without validation images the line and the object have none.
@test "an epoch without validation says nothing of it" {
    listen 1 --metrics m.jsonl
    printf '%s\n' 'hello 0 1' 'train 0 1 1 8 1 1 4 2' 'val 0 1 1 0 0 1 0 0' 'bye 0 1 2' | feed
    finish
    [ "$code" -eq 0 ]
    grep -q 'Training Accuracy = 0.250$' out
    [ "$(grep -c 'val_loss\|nan' m.jsonl)" -eq 0 ]
}

# Proves that every kind of intruding record ends the run with 1, and that the rank is named.
@test "records that do not belong to the run are refused" {
    while IFS='|' read -r lines word; do
        listen 2
        echo -e "$lines" | feed
        finish
        [ "$code" -eq 1 ] || { echo "$lines: code $code" && false; }
        grep -q "$word" err || { echo "$lines: $(cat err)" && false; }
    done <<'END'
hello 0 2\nhello 0 2|rank 0
hello 1 3|rank 1 .*world of 3
hello 5 2|rank 5
hello 1 2\ntrain 1 2 1 8 1 1 1 1\ntrain 1 2 1 8 1 1 1 1|rank 1.*second training record of epoch 1
hello 1 2\ntrain 1 2 0 8 1 1 1 1|rank 1.*epoch 0
hello 1 2\ntrain 1 2 1 8 1 1 1 9|rank 1.*9 correct
hello 1 2\ntrain 1 2 3 8 1 1 1 1\ntrain 1 2 2 8 1 1 1 1|rank 1.*but epoch 3 is the next
hello 1 2\ntrain 1 2 1 8 1 1 1 1\ntrain 1 2 9 8 1 1 1 1|rank 1.*epoch 9
train 1 2 1 8 1 1 1 1|rank 1
hello 1 2\nbye 1 2 2\ntrain 1 2 1 8 1 1 1 1|rank 1
raw hello, is anyone there?|offset
END
}

# Proves that a rank which dies without a word is noticed at once, not after --timeout.
@test "a rank that leaves without BYE is named" {
    listen 2 --timeout 60
    printf '%s\n' 'hello 0 2' 'train 0 2 1 8 1 1 1 1' 'bye 0 2 2' | feed
    echo 'hello 1 2' | feed
    SECONDS=0
    finish
    [ "$code" -eq 111 ]
    [ "$SECONDS" -lt 10 ]
    grep -q 'rank 1' err
}

# Proves that silence ends the run, and that only who owes a word is named: rank 0 goes on talking.
@test "a silent rank is named" {
    listen 2 --timeout 1
    { printf '%s\n' 'hello 0 2' 'hello 1 2' 'train 0 2 1 8 1 1 1 1'
        for i in 1 2 3 4 5 6; do echo "progress 0 2 1 ${i}0 $i 9" && sleep 0.3; done; } | feed &
    finish
    [ "$code" -eq 111 ]
    grep -q 'from rank 1$' err
    wait
}

# Proves that the way of an epoch is shown on a terminal, for all ranks together, and nowhere else.
@test "progress is for terminals" {
    cat >here.sh <<END
"$bin/aggregator" --listen "$endpoint" --world-size 2 &
{ printf '%s\n' 'hello 0 2' 'hello 1 2'; for i in 1 2 3 4; do echo "progress 0 2 1 \${i}0 \$i 5" && sleep 0.3; done
    printf '%s\n' 'bye 0 2 2' 'bye 1 2 2'; } | "$send" "$endpoint"
wait
END
    script -qec 'bash here.sh' /dev/null >shown 3>&-
    grep -q 'epoch 1 of 0  80.0 of 100.0 images' shown
    bash here.sh >out 2>err 3>&-
    [ ! -s err ]
}

# Proves that a rank that never joins is named too.
@test "nobody joins" {
    listen 2 --timeout 0.3
    finish
    [ "$code" -eq 111 ]
    grep -q 'from rank 0, 1$' err
}

# Proves that a failed rank makes the run fail, though all said BYE.
@test "a failed rank is no success" {
    listen 2
    printf '%s\n' 'hello 0 2' 'hello 1 2' 'bye 1 2 3' 'bye 0 2 3' | feed
    finish
    [ "$code" -eq 111 ]
    grep -q 'rank 0, 1' err
}

# Proves that the lines of a run can be had again from its file, and that damage is named by line.
@test "replay prints the same lines" {
    listen 1 --metrics m.jsonl
    printf '%s\n' 'hello 0 1' 'train 0 1 1 8 1 1 4 2' 'val 0 1 1 9 1 2 3 3' 'train 0 1 2 8 1 3 nan 2' \
        'val 0 1 2 0 0 3 0 0' 'bye 0 1 2' | feed
    finish
    [ "$code" -eq 0 ]
    "$bin/aggregator" --replay m.jsonl >again
    diff <(grep ^Epoch out) again
    [ "$(wc -l <again)" -eq 2 ]
    head -c -5 m.jsonl >cut.jsonl
    run "$bin/aggregator" --replay cut.jsonl
    [ "$status" -eq 1 ]
    [[ $output == *cut.jsonl:4:* ]]
    sed 's/"cumulative_time":[0-9.]*,//' m.jsonl >less.jsonl
    run "$bin/aggregator" --replay less.jsonl
    [ "$status" -eq 1 ]
    [[ $output == *less.jsonl:2:*cumulative_time* ]]
}

# Proves that what cannot work is refused before anybody connects.
@test "bad files and usage are refused at the start" {
    run "$bin/aggregator" --listen "$endpoint" --world-size 1 --metrics no/such/folder/m.jsonl
    [ "$status" -eq 111 ]
    [[ $output == *no/such/folder/m.jsonl* ]]
    echo '{}' >old.jsonl
    run "$bin/aggregator" --listen "$endpoint" --world-size 1 --metrics old.jsonl
    [ "$status" -eq 1 ]
    [ "$(cat old.jsonl)" = '{}' ]
    run "$bin/aggregator" --listen "$endpoint"
    [ "$status" -eq 100 ]
    run "$bin/aggregator" --world-size -1
    [ "$status" -eq 100 ]
    run "$bin/aggregator" --replay missing.jsonl
    [ "$status" -eq 1 ]
}

# Proves that a stopped aggregator ends by the signal and takes its name along; every line that was
# written before is whole.
@test "TERM leaves whole lines and no socket" {
    listen 1 --metrics m.jsonl
    { printf '%s\n' 'hello 0 1' 'train 0 1 1 8 1 1 4 2' 'val 0 1 1 9 1 2 3 3'
        for _ in {1..100}; do [ ! -s out ] || break; sleep 0.05; done
        kill -TERM "$aggregator"; } | feed
    finish
    [ "$code" -eq 143 ]
    "$bin/aggregator" --replay m.jsonl >again
    diff out again
}
