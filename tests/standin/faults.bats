#!/usr/bin/env bats
# How the CUDA backend ends when something is missing or fails, and what it remembers, by the stand-in
# of standin.h.
# shellcheck disable=SC2154 # pipeline, piece, tiny: of setup.bash; stderr: of bats
bats_require_minimum_version 1.5.0
load setup

# Each call of the runtime, cuDNN, NCCL and each launch fails once: its first, its last.
@test "every call that fails ends the trainer with its name, at once" {
    DDPIPE_STANDIN_COUNTS=$PWD/counts "$BIN/trainer-cuda" "${tiny[@]}" --epochs 1 --autotune
    [ "$(wc -l <counts)" -ge 30 ]
    unset DDPIPE_STANDIN_LEAKS # who fails in the middle gives nothing back
    while read -r name count; do
        case $name in
        *Destroy* | cudaFree | cudaFreeHost | cudaGetErrorString | cudnnGet*) continue ;; # nothing depends on them
        esac
        [[ $name != *Query ]] || count=1 # how often one asks is a matter of time
        for k in 1 "$count"; do
            rm -rf cache
            DDPIPE_STANDIN_FAIL=$name:$k run timeout 60 "$BIN/trainer-cuda" "${tiny[@]}" --epochs 1 --autotune
            # A plan that cuDNN proposes and then cannot make is passed over: the rest is the same.
            if [[ $status -eq 0 && $name == cudnnBackend* && $output == *"loss 2.2786"* ]]; then continue; fi
            [[ ($status -eq 111 || $status -eq 1) && $output == trainer* ]] ||
                { echo "$name:$k of $count: $status $output" && false; }
        done
    done <counts
}

@test "without a driver, or a GPU: one line, and 111" {
    for gpus in none 0; do
        DDPIPE_STANDIN_GPUS=$gpus run -111 --separate-stderr "$BIN/trainer-cuda" "${tiny[@]}" --epochs 1
        [ "${#stderr_lines[@]}" = 1 ] && [[ $stderr == *"no GPU"* ]]
    done
}

@test "two ranks on one GPU, and more ranks than GPUs, are refused with the numbers" {
    DDPIPE_STANDIN_GPUS=4 CUDA_VISIBLE_DEVICES=2 run ! "$pipeline" "${piece[@]}" --limit-train 64 --limit-val 20 --model speednet --widths 8,8,8 \
        --device cuda --num-gpus 2 --run-dir run 3>&-
    [[ $output == *"ranks 0 and 1 both use GPU 0000:12:00.0"* ]]
    DDPIPE_STANDIN_GPUS=2 run ! "$pipeline" "${piece[@]}" --limit-train 64 --limit-val 20 --model speednet --widths 8,8,8 \
        --device cuda --num-gpus 3 --run-dir run2 3>&-
    [[ $output == *"3 ranks on this node, but this process sees 2 GPUs"* ]]
}

@test "plans are timed once, and remembered" {
    "$BIN/trainer-cuda" "${tiny[@]}" --epochs 1 --autotune
    first=$(wc -l <cache/ddpipe/autotune.txt)
    [ "$first" -gt 5 ]
    "$BIN/trainer-cuda" "${tiny[@]}" --epochs 1 --autotune
    [ "$(wc -l <cache/ddpipe/autotune.txt)" = "$first" ]
}

start_ranks() { # TIMEOUT: two ranks for ever; sets pids
    local port=$((20000 + RANDOM % 10000)) r
    export DDPIPE_STANDIN_GPUS=2
    unset DDPIPE_STANDIN_LEAKS
    pids=()
    for r in 0 1; do
        "$BIN/trainer-cuda" "${tiny[@]}" --epochs 100000 --comm-timeout "$1" --rank $r --world-size 2 --local-rank $r \
            --local-world-size 2 --master-port $port 2>err.$r 3>&- &
        pids+=($!)
    done
    until grep -q "epoch 2 train" err.0; do
        if ! kill -0 "${pids[0]}"; then cat err.0 && return 1; fi
        sleep 0.05
    done
}

@test "a rank that is killed ends the other at once, one that hangs within the timeout" {
    start_ranks 20
    began=$SECONDS
    kill -KILL "${pids[1]}"
    code=0 && wait "${pids[0]}" || code=$?
    [ "$code" = 111 ] && ((SECONDS - began < 5)) || { echo "$code $((SECONDS - began))" && cat err.0 && false; }

    export DDPIPE_STANDIN_PATIENCE=1
    start_ranks 4
    began=$SECONDS
    kill -STOP "${pids[1]}"
    code=0 && wait "${pids[0]}" || code=$?
    kill -KILL "${pids[1]}"
    [ "$code" = 111 ] && ((SECONDS - began < 10)) || { echo "$code $((SECONDS - began))" && cat err.0 && false; }
    grep -q "the GPU was not done within 4 s: another rank may hang" err.0
}
