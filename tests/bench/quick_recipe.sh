#!/usr/bin/env bash
# quick_recipe.sh [SEEDS…]: the time to the stop rule of `make run` and of the same recipe in PyTorch, in turn, one
# pair per seed (default: 1 2 3). The peer's time begins when its images are decoded; ours when loaders and trainers start
# ("Cumulative Time" of the last epoch), and, in brackets, when run_pipeline.sh does.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$(bin/fetch)
(($#)) || set -- 1 2 3
for seed; do
    began=$(date +%s.%N)
    ours=$(jobs/run_pipeline.sh --recipe quick --data "$data" --seed "$seed" 2>/dev/null | tail -n 1)
    whole=$(echo "$(date +%s.%N) $began" | awk '{printf "%.1f", $1 - $2}')
    peer=$(/usr/bin/python3 tests/bench/quick_recipe.py --data "$data" --seed "$seed" | tail -n 1)
    echo "seed $seed: ddpipe: $ours [$whole s]; PyTorch: $peer"
done
