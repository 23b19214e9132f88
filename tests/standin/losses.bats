#!/usr/bin/env bats
# bin/trainer-cuda's backend without a GPU: the same objects, but the CUDA runtime, cuDNN and NCCL
# stood in for (standin.h). What the host does is proven, not speed: order, shapes, streams joined by
# events. A race ends the stand-in with 99, what is left at its end with 98.
# shellcheck disable=SC2154 # pipeline, piece: of setup.bash
bats_require_minimum_version 1.5.0
load setup

losses() { # RUN
    sed -n 's/.*"train_loss":\([^,]*\),.*"val_loss":\([^,}]*\).*/\1\n\2/p' "$1/metrics.jsonl"
}

# Every loss of both runs, at most so far apart.
close() { # RUN RUN RELATIVE
    paste <(losses "$1") <(losses "$2") | awk -v allowed="$3" '
        { d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { printf "# %d losses, at most %.2g apart\n", n, most; exit !(n >= 2 && most <= allowed) }' >&3
}

pair() { # GPUS MODEL IMAGES OPTION…: the same run on CPU and stand-in
    export DDPIPE_STANDIN_GPUS=$1
    options=("${piece[@]}" --ranks-per-node "$1" --model "$2" --limit-train "$3" --limit-val 20 "${@:4}")
    "$pipeline" "${options[@]}" --device cpu --run-dir cpu 3>&- >cpu.log 2>&1 || { tail cpu.log && false; }
    "$pipeline" "${options[@]}" --device cuda --precision fp32 --run-dir cuda 3>&- >cuda.log 2>&1 ||
        { tail cuda.log && false; }
    close cpu cuda 1e-4
}

@test "speednet on 1, 2 and 4 GPUs has the CPU's losses" {
    for gpus in 1 2 4; do
        pair "$gpus" speednet 64 --widths 16,32,32 --activation relu --lr 0.02 --ema-every 2
        rm -r cpu cuda
    done
}

@test "wideresnet on 2 GPUs has the CPU's losses, with each strategy and accumulated gradients" {
    for sync in ddp allreduce gather-scatter; do
        pair 2 wideresnet 80 --width 1 --dropout 0 --lr 0.001 --sync "$sync" --accumulate 2
        rm -r cpu cuda
    done
}

# NCCL's sum of the ranks' images/s on rank 0 is the aggregator's of their records.
@test "images per second on all GPUs" {
    pair 2 speednet 64 --widths 8,8,8
    paste <(sed -n 's/.*epoch [12]: \([0-9.]*\) images\/s on all 2 GPUs/\1/p' cuda/trainer.0.log) \
        <(sed -n 's/.*"kind":"epoch".*"images_per_sec":\([0-9.]*\).*/\1/p' cuda/metrics.jsonl) | tee rates |
        awk '{ d = $1 / $2 - 1; if (d * d > 1e-4 || !$2) exit 1; n++ } END { exit n != 2 }' || { cat rates && false; }
    run ! grep "images/s on all" cuda/trainer.1.log
}

@test "vgg11 has the CPU's losses" {
    pair 1 vgg11 24 --lr 0.0001 --optimizer adam
}

@test "a GPU's 16 bits train, too" {
    pair 1 speednet 64 --widths 16,32,32 --lr 0.02 --ema-every 2
    for precision in bf16 fp16; do
        "$pipeline" "${options[@]}" --device cuda --precision "$precision" --run-dir "$precision" 3>&- >half.log 2>&1 ||
            { tail half.log && false; }
        close cpu "$precision" 0.005
    done
}
