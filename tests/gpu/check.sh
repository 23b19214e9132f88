#!/usr/bin/env bash
# check.sh: everything that needs a GPU, in one command of at most 8 minutes on one H200: builds, holds every
# layer against the reference in each precision, trains to the stop rule on real images, measures images/s
# against the GPU's own peak and against PyTorch, and looks for memory errors. Prints a table; writes JSON.
#
# A phase has a time limit, and what an earlier one left over. One that fails is recorded, and the next runs.
# Needs the CUDA toolkit (CUDA_HOME), cuDNN (CUDNN_HOME), NCCL (NCCL_HOME) and what jobs/deps.sh lists; what is
# missing is named, nothing is installed. PyTorch is compared with where python3 has it.
#
# Training costs 3 times the FLOP of a forward pass: wideresnet 10 14.5 GFLOP an image, vgg11 0.92.
# shellcheck disable=SC2317 # phase() calls the functions by their names
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd) || exit 111

usage='usage: check.sh [OPTION]…

  --data DIR    CIFAR-10 to train on, as many images as are there; without it nothing is trained
  --out FILE    the results as JSON (check.json)
  --quick       batches of 128 and 1024 in bf16 alone, two epochs of training instead of the stop rule
  --bin DIR     take programs from there, those that it has, and build nothing
  --stand-in    with --bin: trainer-cuda stands in for a GPU on a CPU: small sizes, and neither peak, PyTorch
                nor compute-sanitizer
Ends with 0; 1: a phase failed; 100: wrong usage.'
data='' out=check.json quick='' bin='' standin=''
refuse() { echo "check: $*" >&2 && exit 100; }
while (($#)); do
    case $1 in
    --help | -h) echo "$usage" && exit 0 ;;
    --quick) quick=1 ;;
    --stand-in) standin=1 ;;
    --data | --out | --bin)
        (($# > 1)) || refuse "$1 wants a value"
        case $1 in --data) data=$2 ;; --out) out=$2 ;; *) bin=$2 ;; esac
        shift
        ;;
    *) refuse "unknown option \"$1\" (see --help)" ;;
    esac
    shift
done
[ -z "$data" ] || [ -d "$data" ] || refuse "--data \"$data\" is no folder"
[ -z "$bin" ] || [ -d "$bin" ] || refuse "--bin \"$bin\" is no folder"
data=${data:+$(realpath "$data")} bin=${bin:+$(realpath "$bin")} out=$(realpath "$out")
cd "$root" || exit 111
[ -z "$standin" ] || [ -n "$bin" ] || refuse "--stand-in needs --bin, where its trainer-cuda is"

models=(wideresnet vgg11) precisions=(bf16 tf32) batches=(512 128 64 256 1024)
[ -z "$quick" ] || precisions=(bf16) batches=(1024 128)
[ -z "$standin" ] || precisions=(bf16) batches=(8)

export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpucheck.XXXXXX") || exit 111
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/bin"
: >"$work/rows" # source model precision batch images/s
export XDG_CACHE_HOME=$work/cache BIN=$work/bin # what --autotune measures is measured here, once

# ---- phases --------------------------------------------------------------------------------------

declare -A state=() note=() took=()
order=() until=0

phase() { # NAME SECONDS FUNCTION: until is when it must have ended
    local name=$1 began=$SECONDS
    until=$((until + $2))
    order+=("$name")
    echo "== $name (at most $((until - SECONDS)) s)"
    if "$3" >"$work/$name.log" 2>&1; then
        state[$name]=ok
    else
        state[$name]=failed
        ((SECONDS < until)) || state[$name]='failed: out of time'
    fi
    [ ! -e "$work/$name.left-out" ] || state[$name]='left out'
    note[$name]=$(cat "$work/$name.note" "$work/$name.left-out" 2>/dev/null | tail -n 1)
    took[$name]=$((SECONDS - began))
    [[ ${state[$name]} != failed* ]] || tail -n 12 "$work/$name.log"
    echo "   ${state[$name]}, ${took[$name]} s${note[$name]:+: ${note[$name]}}"
}

limited() { # COMMAND…: until the phase's end
    local left=$((until - SECONDS))
    ((left > 0)) || { echo "no time left for: $*" && return 124; }
    timeout --kill-after=5 "$left" "$@"
}

left_out() { # NAME WHY
    echo "$2" >"$work/$1.left-out"
}

program() { # NAME: whether it is there
    [ -x "$BIN/$1" ] || { echo "there is no program $1" && return 1; }
}

missing() { # what a build lacks, one a line
    local home=$CUDA_HOME header
    compgen -G "$home/bin/nvcc" >/dev/null || compgen -G "$home/*/bin/nvcc" >/dev/null ||
        echo "nvcc, of the CUDA toolkit: not in CUDA_HOME=$home/bin"
    for header in cuda_runtime_api.h:CUDA_HOME cudnn.h:CUDNN_HOME nccl.h:NCCL_HOME; do
        home=${header#*:} && home=${!home:-$CUDA_HOME}
        compgen -G "$home/include/${header%:*}" >/dev/null || compgen -G "$home/*/include/${header%:*}" >/dev/null ||
            echo "${header%:*}: not in ${header#*:}=$home/include"
    done
    jobs/deps.sh check build run 2>&1
}

take_programs() { # FROM…: the first folder that has one gives it
    local name folder
    for name in fetch prep loader trainer aggregator trainer-cuda layers peak; do
        for folder; do
            [ ! -x "$folder/$name" ] || { ln -sf "$folder/$name" "$BIN/$name" && break; }
        done
    done
}

build() {
    local rc=0 lacks
    if [ -n "$bin" ]; then
        left_out build "programs from $bin"
        take_programs "$bin" "$root/bin"
        return 0
    fi
    lacks=$(missing)
    if [ -n "$lacks" ]; then
        echo "missing: $lacks" && echo "missing: ${lacks//$'\n'/; }" >"$work/build.note"
    fi
    limited make -j "$(nproc)" all build/release/tests/gpu/layers build/release/tests/gpu/peak || rc=1
    take_programs "$root/bin" "$root/build/release/tests/gpu"
    return "$rc"
}

# Each precision is a process; on a GPU they share it, since most of their time is the reference's.
layers() {
    local p rc=0 pids=() types=(fp32 tf32 bf16 fp16)
    [ -z "$standin" ] || types=(fp32 bf16)
    program layers || return 1
    for p in "${types[@]}"; do
        limited "$BIN/layers" "$p" >"$work/layers.$p" 2>&1 &
        pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || rc=1; done
    for p in "${types[@]}"; do cat "$work/layers.$p"; done
    echo "$(grep -c ' ok$' "$work/layers.log") networks within their bounds, $(grep -c ' OVER$' "$work/layers.log") over" \
        >"$work/layers.note"
    return "$rc"
}

peak() {
    [ -z "$standin" ] || { left_out peak "a stand-in has none" && return 0; }
    program peak && limited "$BIN/peak" "${precisions[@]}" || return 1
    tr '\n' ' ' <"$work/peak.log" >"$work/peak.note"
}

peak_of() { # PRECISION: TFLOP/s
    sed -n "s/^$1 \([0-9.]*\) TFLOP.*/\1/p" "$work/peak.log"
}

# Of the second of two epochs: the first also compiles, chooses among plans and records the step.
rate() { # SOURCE MODEL PRECISION BATCH OPTION…: one more row
    local source=$1 model=$2 precision=$3 batch=$4 images=300000 rate
    shift 4
    [ "$model" = vgg11 ] || images=20000
    [ -z "$standin" ] || images=16
    limited "$BIN/trainer-cuda" --device cuda --synthetic --model "$model" --width "${standin:-10}" --precision "$precision" \
        --batch-size "$batch" --synthetic-steps $((images / batch < 8 ? (standin ? 2 : 8) : images / batch)) --epochs 2 \
        --target-accuracy 0 --lr 1e-3 "$@" 2>"$work/rate" || { cat "$work/rate" && return 1; }
    rate=$(sed -n 's/.*epoch 2 train: .*(\([0-9.]*\)\/s).*/\1/p' "$work/rate")
    [ -n "$rate" ] || { echo "no epoch 2 in:" && cat "$work/rate" && return 1; }
    echo "$source $model $precision $batch $rate" | tee -a "$work/rows"
}

measure() {
    local model precision batch rc=0 tuned=0 all=0
    program trainer-cuda || return 1
    for precision in "${precisions[@]}"; do
        for batch in "${batches[@]}"; do
            for model in "${models[@]}"; do
                rate ddpipe "$model" "$precision" "$batch" || rc=1
            done
        done
    done
    # Choosing takes its time: as many as the limit allows, and none is missed.
    for precision in "${precisions[@]}"; do
        for batch in "${batches[@]}"; do
            for model in "${models[@]}"; do
                all=$((all + 1))
                ((until - SECONDS > 5)) || continue
                if rate ddpipe-autotune "$model" "$precision" "$batch" --autotune; then
                    tuned=$((tuned + 1))
                elif ((SECONDS < until)); then
                    rc=1
                fi
            done
        done
    done
    echo "$tuned of $all with --autotune in time" >"$work/measure.note"
    return "$rc"
}

# The options of each are those of its recipe, which says what it costs.
train() { # PHASE OPTION…
    local name=$1 most=(--require-target)
    shift
    [ -n "$data" ] || { left_out "$name" "no --data" && return 0; }
    [ -z "$quick" ] || most=(--epochs 2 --target-accuracy 0)
    [ -z "$standin" ] || most=(--epochs 1 --target-accuracy 0 --limit-train 64 --limit-val 32 --batch-size 16)
    program trainer-cuda || return 1
    limited jobs/run_pipeline.sh --data "$data" --any-content --device cuda --precision bf16 --run-dir "$work/run-$name" "$@" "${most[@]}" || {
        tail -n 5 "$work/run-$name"/*.log
        return 1
    }
    grep -E '^(Target|Epoch)' "$work/$name.log" | tail -n 1 |
        sed 's/ Epoch Time.* Validation Loss/ Validation Loss/' >"$work/$name.note"
}
speednet() { train speednet --recipe quick ${standin:+--widths 8,8,8}; }
wideresnet() { train wideresnet --recipe wideresnet ${standin:+--width 1 --augment none}; }

torch() {
    [ -z "$standin" ] || { left_out pytorch "a stand-in is no match" && return 0; }
    python3 -c 'import torch' 2>/dev/null || { left_out pytorch "python3 has no torch" && return 0; }
    local list="${batches[*]}" of="${precisions[*]}" rc=0
    limited python3 tests/gpu/torch_bench.py --batches "${list// /,}" --precisions "${of// /,}" --seconds $((until - SECONDS - 3)) \
        >"$work/torch" || rc=$?
    cat "$work/torch"
    sed -n 's/.*"model": "\([a-z0-9]*\)", "precision": "\([a-z0-9]*\)", "batch": \([0-9]*\), "mode": "\([a-z]*\)", "images_per_sec": \([0-9.]*\).*/pytorch-\4 \1 \2 \3 \5/p' \
        "$work/torch" >>"$work/rows"
    echo "$(grep -c images_per_sec "$work/torch") results in time" >"$work/pytorch.note"
    # That the time was over in the middle of one is no failure, but no result at all is.
    grep -q images_per_sec "$work/torch" && ((rc == 0 || rc == 124))
}

sanitizer() {
    local tool sanitize rc
    [ -z "$standin" ] || { left_out sanitizer "the stand-in looks for itself" && return 0; }
    sanitize=$(command -v compute-sanitizer || compgen -G "$CUDA_HOME/bin/compute-sanitizer" || compgen -G "$CUDA_HOME/*/bin/compute-sanitizer") ||
        { echo "there is no compute-sanitizer" && return 1; }
    program trainer-cuda || return 1
    for tool in memcheck racecheck; do
        rc=0
        limited "$sanitize" --tool "$tool" --error-exitcode 9 "$BIN/trainer-cuda" --device cuda --synthetic --model speednet \
            --widths 16,32,32 --batch-size 16 --epochs 1 --synthetic-steps 2 --target-accuracy 0 --precision bf16 || rc=$?
        # The second where time is left: it costs much more.
        if [ "$tool" = racecheck ] && ((rc == 124 || rc == 137)); then break; fi
        ((rc == 0)) || return 1
        echo "${tool}" >>"$work/sanitizer.tools"
    done
    echo "no errors: $(tr '\n' ' ' <"$work/sanitizer.tools")" >"$work/sanitizer.note"
}

# ---- the run -------------------------------------------------------------------------------------

slow=1 # what a CPU needs
[ -z "$standin" ] || slow=20
phase build $((90 * slow)) build
phase layers $((80 * slow)) layers
phase peak 15 peak
phase measure $((110 * slow)) measure
phase speednet $((40 * slow)) speednet
phase wideresnet $((60 * slow)) wideresnet
phase pytorch 55 torch
phase sanitizer 30 sanitizer

# ---- results -------------------------------------------------------------------------------------

# GFLOP of a training image: 2 a multiplication and addition, 3 passes.
declare -A gflop=([wideresnet]=14.473 [vgg11]=0.9166)

fraction() { # MODEL PRECISION IMAGES/S: of the peak, or nothing
    local peak
    peak=$(peak_of "$2")
    [ -z "$peak" ] || awk -v g="${gflop[$1]}" -v r="$3" -v p="$peak" 'BEGIN { printf "%.3f", g * r / p / 1000 }'
}

text() { # STRING: as JSON
    local s=${1//\\/\\\\}
    s=${s//\"/\\\"} s=${s//$'\n'/ } s=${s//$'\t'/ }
    printf '"%s"' "$s"
}

device='a stand-in' driver=none
if [ -z "$standin" ]; then
    IFS=, read -r device driver < <(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo unknown, unknown)
fi

json() {
    local name source model precision batch rate part comma=''
    echo "{\"date\": $(text "$(date -u +%Y-%m-%dT%H:%M:%SZ)"), \"device\": $(text "$device"), \"driver\": $(text "${driver# }"),"
    echo "\"git_commit\": $(text "$(git describe --always --abbrev=40 --dirty 2>/dev/null || echo unknown)"), \"seconds\": $SECONDS,"
    echo '"phases": {'
    for name in "${order[@]}"; do
        echo "$comma$(text "$name"): {\"state\": $(text "${state[$name]}"), \"seconds\": ${took[$name]}, \"note\": $(text "${note[$name]}")}"
        comma=,
    done
    echo '}, "peak_tflops": {' && comma=''
    for precision in "${precisions[@]}"; do
        part=$(peak_of "$precision")
        [ -z "$part" ] || { echo "$comma$(text "$precision"): $part" && comma=,; }
    done
    echo '}, "training": [' && comma=''
    while read -r source model precision batch rate; do
        part=$(fraction "$model" "$precision" "$rate")
        echo "$comma{\"source\": $(text "$source"), \"model\": $(text "$model"), \"precision\": $(text "$precision")," \
            "\"batch\": $batch, \"images_per_sec\": $rate, \"fraction_of_peak\": ${part:-null}}"
        comma=,
    done <"$work/rows"
    echo ']}'
}

table() { # images/s, and the fraction of the peak; ratio: our faster to PyTorch's faster
    awk -v peaks="$(for p in "${precisions[@]}"; do echo "$p=$(peak_of "$p")"; done)" \
        -v costs="$(for m in "${models[@]}"; do echo "$m=${gflop[$m]}"; done)" '
    function cell(source) { return (key, source) in rate ? sprintf("%.5g", rate[key, source]) : "-" }
    function best(a, b) { return rate[key, a] > rate[key, b] ? rate[key, a] : rate[key, b] }
    BEGIN {
        n = split(peaks " " costs, pair, /[ \n]+/)
        for (i = 1; i <= n; i++) { split(pair[i], two, "="); value[two[1]] = two[2] }
        split("ddpipe ddpipe-autotune pytorch-eager pytorch-compile", sources, " ")
        printf "%-11s %-5s %5s %10s %10s %8s %10s %10s %6s\n", "model", "type", "batch", "ddpipe", "autotune", "of peak", "torch", "compiled", "ratio"
    }
    { key = $2 " " $3 " " $4; if (!(key in seen)) { seen[key] = 1; keys[++count] = key } rate[key, $1] = $5 }
    END {
        for (i = 1; i <= count; i++) {
            key = keys[i]; split(key, part, " ")
            c1 = cell("ddpipe"); c2 = cell("ddpipe-autotune"); c3 = cell("pytorch-eager"); c4 = cell("pytorch-compile")
            ours = best("ddpipe", "ddpipe-autotune"); theirs = best("pytorch-eager", "pytorch-compile")
            of = value[part[2]] > 0 ? sprintf("%.3f", value[part[1]] * ours / value[part[2]] / 1000) : "-"
            ratio = theirs > 0 ? sprintf("%.2f", ours / theirs) : "-"
            printf "%-11s %-5s %5s %10s %10s %8s %10s %10s %6s\n", part[1], part[2], part[3], c1, c2, of, c3, c4, ratio
        }
    }' "$work/rows"
}

failed=0
echo
echo "$device, driver ${driver# }, $SECONDS s"
for name in "${order[@]}"; do
    printf '%-11s %4d s  %-22s %s\n' "$name" "${took[$name]}" "${state[$name]}" "${note[$name]}"
    [[ ${state[$name]} != failed* ]] || failed=1
done
echo
table
json >"$out" || failed=1
exit "$failed"
