# shellcheck shell=bash disable=SC2034 # who loads it uses them
# setup.bash: what the bats files of the stand-in share: a folder of programs whose trainer-cuda is the
# stand-in's, and options of short runs.

setup_file() {
    real=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    export BIN=$BATS_FILE_TMPDIR/bin DATA
    DATA=$("$real/fetch" 3>&-)
    mkdir "$BIN"
    for program in fetch prep loader trainer aggregator; do ln -s "$(realpath "$real/$program")" "$BIN/"; done
    ln -s "$(realpath "${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/standin/trainer-cuda")" "$BIN/"
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit
    export XDG_RUNTIME_DIR=$BATS_TEST_TMPDIR XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache
    export DDPIPE_STANDIN_LEAKS=1 DDPIPE_STANDIN_GPUS=1 OMP_NUM_THREADS=1
    pipeline=$BATS_TEST_DIRNAME/../../jobs/run_pipeline.sh
    piece=(--data "$DATA" --batch-size 8 --epochs 2 --target-accuracy 0 --seed 3)
    # Six steps: one by its calls, one recorded, four run again.
    tiny=(--synthetic --model speednet --widths "8,16,16" --batch-size 4 --synthetic-steps 6
        --target-accuracy 0)
}
