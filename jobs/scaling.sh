#!/usr/bin/env bash
# scaling.sh: the scaling study of a course: the same training on 1, 2, … ranks of this node, with each
# strategy of gradient synchronisation, at the same global batch; a table, and Amdahl's law fitted to it.
#
#   jobs/scaling.sh [--ranks "1 2 4"] [--sync "ddp allreduce gather-scatter"] [--run-dir DIR] OPTION…
#   jobs/scaling.sh --table FILE.csv        prints the table and the fit of an earlier study
#
# Every other OPTION is run_pipeline.sh's. Without any: VGG11, global batch 128, 41 steps, as the CPU course
# asks for: 0.92 GFLOP × 128 × 41 = 4.8 TFLOP a run. Ranks share the node's cores: with as many threads in
# all, what is lost against one rank is the price of being many.
#
# Columns: images/s over all ranks; s/iteration over the first 40 without the first; where a rank's time went
# per iteration, in ms: waiting for data, computing, communicating in the open, and (beside these)
# communicating while it computed; time to the target accuracy, where one was set and met; last accuracy.
#
# Amdahl: with serial part s, S(n) = 1 / (s + (1-s)/n). Least squares over n > 1 of 1/S = s + (1-s)/n:
#   s = Σ (1/S - 1/n)(1 - 1/n) / Σ (1 - 1/n)².  S(n) = s/iteration of 1 rank ÷ that of n.
# Ranks that have one core each measure this; more ranks than cores measure the price alone.
set -euo pipefail
jobs=$(dirname "$(readlink -f "$0")")

print_table() { # FILE.csv
    awk -F, '
    NR == 1 { printf "%5s %-15s %9s %11s %8s %9s %8s %8s %9s %9s\n", "ranks", "sync", "images/s", "s/iteration", "wait ms", "compute", "comm", "hidden", "to target", "accuracy"; next }
    { printf "%5d %-15s %9.1f %11.4f %8.1f %9.1f %8.1f %8.1f %9s %9s\n", $1, $2, $3, $4, $5, $6, $7, $8, ($9 == "" ? "-" : sprintf("%.1f", $9)), ($10 == "" ? "-" : $10) }
    $1 == 1 { one = $4 }
    $1 > 1 && one > 0 { x = 1 - 1 / $1; y = $4 / one - 1 / $1; xy[$2] += x * y; xx[$2] += x * x }
    END {
        for (sync in xx) {
            s = xy[sync] / xx[sync]
            limit = s > 0 ? sprintf("at most %.1f times faster", 1 / s) : "no limit seen"
            printf "Amdahl, %s: serial part %.3f: %s however many ranks\n", sync, s, limit
        }
    }' "$1"
}

ranks='' syncs='ddp allreduce gather-scatter' out='' options=()
refuse() { echo "scaling: $*" >&2 && exit 100; }
while (($#)); do
    case $1 in
    --help | -h) sed -n '2,/^set/ { /^set/d; s/^# \{0,1\}//; p; }' "$0" && exit 0 ;;
    --table)
        [ -r "${2:-}" ] || refuse "--table \"${2:-}\": the scaling.csv of a study is wanted"
        print_table "$2" && exit 0
        ;;
    --ranks | --sync | --run-dir)
        (($# > 1)) || refuse "$1 wants a value"
        case $1 in --ranks) ranks=$2 ;; --sync) syncs=$2 ;; *) out=$2 ;; esac
        shift 2
        ;;
    *) options+=("$1") && shift ;;
    esac
done
[ -n "$ranks" ] || ranks=$(seq -s ' ' 1 "$(nproc)")
[[ $ranks =~ ^[1-9][0-9]*(\ [1-9][0-9]*)*$ ]] || refuse "--ranks \"$ranks\": numbers from 1 are wanted"
out=${out:-runs/$(date +%Y%m%d-%H%M%S)-scaling}
if [ -d "$out" ] && [ -n "$(ls -A "$out")" ]; then refuse "--run-dir \"$out\" is not empty"; fi
mkdir -p "$out"
((${#options[@]})) || options=(--model vgg11 --global-batch-size 128 --max-steps 41 --epochs 1 --limit-val 1000)

field() { # NAME OBJECT: of a JSON line
    sed -n "s/.*\"$1\":\([-0-9.e+]*\).*/\1/p" <<<"$2"
}

echo "ranks,sync,images_per_sec,seconds_per_iteration,wait_ms,compute_ms,comm_ms,hidden_ms,time_to_target,val_accuracy" >"$out/scaling.csv"
for n in $ranks; do
    for sync in $syncs; do
        # One rank synchronises nothing.
        if ((n == 1)) && [ "$sync" != "${syncs%% *}" ]; then continue; fi
        run=$out/$n-$sync
        "$jobs/run_pipeline.sh" "${options[@]}" --ranks-per-node "$n" --sync "$sync" --run-dir "$run" \
            >"$out/$n-$sync.log" 2>&1 || { tail -n 3 "$out/$n-$sync.log" >&2 && exit 111; }
        # The first epoch has the pace; the last the accuracy and, where the target was met, the time.
        first=$(grep '"kind":"epoch"' "$run/metrics.jsonl" | head -1)
        last=$(grep '"kind":"epoch"' "$run/metrics.jsonl" | tail -1)
        met=
        ! grep -q '^Target reached' "$out/$n-$sync.log" || met=$(field cumulative_time "$last")
        steps=$(awk \
            -v images="$(field images "$first")" -v b="$(sed -n 's/.*"batch-size": *\([0-9]*\).*/\1/p' "$run/config.json" | head -1)" -v n="$n" \
            'BEGIN { print int(images / (b * n) + 0.999) }')
        ms() { awk -v s="$(field "$1" "$first")" -v steps="$steps" 'BEGIN { printf "%.1f", 1000 * s / steps }'; }
        echo "$n,$sync,$(field images_per_sec "$first"),$(field seconds_per_iteration "$first"),$(ms wait),$(ms compute),$(ms comm),$(ms hidden),$met,$(field val_accuracy "$last")" >>"$out/scaling.csv"
    done
done

print_table "$out/scaling.csv" | tee "$out/scaling.txt"
