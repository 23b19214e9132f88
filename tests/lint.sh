#!/usr/bin/env bash
# lint.sh: holds the tree against its rules; prints TAP, one test a rule, and what breaks it.
# Needs the objects of a build (B, default build/release) for the names of symbols.
# shellcheck disable=SC2317 # rule() calls the functions by their names
set -uo pipefail
cd "$(dirname "$0")/.." || exit 111
build=${B:-build/release}
programs=(fetch prep loader trainer aggregator)
number=0 broken=0

rule() { # FUNCTION NAME: the function prints what breaks the rule, one a line
    local found
    found=$("$1")
    shift
    number=$((number + 1))
    if [ -z "$found" ]; then
        echo "ok $number $1"
    else
        echo "not ok $number $1"
        while IFS= read -r line; do echo "# $line"; done <<<"$found"
        broken=1
    fi
}

files() { # GLOB…: those of the tree, committed or not
    git ls-files --cached --others --exclude-standard --deduplicate -- "$@" | while read -r f; do
        [ ! -e "$f" ] || echo "$f"
    done
}

sources() { files '*.c' '*.h' '*.cc' '*.cu'; }

scripts() {
    files | xargs -r awk 'FNR == 1 && (/^#!.*[ \/](ba)?sh$/ || /^#!.*bats$/ || /^# shellcheck shell=/) { print FILENAME } FNR == 1 { nextfile }'
}

format() {
    sources | xargs -r clang-format --dry-run -Werror 2>&1 | sed -n 's/^\([^ :]*\):[0-9].*/\1: make format/p' | sort -u
}

# A program includes lib/ and its own folder; lib/ includes lib/ alone.
includes() {
    local folder
    for folder in lib "${programs[@]}"; do
        files "$folder/*.[ch]" "$folder/*.cc" "$folder/*.cu" | xargs -r grep -HnE '^ *# *include *"' |
            grep -vE "\"(lib|$folder)/"
    done
}

# Every external name begins with the name of its file, or of a header of its folder (whose contract
# the file fulfils). fail() is clearly said in log.h, and pack.h has unpack_. main is main.
symbols() {
    local folder object file module kind name
    [ -n "$(compgen -G "$build/lib/*.c.o")" ] || echo "there are no objects in $build: run make first"
    for folder in lib "${programs[@]}"; do
        # Two underscores: the compiler's own, in a build with a sanitizer.
        nm --print-file-name --defined-only --extern-only "$build/$folder"/*.c*.o 2>/dev/null |
            sed -n 's/^\(.*\)\.o:[^ ]* \([TDBRC]\) \([^_].*\|_[^_].*\)/\1 \2 \3/p' | while read -r object kind name; do
            file=${object#"$build/"}
            [ -e "$file" ] || continue # an object may outlive its source
            module=${file##*/} module=${module%.*}
            case $file:$name in
            "$folder/$folder.c:main" | lib/log.c:fail | lib/pack.c:unpack_*) continue ;;
            *:_Z*_GLOBAL__N_*) continue ;; # nvcc's names for what C++ keeps in the file
            esac
            allowed "$folder" "$module" "$name" || echo "$file: $name ($kind)"
        done
    done
}

allowed() { # FOLDER MODULE NAME
    local prefix=$3
    while :; do
        if [[ $prefix == "$2" || -e $1/$prefix.h ]]; then return 0; fi
        [[ $prefix == *_* ]] || return 1
        prefix=${prefix%_*}
    done
}

shell_check() {
    scripts | xargs -r shellcheck -x -f gcc
}

too_long() {
    { sources && files '*.sh' '*.bats' '*.py' Makefile; } |
        xargs -r awk 'FNR == 451 { print FILENAME ": over 450 lines"; nextfile }'
}

opening_comment() {
    sources | xargs -r awk 'FNR == 1 && !/^\/[*\/]/ { print FILENAME ": does not open with what it does" } { nextfile }'
}

rule format "sources are formatted"
rule includes "programs include lib/ and their own folder only"
rule symbols "external names begin with their module's"
rule shell_check "scripts pass shellcheck"
rule too_long "no file is longer than 450 lines"
rule opening_comment "sources open with a comment"
echo "1..$number"
exit "$broken"
