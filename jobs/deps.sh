#!/usr/bin/env bash
# deps.sh check|install SET…: what ddpipe needs, for which purpose, and the Debian package that has it.
# check names what is missing and exits 1; install adds it with apt (by sudo where not root).
# A need is a header ("zmq.h"), a command ("bats") or a file (begins with "/"). Sets: build run test.
set -euo pipefail

table='
build gcc                          gcc                 compiling C
build g++                          g++                 compiling the Gloo shim
build stdlib.h                     libc6-dev           the C library
build zmq.h                        libzmq3-dev         messages between the programs
build png.h                        libpng-dev          decoding PNG
build zlib.h                       zlib1g-dev          decoding IDX
build curl/curl.h                  libcurl4-openssl-dev downloading
build archive.h                    libarchive-dev      unpacking
build openssl/evp.h                libssl-dev          digests
build jansson.h                    libjansson-dev      JSON
build oneapi/dnnl/dnnl.h           libdnnl-dev         layers on CPUs
build /usr/include/gloo/context.h  libgloo-dev         collectives on CPUs
run   /etc/ssl/certs/ca-certificates.crt ca-certificates downloading over https
run   flock                        util-linux          one job per store
test  bats                         bats                tests of the programs
test  cmocka.h                     libcmocka-dev       tests of the modules
test  shellcheck                   shellcheck          lint
test  clang-format                 clang-format        lint
test  /usr/bin/python3             python3             fixtures
test  /usr/lib/python3/dist-packages/torch/__init__.py python3-torch parity with PyTorch
test  /usr/lib/python3/dist-packages/numpy/__init__.py python3-numpy parity with PyTorch
test  /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz dataset-fashion-mnist IDX on real data
test  ps                           procps              looking for processes left behind
test  ip                           iproute2            hosts in network namespaces
test  munged                       munge               a Slurm to test with
test  slurmctld                    slurmctld           a Slurm to test with
test  slurmd                       slurmd              a Slurm to test with
test  sbatch                       slurm-client        a Slurm to test with
'

has() {
    case $1 in
    /*) [ -e "$1" ] ;;
    cmocka.h) printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <cmocka.h>\n' | ${CC:-gcc} -E -xc - >/dev/null 2>&1 ;;
    *.h) printf '#include <stdio.h>\n#include <%s>\n' "$1" | ${CC:-gcc} -E -xc - >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

missing() { # prints "package purpose" for each need of the sets that is not there
    local set need package purpose
    while read -r set need package purpose; do
        [ -n "$set" ] || continue
        case " $* " in *" $set "*) has "$need" || echo "$package $purpose" ;; esac
    done <<<"$table"
}

action=${1:-}
(($# == 0)) || shift
case $action in
check)
    found=$(missing "$@")
    [ -z "$found" ] && exit 0
    while read -r package purpose; do
        echo "ddpipe needs the Debian package $package, for $purpose (make deps installs it)" >&2
    done <<<"$found"
    exit 1
    ;;
install)
    found=$(missing "$@" | cut -d' ' -f1 | sort -u)
    [ -z "$found" ] && exit 0
    if ! command -v apt-get >/dev/null; then
        echo "deps.sh: no apt-get here; install what these Debian packages hold by other means:" >&2
        missing "$@" >&2
        exit 111
    fi
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    # shellcheck disable=SC2086 # the names are words
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $found >/dev/null
    ;;
*)
    echo "usage: deps.sh check|install SET…   (sets: build run test)" >&2
    exit 100
    ;;
esac
