#!/usr/bin/env bats
# prep: data sets become stores with exactly these pixels, or are refused by name and leave nothing.
# Stores go to a folder of the test's own in /dev/shm; pixels are compared as bytes of the store,
# whose train images begin at offset 8192.
#
# shellcheck disable=SC2030,SC2031,SC2154  # bats runs each test in a subshell, and sets stderr

bats_require_minimum_version 1.5.0

setup() {
    BIN=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    SHM=$(mktemp -d /dev/shm/ddpipe-test.XXXXXX)
    data=$BATS_TEST_TMPDIR/data
}

teardown() {
    [ ! -d "$SHM/small" ] || umount "$SHM/small" 2>/dev/null || true
    rm -rf "$SHM"
}

images() { /usr/bin/python3 "$BATS_TEST_DIRNAME/../fixtures/images.py" "$@"; }
prep() { "$BIN/prep" --store-dir "$SHM" --owner-pid $$ "$@"; }
info() { "$BIN/prep" --info "$1" | sed -n "s/^$2 //p"; }

# The command fails with this code, says each of the words on stderr, prints no store and leaves
# none.
refuses() {
    local code=$1
    shift
    run --separate-stderr prep --data "$data" "${options[@]}"
    echo "status $status, stderr: $stderr"
    [ "$status" -eq "$code" ]
    [ -z "$output" ]
    local word
    for word; do
        [[ "$stderr" == *"$word"* ]]
    done
    [ -z "$(ls -A "$SHM")" ]
}

# The same 10,000-fold: real CIFAR-10 as whatever fetch gets it.
real() { "$BIN/fetch"; }

@test "every kind of PNG gives exactly its pixels: grey, palette, 16 bit, alpha, tRNS, interlaced" {
    images zoo "$data" "$BATS_TEST_TMPDIR/expected"
    store=$(prep --data "$data")
    [ "$(info "$store" n_train)" -eq 52 ]
    size=$(stat -c %s "$BATS_TEST_TMPDIR/expected")
    [ "$size" -eq $((52 * 7 * 5 * 3)) ]
    tail -c +8193 "$store" | head -c "$size" | cmp - "$BATS_TEST_TMPDIR/expected"
}

@test "the number of threads changes nothing" {
    images folders "$data"
    one=$(prep --data "$data" --threads 1)
    cp "$one" "$BATS_TEST_TMPDIR/one"
    "$BIN/prep" --remove "$one"
    many=$(prep --data "$data" --threads 7)
    [ "$one" = "$many" ]
    cmp "$many" "$BATS_TEST_TMPDIR/one"
}

@test "PNG folders: classes are the sorted folder names, in both splits; val serves as test" {
    images folders "$data"
    store=$(prep --data "$data")
    [ "$(info "$store" class)" = $'0 cat\n1 dog' ]
    [ "$(info "$store" count)" = $'0 3 2\n1 3 2' ]
    mv "$data/test" "$data/val"
    [ "$(prep --data "$data")" = "$store" ]
}

@test "binary and sprites of the same images give the same store" {
    images cifar "$data" 20
    images sprites "$BATS_TEST_TMPDIR/sprites" 20
    binary=$(prep --data "$data" --any-content)
    sprites=$(prep --data "$BATS_TEST_TMPDIR/sprites" --any-content)
    [ "$binary" = "$sprites" ]
    [ "$(info "$binary" n_train) $(info "$binary" n_val)" = "100 20" ]
    [ "$(info "$binary" class | head -1)" = "0 airplane" ]
}

@test "real CIFAR-10: published digests hold, statistics are the known ones, binary form is equal" {
    data=$(real)
    store=$(prep --data "$data")
    [ "$(info "$store" n_train) $(info "$store" n_val)" = "50000 10000" ]
    [ "$(info "$store" count | sort -u -k2 | cut -d' ' -f2-)" = "5000 1000" ]
    [ "$(info "$store" mean | cut -c1-8 | paste -sd' ')" = "0 0.4913 1 0.4821 2 0.4465" ]
    [ "$(info "$store" std | cut -c1-8 | paste -sd' ')" = "0 0.2470 1 0.2434 2 0.2615" ]
    images records "$store" "$BATS_TEST_TMPDIR/binary"
    (cd "$BATS_TEST_TMPDIR/binary" && md5sum --quiet -c) <<END
5dd7e06a14cb22eb9f671a540d1b7c25  data_batch_1.bin
5ea93a67294ea407fff1d09f752e9692  data_batch_2.bin
942cd6a4bcdd0dd3c604fbe906cb4421  data_batch_3.bin
ae636b3ba5c66a11e91e8cb52e771fcb  data_batch_4.bin
53f37980c15c3d472c316c40844f3f0d  data_batch_5.bin
803d5f7f4d78ea53de84dbe85f74fb6d  test_batch.bin
END
    digest=$(info "$store" digest)
    "$BIN/prep" --remove "$store"
    store=$(prep --data "$BATS_TEST_TMPDIR/binary")
    [ "$(info "$store" digest)" = "$digest" ]
}

@test "CIFAR-10 with one changed byte is refused with both digests; --any-content takes it" {
    images cifar "$data" 20
    refuses 1 data_batch_ "is not the published CIFAR-10" --any-content
    [[ "$stderr" =~ "md5 "[0-9a-f]{32}", expected "[0-9a-f]{32} ]]
    prep --data "$data" --any-content
}

@test "IDX: Fashion-MNIST gzipped and plain give the same store" {
    source=/usr/share/datasets/fashion-mnist
    [ -d "$source" ] || skip "Debian package dataset-fashion-mnist is not installed"
    store=$(prep --data "$source")
    [ "$(info "$store" n_train) $(info "$store" n_val) $(info "$store" channels)" = "60000 10000 1" ]
    [ "$(info "$store" count | sort -u -k2 | cut -d' ' -f2-)" = "6000 1000" ]
    mkdir "$data"
    for file in "$source"/*.gz; do
        gzip -dc "$file" >"$data/$(basename "$file" .gz)"
    done
    tail -c +8193 "$store" | head -c 47040000 >"$BATS_TEST_TMPDIR/pixels"
    tail -c +17 "$data/train-images-idx3-ubyte" | cmp - "$BATS_TEST_TMPDIR/pixels"
    [ "$(prep --data "$data")" = "$store" ]
}

@test "IDX: counts, magic, length, labels are checked, each named with its file" {
    images idx "$data"
    prep --data "$data" >/dev/null
    rm "$SHM"/*
    train=$data/train-images-idx3-ubyte labels=$data/t10k-labels-idx1-ubyte
    cp -r "$data" "$BATS_TEST_TMPDIR/good"
    fresh() { rm -rf "$data" && cp -r "$BATS_TEST_TMPDIR/good" "$data"; }
    truncate -s -1 "$train" && refuses 1 "$train" "cut short"
    fresh && printf 'x' >>"$train" && refuses 1 "$train" "bytes follow"
    fresh && printf '\x0d' | dd of="$train" bs=1 seek=2 conv=notrunc status=none && refuses 1 "$train" "magic"
    fresh && printf '\x7f' | dd of="$train" bs=1 seek=4 conv=notrunc status=none && refuses 1 "$train" "header speaks of"
    fresh && printf '\x04' | dd of="$train" bs=1 seek=7 conv=notrunc status=none && refuses 1 "5 labels" "4 images"
    fresh && printf '\x02' | dd of="$labels" bs=1 seek=7 conv=notrunc status=none && refuses 1 "$labels" "2 labels" "3 images"
    fresh && printf '\x03' | dd of="$labels" bs=1 seek=9 conv=notrunc status=none && refuses 1 "$labels" "offset 9" "label 3"
    fresh && rm "$labels" && refuses 1 "$labels" "missing"
    fresh && gzip -k "$train" && refuses 1 "ambiguous"
    fresh && gzip "$labels" && truncate -s -3 "$labels.gz" && refuses 1 "$labels.gz" "cut short"
}

@test "a PNG cut short, at any chunk, is refused with its name and offset" {
    images folders "$data"
    victim=$data/train/dog/1.png
    size=$(stat -c %s "$victim")
    for cut in 0 5 20 60 $((size - 20)) $((size - 5)); do
        cp "$data/train/dog/2.png" "$victim"
        truncate -s "$cut" "$victim"
        refuses 1 "$victim" "offset"
    done
}

@test "a PNG with a wrong CRC is refused with its name and offset" {
    images folders "$data"
    victim=$data/test/cat/0.png
    # The last byte of IDAT's CRC lies 12 bytes of IEND and 1 before the end.
    printf '\x00\x00' | dd of="$victim" bs=1 seek=$(($(stat -c %s "$victim") - 14)) conv=notrunc status=none
    refuses 1 "$victim" "offset" "CRC"
}

@test "a PNG of another size is refused, and taken with --resize" {
    images folders "$data"
    images png "$data/train/cat/9.png" 9 8
    refuses 1 "$data/train/cat/9.png" "9 x 8" "expected 8 x 8"
    store=$(prep --data "$data" --resize 4x6)
    [ "$(info "$store" height) $(info "$store" width)" = "4 6" ]
}

@test "a PNG that claims 100,000 x 100,000 pixels is refused without memory for them" {
    images folders "$data"
    images huge "$data/train/dog/9.png"
    refuses 1 "$data/train/dog/9.png" "100000 x 100000"
    options=(--resize 8x8)
    refuses 1 "$data/train/dog/9.png" "100000 x 100000"
    options=()
    images huge "$data/train/cat/0.png"
    refuses 1 "$data/train/cat/0.png" "100000 x 100000"
}

@test "a class that one split lacks is refused by name, so is an empty one" {
    images folders "$data"
    mv "$data/test/dog" "$BATS_TEST_TMPDIR/dog"
    refuses 1 "$data/test/dog is missing"
    mkdir "$data/test/dog"
    refuses 1 "$data/test/dog holds no PNG"
    rmdir "$data/test/dog"
    mv "$data/train/dog" "$BATS_TEST_TMPDIR/dogs"
    mv "$BATS_TEST_TMPDIR/dog" "$data/test/dog"
    refuses 1 "$data/test/dog is a class that $data/train does not have"
}

@test "no validation split, or two, are refused" {
    images folders "$data"
    mkdir "$data/val"
    refuses 1 "both test and val"
    rm -r "$data/val" "$data/test"
    refuses 1 "neither test nor val"
}

@test "a binary file that is no whole number of records is refused with its size and remainder" {
    images cifar "$data" 3
    options=(--any-content)
    truncate -s -1 "$data/data_batch_2.bin"
    refuses 1 data_batch_2.bin 9218 "2 records" "3072 left over"
}

@test "a label out of range is refused with file, record and offset" {
    images cifar "$data" 3
    options=(--any-content)
    printf '\x0a' | dd of="$data/data_batch_3.bin" bs=1 seek=6146 conv=notrunc status=none
    refuses 1 data_batch_3.bin "record 2" "offset 6146" "label 10"
}

@test "sprites: labels that are missing, too few, no numbers or out of range are refused" {
    images sprites "$data" 2
    options=(--any-content)
    labels=$data/train_lables.json
    echo '[0,1,2]' >"$labels" && refuses 1 "$labels" "3 labels" "10 images"
    echo '[0,1,2,3,4,5,6,7,8,10]' >"$labels" && refuses 1 "$labels" "label 10"
    echo '[0,1,2,3,4,5,6,7,8,"9"]' >"$labels" && refuses 1 "$labels" "element 9"
    echo '[0,1,2' >"$labels" && refuses 1 "$labels" "offset"
    rm "$labels" && refuses 1 "$labels"
}

@test "a directory that is missing, unknown or ambiguous is refused with what was looked for" {
    refuses 1 "$data"
    mkdir "$data"
    refuses 1 "$data" ddpipe.manifest data_batch_1.bin data_batch_1.png train-images-idx3-ubyte
    touch "$data/data_batch_1.bin" "$data/train.bin"
    refuses 1 "ambiguous" data_batch_1.bin train.bin
}

@test "CIFAR-100: the fine label counts, names come from its own file" {
    mkdir "$data"
    for split in train test; do
        head -c 3072 /dev/zero | tr '\0' 'p' | { printf '\x05\x01'; cat; } >"$data/$split.bin"
    done
    printf 'apple\naquarium_fish\n' >"$data/fine_label_names.txt"
    store=$(prep --data "$data")
    [ "$(info "$store" class)" = $'0 apple\n1 aquarium_fish' ]
    [ "$(info "$store" count)" = $'0 0 0\n1 1 1' ]
}

@test "no room: refused with the bytes needed and free and --store-dir, and nothing is left" {
    [ "$(id -u)" -eq 0 ] || skip "mounting a small tmpfs takes root"
    mkdir "$SHM/small"
    mount -t tmpfs -o size=1m none "$SHM/small" || skip "this machine does not allow mounts"
    images folders "$data" 256
    run --separate-stderr "$BIN/prep" --data "$data" --store-dir "$SHM/small"
    [ "$status" -eq 111 ]
    # 10 images of 256 x 256 x 3, and 8192 bytes of header, 2 x 4096 of labels.
    [[ "$stderr" == *"$SHM/small"*1982464*1048576*--store-dir* ]]
    [ -z "$(ls -A "$SHM/small")" ]
}

@test "a store of another version is refused with both versions" {
    images folders "$data"
    store=$(prep --data "$data")
    printf '\x63' | dd of="$store" bs=1 seek=8 conv=notrunc status=none
    run --separate-stderr "$BIN/prep" --info "$store"
    [ "$status" -eq 1 ]
    [[ "$stderr" == *"$store"*"version 99"*"version 1"* ]]
}

@test "kill -9 leaves a private file that the next start sweeps, SIGTERM leaves nothing" {
    data=$(real)
    half_made() { compgen -G "$SHM/ddpipe.*.new.*" >/dev/null; }
    start() {
        "$BIN/prep" --data "$data" --store-dir "$SHM" --owner-pid $$ 3>&- &
        pid=$!
        local end=$((SECONDS + 20))
        until half_made; do [ $SECONDS -lt $end ]; done
    }
    start
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    [ "$status" -eq 143 ]
    [ -z "$(ls -A "$SHM")" ]
    start
    kill -KILL $pid
    status=0
    wait $pid || status=$?
    [ "$status" -eq 137 ]
    half_made
    images folders "$BATS_TEST_TMPDIR/other"
    store=$(prep --data "$BATS_TEST_TMPDIR/other")
    [ "$(ls -A "$SHM")" = "$(basename "$store")" ]
}

@test "a store in use is not removed; unused it is; a missing one is no error" {
    images folders "$data"
    store=$(prep --data "$data")
    flock -s "$store" "$BIN/prep" --remove "$store"
    [ -f "$store" ]
    "$BIN/prep" --remove "$store"
    [ -z "$(ls -A "$SHM")" ]
    "$BIN/prep" --remove "$store"
}

@test "a store goes with its last owner: --remove --owner-pid, or a sweep after its death" {
    images folders "$data"
    tail -f /dev/null 3>&- &
    other=$!
    store=$(prep --data "$data")
    "$BIN/prep" --data "$data" --store-dir "$SHM" --owner-pid $other
    "$BIN/prep" --remove "$store" --owner-pid $$
    [ -f "$store" ]
    kill -KILL $other
    wait $other || true
    "$BIN/prep" --sweep --store-dir "$SHM"
    [ -z "$(ls -A "$SHM")" ]
}

@test "--dump writes a PNG with a row per class" {
    images folders "$data"
    store=$(prep --data "$data")
    "$BIN/prep" --dump "$store" "$BATS_TEST_TMPDIR/sheet.png"
    # Two rows of 64 + 4 pixels and a gap of 4; read back by the program's own decoder.
    mkdir -p "$BATS_TEST_TMPDIR/sheets/train/one" "$BATS_TEST_TMPDIR/sheets/test/one"
    cp "$BATS_TEST_TMPDIR/sheet.png" "$BATS_TEST_TMPDIR/sheets/train/one"
    cp "$BATS_TEST_TMPDIR/sheet.png" "$BATS_TEST_TMPDIR/sheets/test/one"
    sheet=$(prep --data "$BATS_TEST_TMPDIR/sheets")
    [ "$(info "$sheet" height)" -eq 140 ]
    # The image of 8 x 8 is enlarged 8 times: its first pixel fills 8 x 8 from (4, margin).
    width=$(info "$sheet" width)
    margin=$((3 * 8 + 8))
    first=$(tail -c +8193 "$store" | head -c 3 | od -An -tx1)
    for at in "4 0" "11 7"; do
        read -r y x <<<"$at"
        pixel=$(tail -c +$((8193 + (y * width + margin + x) * 3)) "$sheet" | head -c 3 | od -An -tx1)
        [ "$pixel" = "$first" ]
    done
}

@test "wrong usage: none or two jobs, a bad --resize, a missing FILE.png" {
    for options in "" "--info a --data b" "--sweep --remove a" "--data . --resize 0x5" \
        "--data . --resize 32" "--data . --resize 99999x1" "--dump a" "--data . extra" "--threads -1"; do
        # shellcheck disable=SC2086
        run "$BIN/prep" $options
        [ "$status" -eq 100 ]
    done
    "$BIN/prep" --print-config | /usr/bin/python3 -c '
import json, sys
c = json.load(sys.stdin)
assert c["store-dir"] == "/dev/shm" and c["threads"] == 0'
}
