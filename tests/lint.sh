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
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do [ ! -e "$f" ] || echo "$f"; done | sort -u
}

scripts() {
    files | while read -r f; do
        case $f in
        *.bats) echo "$f" ;;
        *) head -c 64 "$f" | head -1 | grep -aqE '^#!.*\bbash$|^# shellcheck shell=bash' && echo "$f" ;;
        esac
    done
}

format() {
    local f
    for f in $(files '*.c' '*.h' '*.cc' '*.cu'); do
        clang-format --dry-run -Werror "$f" >/dev/null 2>&1 || echo "$f: make format"
    done
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
        for object in "$build/$folder"/*.c.o "$build/$folder"/*.cc.o; do
            file=${object#"$build/"} file=${file%.o}
            # An object may outlive its source.
            if [ ! -e "$object" ] || [ ! -e "$file" ]; then continue; fi
            module=$(basename "${file%.*}")
            nm --defined-only --extern-only "$object" | while read -r _ kind name; do
                # Two underscores: the compiler's own, in a build with a sanitizer.
                [[ $kind == [TDBRC] && $name != __* ]] || continue
                case $file:$name in
                "$folder/$folder.c:main" | lib/log.c:fail | lib/pack.c:unpack_*) continue ;;
                esac
                allowed "$folder" "$module" "$name" || echo "$file: $name"
            done
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
    local f lines
    for f in $(files '*.c' '*.h' '*.cc' '*.cu' '*.sh' '*.bats' '*.py' Makefile); do
        lines=$(wc -l <"$f")
        ((lines <= 450)) || echo "$f: $lines lines, at most 450"
    done
}

opening_comment() {
    local f
    for f in $(files '*.c' '*.h' '*.cc' '*.cu'); do
        head -c 3 "$f" | grep -qE '^/[*/]' || echo "$f: does not open with what it does"
    done
}

rule format "sources are formatted"
rule includes "programs include lib/ and their own folder only"
rule symbols "external names begin with their module's"
rule shell_check "scripts pass shellcheck"
rule too_long "no file is longer than 450 lines"
rule opening_comment "sources open with a comment"
echo "1..$number"
exit "$broken"
