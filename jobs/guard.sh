#!/usr/bin/env bash
# guard.sh PREP OWNER: cleans up after run_pipeline.sh, however that ends, kill -9 included.
#
# Its input is a pipe that only the script writes to, so end of input is the script's end. Until then
# it reads words of the script:
#     ended PID        this process was waited for
#     store-dir DIR    where prep makes the store
#     keep-store       leave the store where it is
# It makes the run's private folder and prints its path; in it
#     alive    a fifo; every process of the run writes its PID there and keeps it open, so that
#              end of file means that none is left
#     store    prep's output, the path of the store
set -u
trap '' INT TERM HUP
prep=$1 owner=$2
declare -A known=() ended=()
store_dir=/dev/shm keep=

folder=$(mktemp -d "${XDG_RUNTIME_DIR:-/tmp}/ddpipe.XXXXXX") && mkfifo "$folder/alive" || exit 111
# Opened for both first: opening for reading alone would wait for a writer.
exec {both}<>"$folder/alive"
exec {alive}<"$folder/alive" {both}>&-
echo "$folder"
exec >&2

while read -r word value; do
    case $word in
    ended) ended[$value]=1 ;;
    store-dir) store_dir=$value ;;
    keep-store) keep=1 ;;
    esac
done

gone() { # SECONDS: are all processes gone by then?
    local pid status
    while :; do
        read -r -t "$1" -u "$alive" pid
        status=$?
        ((status == 0)) || break
        known[$pid]=1
    done
    ((status <= 128)) # above: the time is over
}

signal() { # NAME: to every process, and to what its group still holds
    local pid
    for pid in "${!known[@]}"; do
        # The number of one that was waited for may by now be a stranger's; while a group lives, the
        # number is not given away.
        if [[ ! -v ended[$pid] ]]; then
            kill -s "$1" -- "$pid" "-$pid"
        elif [[ ! -e /proc/$pid ]]; then
            kill -s "$1" -- "-$pid"
        fi
    done 2>/dev/null
}

if ! gone 0.01; then
    signal TERM
    if ! gone 5; then
        signal KILL
        gone 2 || echo "guard: some processes cannot be ended: ${!known[*]}"
    fi
fi

store=
[ ! -s "$folder/store" ] || store=$(<"$folder/store")
if [ -z "$store" ]; then
    "$prep" --sweep --store-dir "$store_dir" # prep may have been killed
elif [ -z "$keep" ]; then
    "$prep" --remove "$store" --owner-pid "$owner"
fi
rm -rf "$folder"
