#!/usr/bin/env bash
# ranks.sh [ROUNDS [OPTION OF trainer]…]: what it costs to be two: VGG11 on made-up images, global batch 128,
# one process of two threads against two ranks of one thread, by turns. A line a round: images/s of each in
# the second of two epochs of 30 steps (the first also pays for its memory's first use) and their ratio; then
# the median ratio. On two idle cores it takes 45 s a round.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
(($# == 0)) || shift
common=(--model vgg11 --synthetic --synthetic-steps 30 --epochs 2 --target-accuracy 0)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

rate() { sed -n 's/.*epoch 2 train: .*(\([0-9.]*\)\/s).*/\1/p' "$1"; }

for ((i = 0; i < rounds; i++)); do
    bin/trainer "${common[@]}" "$@" --threads 2 --batch-size 128 2>"$out/one"
    port=$((20000 + RANDOM % 12000))
    pids=()
    for rank in 0 1; do
        bin/trainer "${common[@]}" "$@" --threads 1 --batch-size 64 --rank "$rank" --world-size 2 \
            --local-rank "$rank" --local-world-size 2 --master-port "$port" 2>"$out/$rank" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
    echo "$(rate "$out/one") $(rate "$out/0") $(rate "$out/1")" |
        awk '{printf "one process %.1f  two ranks %.1f  ratio %.3f\n", $1, $2 + $3, ($2 + $3) / $1}' | tee -a "$out/rounds"
done
awk '{print $NF}' "$out/rounds" | sort -n | awk '{r[NR] = $1} END {print "median ratio", r[int((NR + 1) / 2)]}'
