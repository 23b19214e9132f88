#!/usr/bin/env bats
# The whole pipeline on a piece of CIFAR-10: what it leaves behind, and how it ends when something
# goes wrong. Every test ends with nothing left: no process, no socket, no shared memory.

# shellcheck disable=SC2154  # bats sets stderr
bats_require_minimum_version 1.5.0
setup_file() {
    export BIN=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    # The run's private folder stands here, so that it is known and short enough for a socket's path.
    export DATA
    DATA=$("$BIN/fetch" 3>&-)
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit
    export XDG_RUNTIME_DIR=$BATS_TEST_TMPDIR
    pipeline=$BATS_TEST_DIRNAME/../../jobs/run_pipeline.sh
    # Shared memory, but apart from that of other jobs.
    shm=$(mktemp -d /dev/shm/ddpipe-bats.XXXXXX)
    piece=(--data "$DATA" --store-dir "$shm" --limit-train 128 --limit-val 64)
    small=("${piece[@]}" --model speednet --widths "8,8,8" --batch-size 32)
    # Many short epochs.
    lasting=("${small[@]}" --ranks-per-node 2 --epochs 100000 --target-accuracy 0 --run-dir run)
}

# Processes of this test: their command lines have its private folder.
processes() { pgrep -f "$BATS_TEST_TMPDIR/ddpipe" || true; }

within() { # SECONDS COMMAND…: waits for a state
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

clean() { [ -z "$(processes)" ] && [ -z "$(compgen -G 'ddpipe.*')" ] && [ -z "$(ls -A "$shm")" ]; }

teardown() {
    local left=0
    within 10 clean || left=1
    if [ "$left" = 1 ]; then
        processes | xargs -r ps -o pid,args
        ls -d ddpipe.* 2>/dev/null
        ls "$shm"
    fi
    processes | xargs -r kill -KILL
    rm -rf "$shm"
    return "$left"
}

launch() { # a lasting run in the background, in its first epochs when this returns
    "$pipeline" "${lasting[@]}" >out 2>err 3>&- &
    job=$!
    within 60 grep -q '^Epoch' out || { cat err && false; }
}

job_ended() { ! kill -0 "$job" 2>/dev/null; }

finish() { # SECONDS: sets code; fails if the job is still there by then
    code=0
    within "$1" job_ended || { kill -KILL "$job" && false; }
    wait "$job" || code=$?
}

pid_of() { # PROGRAM [RANK]
    pgrep -f "^[^ ]*/$1 .*${2:+--rank $2 .*}$BATS_TEST_TMPDIR/ddpipe" | head -1
}

# Proves that all five programs work together from nothing but options, that numbers reach the files
# whole, and that an image is counted once whatever the number of ranks.
@test "two ranks train VGG11 on real images" {
    "$pipeline" --dataset cifar10 --model vgg11 --ranks-per-node 2 --global-batch-size 64 --limit-train 250 \
        --limit-val 125 --epochs 1 --seed 7 --lr 0.01 --run-dir run >out 3>&-
    [ "$(grep -c '^Epoch =  1: Cumulative Time = ' out)" -eq 1 ]
    [ -s run/model.safetensors ]
    /usr/bin/python3 - <<'END'
import json
rows = [json.loads(line) for line in open("run/metrics.jsonl")]
assert [r["kind"] for r in rows] == ["rank_epoch", "rank_epoch", "epoch"], rows
assert rows[2]["val_count"] == 125 and rows[2]["images"] == 250, rows[2]
assert rows[0]["val_count"] + rows[1]["val_count"] == 125
config = json.load(open("run/config.json"))
assert config["machine"]["cores"] >= 1 and config["git_commit"] and "--seed 7" in config["command_line"]
assert config["loader"]["batch-size"] == 32 and config["trainer"]["seed"] == config["loader"]["seed"] == 7
assert config["fetch"]["dataset"] == "cifar10" and config["prep"] and config["aggregator"]
END
    for log in prep loader.0 loader.1 trainer.0 trainer.1 aggregator; do [ -e run/$log.log ]; done
}

# Proves that a death by kill -9, whoever dies, ends the job soon, and that the job says who died.
@test "kill -9 of a trainer ends the job and is named" {
    launch
    kill -KILL "$(pid_of trainer 1)"
    finish 10
    [ "$code" -eq 111 ] || { cat err && false; }
    [[ $(cat err) == *'trainer[1] was killed by signal 9'* ]]
    clean
}
@test "kill -9 of a loader ends the job and is named" {
    launch
    kill -KILL "$(pid_of loader 0)"
    finish 10
    [ "$code" -eq 111 ] || { cat err && false; }
    [[ $(cat err) == *'loader[0] was killed by signal 9'* ]]
    clean
}
@test "kill -9 of the aggregator ends the job and is named" {
    launch
    kill -KILL "$(pid_of aggregator)"
    finish 10
    [ "$code" -eq 111 ] || { cat err && false; }
    [[ $(cat err) == *'aggregator was killed by signal 9'* ]]
    clean
}
@test "kill -9 of the script takes everything along" {
    launch
    kill -KILL "$job"
    finish 1
    within 10 clean
}

# Proves that a stopped process, which cannot react to TERM, is ended as well.
@test "a stopped process does not outlive the job" {
    launch
    kill -STOP "$(pid_of loader 1)"
    kill -TERM "$job"
    finish 10
    [ "$code" -eq 143 ]
    clean
}

# Proves that a diverged run ends with 1 and says where.
@test "a loss that is no number ends the run and names the step" {
    run "$pipeline" "${piece[@]}" --model wideresnet --width 1 --batch-size 32 --lr 1e6 --epochs 1 --run-dir run 3>&-
    [ "$status" -eq 1 ]
    [[ $output =~ trainer\[0\]\ failed\ with\ 1:.*epoch\ [0-9]+,\ step\ [0-9]+ ]]
}

# Proves that the code of the program that found the fault comes through, and its last words.
@test "a program's own refusal comes through" {
    run "$pipeline" "${piece[@]}" --batch-size 500 --epochs 1 --run-dir run 3>&-
    [ "$status" -ne 0 ]
    [[ $output == *'loader[0] failed with '*500* ]]
    run "$pipeline" --data "$BATS_TEST_TMPDIR/nowhere" --run-dir run2 3>&-
    [ "$status" -eq 1 ]
    [[ $output == *'prep failed with 1: '*nowhere* ]]
}

# Proves that wrong usage is refused before anything is made.
@test "wrong usage is refused before anything starts" {
    while IFS='|' read -r options word; do
        # shellcheck disable=SC2086 # the options are words
        run "$pipeline" --data "$DATA" --run-dir run $options 3>&-
        [ "$status" -eq 100 ] || { echo "$options: $status $output" && false; }
        [[ $output == *"$word"* ]] || { echo "$options: $output" && false; }
        [ ! -e run ]
    done <<'END'
--learning-rat 1|--learning-rat
--batch-sise 4|is --batch-size meant?
--lr 1 --lr 2|lr
--ranks-per-node 1 --ranks-per-node 2|--ranks-per-node
--rank 1|--rank
--num-nodes 2|--node-id
--num-nodes 2 --node-id 2 --master-addr h|0 to 1
--num-nodes 2 --node-id 0|--master-addr
--num-nodes 2 --node-id 0 --rank 0 --master-addr h|--node-id
--num-nodes 2 --rank 0 --ranks-per-node 2 --master-addr h|one rank per node
--num-nodes 2 --node-id 08 --master-addr h|number
--num-nodes 2 --node-id 0 --master-addr a --master-ip b|--master-ip=b
--world-size 2|--world-size
--endpoint ipc:///x|--endpoint
--lr fast|fast
--nesterov=1|--nesterov
--epochs|--epochs
--epochs 0x|0x
--ranks-per-node 0|--ranks-per-node
--global-batch-size 65 --ranks-per-node 2|65
--global-batch-size 64 --batch-size 32|--batch-size
--dataset cifar10|--dataset
--recipe no-such|no-such
--evaluate|--init
--evaluate --init x --synthetic|--synthetic
--evaluate --init x --require-target|--require-target
--evaluate --init x --bench|--bench
word|word
END
}

@test "--device cuda without trainer-cuda is refused" {
    mkdir bin
    for program in fetch prep loader trainer aggregator; do ln -s "$(realpath "$BIN")/$program" bin/; done
    BIN=bin run -100 "$pipeline" "${small[@]}" --device cuda 3>&-
    [[ $output == *"--device cuda: there is no bin/trainer-cuda"* ]]
}

# Proves that what started this script is believed, and that it may not contradict the command line.
@test "torchrun's and Slurm's words for nodes" {
    while IFS='|' read -r environment options word; do
        # shellcheck disable=SC2086 # both are words
        run env $environment "$pipeline" --data "$DATA" --run-dir run $options 3>&-
        [ "$status" -eq 100 ] || { echo "$environment $options: $status $output" && false; }
        [[ $output == *"$word"* ]] || { echo "$environment $options: $output" && false; }
    done <<'END'
RANK=1 WORLD_SIZE=3|--num-nodes 2|--num-nodes=2 contradicts WORLD_SIZE=3
RANK=1 WORLD_SIZE=2|--node-id 0|--node-id=0 contradicts RANK=1
RANK=1 WORLD_SIZE=2||--master-addr
RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2||once per node
SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2||one per node
SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1|--num-nodes 3|contradicts SLURM_STEP_NUM_NODES=2
END
    # The job's variables, outside a step, say nothing of this script.
    run env SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NNODES=2 SLURM_PROCID=0 "$pipeline" "${small[@]}" --epochs 1 --run-dir run 3>&-
    [ "$status" -eq 0 ]
}

# Proves that the stop rule wants so many epochs in a row and no more, and that a run which ends by its
# limit says so, as a failure where that was asked for.
@test "the stop rule, and a limit that comes before it" {
    run "$pipeline" "${small[@]}" --ranks-per-node 2 --target-accuracy 0.001 --patience 3 --epochs 9 --run-dir run1 3>&-
    [ "$status" -eq 0 ]
    [ "$(grep -c '^Epoch' <<<"$output")" -eq 3 ]
    [[ $output == *'Target reached: Epoch = 3'* ]]
    run "$pipeline" "${small[@]}" --target-accuracy 1 --epochs 2 --run-dir run2 3>&-
    [ "$status" -eq 0 ]
    [[ $output == *'Limit reached without the target: Epoch = 2'* ]]
    run "$pipeline" "${small[@]}" --target-accuracy 1 --epochs 2 --require-target --run-dir run3 3>&-
    [ "$status" -eq 1 ]
}

# Proves the table's rows, and the fit: 1, .6, .4 s on 1, 2, 4 ranks is s + (1-s)/n with s = .2 exactly.
@test "a scaling study" {
    "$BATS_TEST_DIRNAME/../../jobs/scaling.sh" --ranks "1 2" --run-dir study "${small[@]}" --epochs 1 >out 3>&-
    [ "$(cut -d, -f1,2 study/scaling.csv | tail -n +2 | tr '\n' ' ')" = "1,ddp 2,ddp 2,allreduce 2,gather-scatter " ]
    [ "$(grep -c '^Amdahl' out)" -eq 3 ]
    printf 'head\n1,ddp,0,1.0,0,0,0,0,,0\n2,ddp,0,0.6,0,0,0,0,,0\n4,ddp,0,0.4,0,0,0,0,9.5,0\n' >made.csv
    "$BATS_TEST_DIRNAME/../../jobs/scaling.sh" --table made.csv >out
    grep -q '^Amdahl, ddp: serial part 0.200: at most 5.0 times faster' out
}

# Proves that a count which is not that of the data set ends the run.
@test "validation images that are missing or there twice are noticed" {
    local serve=${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/tools/batch_serve sent
    for sent in 29 31 30; do
        "$serve" "ipc://$BATS_TEST_TMPDIR/serve" 30 "$sent" 3>&- &
        run --separate-stderr "$BIN/trainer" --model wideresnet --width 1 --threads 1 --epochs 1 --target-accuracy 0 \
            --endpoint "ipc://$BATS_TEST_TMPDIR/serve"
        wait $!
        if [ "$sent" != 30 ]; then
            [ "$status" = 1 ]
            [[ $stderr == *"epoch 1: $sent images were validated by all ranks, there are 30"* ]]
        fi
    done
    [ "$status" = 0 ]
}

# Proves that results are never mixed with older ones.
@test "a run folder that holds something is refused" {
    mkdir run && echo mine >run/notes
    run "$pipeline" "${small[@]}" --run-dir run 3>&-
    [ "$status" -eq 100 ]
    [ "$(ls run)" = notes ]
}

# Proves that every recipe is understood by the programs, and that the command line comes before it.
@test "recipes work and give way to the command line" {
    local file name
    for file in "$BATS_TEST_DIRNAME"/../../jobs/recipes/*.opts; do
        name=$(basename "$file" .opts)
        run "$pipeline" --recipe "$name" --data "$BATS_TEST_TMPDIR/nowhere" --run-dir "run-$name" 3>&-
        [ "$status" -eq 1 ] || { echo "$name: $output" && false; }
    done
    run "$pipeline" --recipe quick --data "$DATA" --limit-train 256 --limit-val 128 --epochs 1 --batch-size 64 \
        --run-dir run 3>&-
    [ "$status" -eq 0 ]
    /usr/bin/python3 - <<'END'
import json
config = json.load(open("run/config.json"))
assert config["trainer"]["epochs"] == 1 and config["trainer"]["widths"] == "16,64,128"
assert config["loader"]["batch-size"] == 64 and config["loader"]["augment"] == "speed"
END
}

# Proves that --keep-store keeps the store, and that a job's end does not take it from who keeps it.
@test "a kept store stays, and can be removed" {
    run "$pipeline" "${small[@]}" --epochs 1 --run-dir run1 --keep-store 3>&-
    [ "$status" -eq 0 ]
    [ "$(find "$shm" -type f | wc -l)" -eq 1 ]
    "$BIN/prep" --remove "$shm"/ddpipe.*
}
