#!/usr/bin/env bash
# run_pipeline.sh: trains on one node, or is one node's part of a run on many: fetch, prep, then a
# loader and a trainer per rank, and on node 0 the aggregator. Epoch lines come on node 0's stdout;
# everything else about the run is in its folder.
#
# Nodes share nothing but a network: node 0's trainers meet the others at --master-port, and its
# aggregator listens at the port after it. A node that fails ends the others through the trainers.
#
# Whichever process fails first ends the run, and is named. Cleaning up is guard.sh's work: it runs
# beside this script and notices its end.
set -uo pipefail

jobs=$(dirname "$(readlink -f "$0")")
bin=${BIN:-$jobs/../bin}
programs=(fetch prep loader trainer aggregator)

usage='usage: run_pipeline.sh [OPTION]…

  --recipe NAME           take options from jobs/recipes/NAME.opts; the command line overrides
  --dataset NAME          fetch this data set (cifar10)
  --data DIR              or use the data set in DIR
  --ranks-per-node N      ranks, each a loader and a trainer (1); --num-gpus N means the same
  --num-nodes N --node-id I --master-addr HOST --master-port P
                          start it on every node, with I from 0; node 0 is HOST
  --master-ip HOST --num-nodes N --rank R     the same with one rank a node
                          (torchrun and srun with one task a node say it by themselves)
  --global-batch-size B   divided by the ranks; --batch-size is that of one rank
  --run-dir DIR           a new folder for logs and results (runs/TIME-MODEL)
  --keep-store            leave the decoded data set in shared memory for the next run

DDPIPE_RUN_KEY in the environment, any text, the same on all nodes: who lacks it can neither join nor
read the metrics.
Every other option is passed to each of the programs that have it: see --help of
fetch, prep, loader, trainer and aggregator.
Ends with 0; 1: input or result is wrong; 100: wrong usage; 111: system or peer failed.'

# shellcheck source=jobs/options.sh
. "$jobs/options.sh"
# shellcheck source=jobs/nodes.sh
. "$jobs/nodes.sh"

say() { echo "run_pipeline: $*" >&2; }
refuse() { say "$@" && finish 100; }
give_up() { say "$@" && finish 111; }

# ---- what each program is told -------------------------------------------------------------------

command_of() { # PROGRAM [LOCAL_RANK]: fills command[]
    local program=$1 local_rank=${2:-0} metrics="ipc://$folder/metrics"
    local rank=$((node * local_world + local_rank))
    ((nodes == 1)) || metrics=tcp://$master_addr:$((master_port + 1))
    local -n options=options_$program
    command=("$bin/$program" "${options[@]}")
    case $program in
    prep) command+=(--data "$data" --owner-pid "$$") ;;
    loader) command+=(--store "$store" --rank "$rank" --world-size "$world" --endpoint "ipc://$folder/loader.$rank") ;;
    trainer)
        [ "${given[device]:-}" != cuda ] || command[0]=$bin/trainer-cuda
        command+=(--rank "$rank" --world-size "$world" --local-rank "$local_rank" --local-world-size "$local_world"
            --master-addr "$master_addr" --master-port "$master_port" --metrics "$metrics")
        [[ -v given[synthetic] ]] || command+=(--endpoint "ipc://$folder/loader.$rank")
        ((rank > 0)) || command+=(--save "$run/model.safetensors")
        ;;
    aggregator) command+=(--listen "$metrics" --world-size "$world" --metrics "$run/metrics.jsonl") ;;
    esac
}

# ---- the run's folder ----------------------------------------------------------------------------

text() { # STRING: as JSON
    local s=${1//\\/\\\\}
    s=${s//\"/\\\"} s=${s//$'\n'/\\n} s=${s//$'\t'/\\t}
    printf '"%s"' "$s"
}

make_run_dir() {
    local model
    model=${given[model]:-$("$bin/trainer" --print-config | sed -n 's/.*"model": *"\([^"]*\)".*/\1/p')}
    run=${given[run-dir]:-runs/$(date +%Y%m%d-%H%M%S)-$model}
    ((node == 0)) || run+=/node.$node # where nodes share a file system
    if [ -d "$run" ] && [ -n "$(ls -A -I 'node.*' "$run")" ]; then refuse "--run-dir \"$run\" is not empty"; fi
    mkdir -p "$run" || give_up "cannot make the run's folder \"$run\""
    run=$(cd "$run" && pwd)
}

print_config() { # every setting of the run, as JSON
    local program
    echo '{'
    echo "\"command_line\": $(text "$command_line"),"
    echo "\"git_commit\": $(text "$(git -C "$jobs" describe --always --abbrev=40 --dirty --exclude="*" 2>/dev/null || echo unknown)"),"
    echo "\"world_size\": $world, \"num_nodes\": $nodes, \"node_id\": $node, \"ranks_per_node\": $local_world,"
    echo "\"machine\": {\"hostname\": $(text "$(uname -n)"), \"kernel\": $(text "$(uname -sr)"), \"cores\": $(nproc),"
    echo "  \"cpu\": $(text "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"),"
    echo "  \"memory_kb\": $(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)}"
    for program in "${programs[@]}"; do
        command_of "$program" 0
        printf ',"%s": %s\n' "$program" "$("${command[@]}" --print-config)"
    done
    echo '}'
}

check_options() { # each program checks its own, before anything is started
    local program code
    for program in "${programs[@]}"; do
        command_of "$program" 0
        "${command[@]}" --print-config >/dev/null || { code=$? && finish "$code"; }
    done
}

# ---- processes -----------------------------------------------------------------------------------

declare -A running=() # pid → name
failed=()             # "name code", as they came
trainers_left=0
guard_pid=''

log_of() { # NAME: trainer[1] → …/trainer.1.log
    local file=${1/\[/.}
    case $1 in
    timer) echo /dev/null ;;
    # A progress line is drawn on a terminal only: these two may have it.
    fetch | aggregator) [ -t 2 ] && echo /dev/stderr || echo "$run/$file.log" ;;
    *) echo "$run/${file/\]/}.log" ;;
    esac
}

start() { # NAME COMMAND…: in a session of its own, so that all it starts can be ended with it
    local name=$1 log
    log=$(log_of "$1")
    shift
    (echo "$BASHPID" >&"$alive" && exec setsid "$@") 2>>"$log" &
    running[$!]=$name
}

timer() { # SECONDS: supervise ends by then
    [[ " ${running[*]} " == *" timer "* ]] || start timer sleep "$1"
}

next_ended() { # sets pid and code
    for pid in "${!running[@]}"; do
        # wait -n forgets a process that ended before another one was started.
        if ! kill -0 "$pid" 2>/dev/null; then
            wait "$pid" 2>/dev/null
            code=$?
            return
        fi
    done
    wait -n -p pid "${!running[@]}" 2>/dev/null # without the shell's own word on a kill
    code=$?
}

supervise() { # until all that was started has ended, or something failed
    local pid code name
    while ((${#running[@]})); do
        next_ended
        [ -n "${pid:-}" ] || give_up "lost sight of ${running[*]}"
        name=${running[$pid]}
        unset "running[$pid]"
        echo "ended $pid" >&"$guard"
        [ "$name" != timer ] || break
        if ((code != 0)); then
            failed+=("$name $code")
            timer 0.5 # for those who know more about the cause
        elif [[ $name == trainer* ]] && ((--trainers_left == 0)); then
            timer 5
        fi
        [[ ${running[*]} != timer ]] || break
    done
    ((${#failed[@]} == 0)) || blame
    for pid in "${!running[@]}"; do
        [ "${running[$pid]}" = timer ] || give_up "${running[$pid]} did not end after the last trainer"
    done
    running=()
}

# A process that was killed is the cause, whatever else failed; then one that found input or result
# wrong; 111 may be the echo of another's end.
blame() {
    local one best='' rank best_rank=9 name code log cause=''
    for one in "${failed[@]}"; do
        code=${one#* }
        rank=$((code > 128 ? 0 : code == 111 ? 2 : 1))
        if ((rank < best_rank)); then best=$one best_rank=$rank; fi
    done
    name=${best% *} code=${best#* }
    log=$(log_of "$name")
    if ((code > 128)); then
        say "$name was killed by signal $((code - 128)) ($(kill -l "$code"))"
        finish 111
    fi
    # On a terminal its error is above already.
    [ "$log" = /dev/stderr ] || cause=$(tail -n 1 "$log")
    cause=${cause#"$name: "}
    say "$name failed with $code${cause:+: $cause}"
    finish "$code"
}

finish() { # CODE: lets the guard end and remove what is left, and waits for it
    trap '' INT TERM HUP
    if [ -n "$guard_pid" ]; then
        [ -z "${alive:-}" ] || exec {alive}>&-
        exec {guard}>&-
        wait "$guard_pid"
    fi
    exit "$1"
}

open_guard() {
    coproc GUARD { exec setsid "$jobs/guard.sh" "$bin/prep" "$$"; }
    # shellcheck disable=SC2153 # coproc sets it
    guard_pid=$GUARD_PID guard=${GUARD[1]}
    read -r folder <&"${GUARD[0]}" || give_up "cannot make a private folder under ${XDG_RUNTIME_DIR:-/tmp}"
    exec {alive}>"$folder/alive"
    [[ ! -v given[store-dir] ]] || echo "store-dir ${given[store-dir]}" >&"$guard"
    [[ ! -v given[keep-store] ]] || echo keep-store >&"$guard"
}

# ---- the run -------------------------------------------------------------------------------------

command_line=$(printf '%q ' "$0" "$@")
for argument; do
    if [[ $argument == --help || $argument == -h ]]; then echo "$usage" && exit 0; fi
done
ask_programs
take_options "command line" "$@"
[[ ! -v given[recipe] ]] || take_recipe "${given[recipe]}"
for name in ranks-per-node num-gpus num-nodes master-port global-batch-size; do whole "$name"; done
exclude data dataset
exclude ranks-per-node num-gpus
exclude rank node-id
exclude batch-size global-batch-size
derive

if ((nodes == 1)) && [ -z "${DDPIPE_RUN_KEY:-}" ]; then
    DDPIPE_RUN_KEY=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')
    export DDPIPE_RUN_KEY # nobody else on this node joins
fi

trap 'finish 130' INT
trap 'finish 143' TERM
trap 'finish 129' HUP
open_guard
data=${given[data]:-?} store='?' run=${given[run-dir]:-.}
check_options
make_run_dir

if [[ ! -v given[data] && ! -v given[synthetic] ]]; then
    command_of fetch
    start fetch "${command[@]}" >"$folder/data"
    supervise
    data=$(<"$folder/data")
fi
if [[ ! -v given[synthetic] ]]; then
    command_of prep
    start prep "${command[@]}" >"$folder/store"
    supervise
    store=$(<"$folder/store")
fi
print_config >"$run/config.json" || give_up "cannot write $run/config.json"

trainers_left=$local_world
if ((node == 0)); then
    command_of aggregator
    start aggregator "${command[@]}"
fi
for ((rank = node * local_world; rank < (node + 1) * local_world; rank++)); do
    if [[ ! -v given[synthetic] ]]; then
        command_of loader $((rank - node * local_world))
        start "loader[$rank]" "${command[@]}" >/dev/null
    fi
    command_of trainer $((rank - node * local_world))
    start "trainer[$rank]" "${command[@]}" >/dev/null
done
supervise
say "results are in $run"
finish 0
