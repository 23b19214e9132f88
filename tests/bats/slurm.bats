#!/usr/bin/env bats
# shellcheck disable=SC1091,SC2030,SC2031 # sourced by their place here; each test is a subshell
# The batch scripts under a real Slurm of two nodes, each a machine of its own (tests/hosts.sh).

setup_file() {
    . "$BATS_TEST_DIRNAME/../hosts.sh"
    . "$BATS_TEST_DIRNAME/../slurm.sh"
    why=$(slurm_missing)
    [ -z "$why" ] || skip "$why"
    export BIN=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    export DATA
    DATA=$("$BIN/fetch" 3>&-)
    slurm_up
}

teardown_file() {
    . "$BATS_TEST_DIRNAME/../hosts.sh"
    . "$BATS_TEST_DIRNAME/../slurm.sh"
    [ -z "${slurm_folder:-}" ] || slurm_down
}

setup() {
    . "$BATS_TEST_DIRNAME/../hosts.sh"
    . "$BATS_TEST_DIRNAME/../slurm.sh"
    # The folder that jobs are submitted from: a checkout, but with runs/ of its own.
    cd "$BATS_TEST_TMPDIR" || exit
    ln -s "$(readlink -f "$BATS_TEST_DIRNAME/../../jobs")" jobs
    piece=(--data "$DATA" --limit-train 256 --limit-val 101 --batch-size 32)
    small=("${piece[@]}" --model speednet --widths "8,8,8" --target-accuracy 0)
}

submit() { # SCRIPT OPTION…: sets job
    job=$(slurm sbatch --parsable --output=out --error=err "$@")
}

state_is() { [ "$(slurm scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')" = "$1" ]; }
ended() { state_is COMPLETED || state_is FAILED || state_is CANCELLED; }

seconds_later() { ((EPOCHSECONDS > cleaned + 1)); }

# Left to itself Slurm waits two minutes from when the last of the first start is gone.
begins_anew() {
    slurm scontrol update jobid="$job" starttime=now 2>/dev/null
    test -e "runs/slurm-$job.1/config.json"
}
waits() { slurm scontrol show job "$job" | grep -q 'JobState=PENDING Reason=BeginTime'; }

both_clean() {
    local name
    for name in node1 node2; do
        ! on "$name" sh -c 'ls /dev/shm; ps -eo args' | grep -qE 'ddpipe\.|bin/(trainer|loader|prep|aggregator) ' || return 1
    done
}

@test "sbatch trains VGG11 on two nodes with each strategy, to the same weights" {
    local sync
    for sync in ddp allreduce gather-scatter; do
        rm -f out err
        submit jobs/slurm_cpu.sbatch "${piece[@]}" --model vgg11 --epochs 2 --lr 0.02 --seed 5 --sync "$sync"
        hosts_wait "job $job" ended
        state_is COMPLETED || { cat out err && false; }
        [ "$(grep -c '^Epoch' out)" -eq 2 ]
        run=runs/slurm-$job.0
        grep -o 'replicas equal, digest.*' "$run/trainer.0.log" >digests
        [ "$(wc -l <digests)" -eq 2 ]
        grep -o 'replicas equal, digest.*' "$run/node.1/trainer.1.log" | cmp - digests
        [ "$(grep -c '"kind":"epoch".*"val_count":101,' "$run/metrics.jsonl")" -eq 2 ]
        mv "$run/model.safetensors" "$sync.safetensors"
        hosts_wait "clean nodes" both_clean
    done
    cmp ddp.safetensors allreduce.safetensors
    cmp ddp.safetensors gather-scatter.safetensors
}

# Proves that a job of several ranks a node takes its numbers from the step, not from the job.
@test "two nodes of two ranks each" {
    submit jobs/slurm_cpu.sbatch "${small[@]}" --epochs 1 --ranks-per-node 2
    hosts_wait "job $job" ended
    state_is COMPLETED || { cat out err && false; }
    [ "$(grep -c '"kind":"rank_epoch"' "runs/slurm-$job.0/metrics.jsonl")" -eq 4 ]
    [ -e "runs/slurm-$job.0/node.1/trainer.3.log" ]
}

# Proves that a job that Slurm begins anew finds its data and starts clean.
@test "a requeued job begins anew and finishes" {
    submit jobs/slurm_cpu.sbatch "${small[@]}" --epochs 100
    hosts_wait "its first epoch" grep -qs '^Epoch =  1:' out
    slurm scontrol requeue "$job"
    hosts_wait "the requeued job" waits
    hosts_wait "clean nodes" both_clean
    # A node refuses what was given out in the second in which it gave the job up, or before.
    cleaned=$EPOCHSECONDS
    hosts_wait "the second after the next" seconds_later
    hosts_wait "its second start" begins_anew
    hosts_wait "job $job" ended
    state_is COMPLETED || { cat out err && false; }
    [ "$(grep -c '"kind":"epoch"' "runs/slurm-$job.1/metrics.jsonl")" -eq 100 ]
    [ "$(grep -c '"kind":"epoch"' "runs/slurm-$job.0/metrics.jsonl")" -lt 100 ]
    hosts_wait "clean nodes" both_clean
}

@test "a job that cannot work fails with the code and the line" {
    submit jobs/slurm_cpu.sbatch "${small[@]}" --learning-rat 1
    hosts_wait "job $job" ended
    state_is FAILED
    slurm scontrol show job "$job" | grep -q 'ExitCode=100:0' || { slurm scontrol show job "$job" && cat err && false; }
    grep -q -- '--learning-rat' err
}

@test "scancel leaves nothing" {
    submit jobs/slurm_cpu.sbatch "${small[@]}" --epochs 100000
    hosts_wait "its first epoch" grep -qs '^Epoch =  1:' out
    slurm scancel "$job"
    hosts_wait "job $job" ended
    state_is CANCELLED
    hosts_wait "clean nodes" both_clean
}

# Programs, without trainer-cuda or with that of tests/standin.
own_programs() {
    mkdir bin
    for program in fetch prep loader trainer aggregator; do ln -s "$(realpath "$BIN/$program")" bin/; done
    export BIN=$PWD/bin
}

@test "the GPU script without trainer-cuda says that there is none" {
    own_programs
    submit jobs/slurm_gpu.sbatch "${small[@]}" --epochs 1
    hosts_wait "job $job" ended
    state_is FAILED
    [ "$(grep -c 'there is no .*trainer-cuda' err)" -eq 1 ]
}

# The GPUs are Slurm's, and nobody else's: tests/standin computes on the CPU, of one host.
@test "the GPU script trains on two GPUs" {
    own_programs
    ln -s "$(realpath "${TESTBIN:-$BATS_TEST_DIRNAME/../../build/release/tests}/standin/trainer-cuda")" bin/
    export DDPIPE_STANDIN_GPUS=2
    submit jobs/slurm_gpu.sbatch --data "$DATA" --limit-train 64 --limit-val 21 --batch-size 8 --model speednet \
        --widths "8,8,8" --target-accuracy 0 --epochs 2
    hosts_wait "job $job" ended
    state_is COMPLETED || { cat out err && false; }
    [ "$(grep -c '^Epoch = ' out)" -eq 2 ]
    [ "$(grep -c 'rank_epoch' "runs/slurm-$job.0/metrics.jsonl")" -eq 4 ]
}
