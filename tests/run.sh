#!/usr/bin/env bash
# run.sh [SUITE|FILE]…: runs the tests and counts them. Suites: unit and cuda (cmocka), bats, standin (the
# CUDA backend on the CPU), parity, gpu
# (cuDNN's plans, no GPU needed), lint; all without an argument. FILE: one bats file or one unit test
# by its path.
#
# Each file is a process with a time limit of its own. What a file leaves in shared memory or among
# the temporary files is a failure of that file. The last line is "N passed, N failed", and
# ", N skipped" where some were; the exit code is 1 on any failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 111

export CMOCKA_MESSAGE_OUTPUT=TAP
export BIN=${BIN:-$PWD/bin} TESTBIN=${TESTBIN:-$PWD/build/release/tests}
limit_seconds=${TEST_LIMIT:-300}
passed=0 failed=0 skipped=0
output=$(mktemp "${TMPDIR:-/tmp}/testrun.XXXXXX") || exit 111
trap 'rm -f "$output"' EXIT

leftovers() { # one a line
    find /dev/shm "${TMPDIR:-/tmp}" ${XDG_RUNTIME_DIR:+"$XDG_RUNTIME_DIR"} -maxdepth 1 -name 'ddpipe*' 2>/dev/null | sort -u
}

count() { # PATTERN: matching lines of the output
    grep -acE "$1" "$output"
}

# Every test file speaks TAP. A file that breaks off, or ran no test, has failed by itself.
run_file() { # NAME COMMAND…
    local name=$1 before after code ok bad skip pid
    shift
    echo "== $name"
    before=$(leftovers)
    : >"$output"
    timeout --kill-after=10 "$((limit_seconds + 5))" "$@" </dev/null >>"$output" 2>&1 &
    pid=$!
    # Of a file that hangs its processes are shown, and what they wait for: a group of its own, by timeout.
    timeout "$limit_seconds" tail --pid="$pid" --sleep-interval=0.1 -f /dev/null ||
        pgrep -d , -g "$pid" | xargs -r ps -o pid,ppid,etime,stat,wchan:20,args -p >>"$output"
    wait "$pid"
    code=$?
    # A file that passes shows its tests; one that fails shows all that it said.
    if ((code == 0)); then grep -aE '^(ok|not ok|#)' "$output"; else tail -n 200 "$output"; fi
    skip=$(count '^ok .*# *(skip|SKIP)') bad=$(count '^not ok ')
    ok=$(($(count '^ok ') - skip))
    if ((code == 124 || code == 137)); then echo "not ok: $name ran past $limit_seconds s"; fi
    if ((code != 0 && bad == 0)); then
        echo "not ok: $name ended with $code"
        bad=1
    elif ((ok + bad + skip == 0)); then
        echo "not ok: $name ran no test"
        bad=1
    fi
    after=$(comm -13 <(echo "$before") <(leftovers))
    if [ -n "$after" ]; then
        echo "not ok: $name left behind: ${after//$'\n'/ }"
        bad=$((bad + 1))
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

run_one() { # PATH
    case $1 in
    *.bats) run_file "$1" bats --tap "$1" ;;
    tests/unit/* | tests/cuda/* | tests/standin/*) run_file "$1" "$TESTBIN/$(basename "$(dirname "$1")")/$(basename "$1" .c)" ;;
    *) echo "run.sh: no suite or test \"$1\"" >&2 && exit 100 ;;
    esac
}

suite() { # NAME
    local file found=''
    for file in tests/"$1"/test_*.c tests/"$1"/*.bats; do
        if [ -e "$file" ]; then run_one "$file" && found=1; fi
    done
    [ -n "$found" ] || echo "== no tests in $1"
}

(($#)) || set -- unit cuda standin bats parity gpu lint
for wanted; do
    case $wanted in
    unit | cuda | standin | bats | parity | gpu) suite "$wanted" ;;
    lint) B=$(dirname "$TESTBIN") run_file tests/lint.sh tests/lint.sh ;;
    *) run_one "$wanted" ;;
    esac
done

summary="$passed passed, $failed failed"
((skipped == 0)) || summary+=", $skipped skipped"
echo "$summary"
((failed == 0 && passed > 0))
