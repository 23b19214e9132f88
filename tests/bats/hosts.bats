#!/usr/bin/env bats
# shellcheck disable=SC1091,SC2030,SC2031 # sourced by their place here; each test is a subshell
# Two machines, each with a network, a hostname, a /dev/shm and processes of its own, train together:
# what they reach, and how each of them ends when something is wrong.
# The machines share a file system, so the run's folder of node 1 is in that of node 0.

setup_file() {
    . "$BATS_TEST_DIRNAME/../hosts.sh"
    why=$(hosts_missing)
    [ -z "$why" ] || skip "$why"
    export BIN=${BIN:-$BATS_TEST_DIRNAME/../../bin}
    export DATA
    DATA=$("$BIN/fetch" 3>&-)
    hosts_up node1 node2
}

teardown_file() {
    . "$BATS_TEST_DIRNAME/../hosts.sh"
    [ -z "${hosts_folder:-}" ] || hosts_down
}

setup() {
    . "$BATS_TEST_DIRNAME/../hosts.sh"
    cd "$BATS_TEST_TMPDIR" || exit
    export DDPIPE_RUN_KEY=$BATS_TEST_NAME
    pipeline=$BATS_TEST_DIRNAME/../../jobs/run_pipeline.sh
    piece=(--data "$DATA" --limit-train 256 --limit-val 101 --batch-size 32 --join-timeout 3)
    first=() other=() world1=2 world2=2
    small=("${piece[@]}" --model speednet --widths "8,8,8" --epochs 1)
}

# Processes and stores of a machine, but those that were there before anything ran.
left_on() { # NAME
    on "$1" sh -c 'ls /dev/shm; ps -eo args' | grep -E 'ddpipe|/bin/(trainer|loader|prep|aggregator) ' || true
}

both_clean() { [ -z "$(left_on node1)$(left_on node2)" ]; }

# Starts both nodes with OPTION… each; sets code1, code2 and seconds.
train() {
    local began=$SECONDS one two
    on node1 "$pipeline" --num-nodes 2 --node-id 0 --master-addr 10.77.0.1 --run-dir run "$@" >out1 2>err1 3>&- &
    one=$!
    on node2 "$pipeline" --num-nodes 2 --node-id 1 --master-addr 10.77.0.1 --run-dir run "$@" >out2 2>err2 3>&- &
    two=$!
    code1=0 code2=0
    wait "$one" || code1=$?
    wait "$two" || code2=$?
    seconds=$((SECONDS - began))
}

show() { tail -n 5 err1 err2; echo "codes $code1 $code2, $seconds s"; }

# Proves the whole of it: each strategy trains on both machines, all end in the same bits (two ranks add
# up in one order), the replicas are equal after each epoch, every validation image counts once.
@test "two machines train VGG11 with each strategy, to the same weights" {
    local sync
    for sync in ddp allreduce gather-scatter; do
        rm -rf run
        train "${piece[@]}" --model vgg11 --epochs 2 --lr 0.02 --seed 5 --sync "$sync"
        [ "$code1 $code2" = "0 0" ] || { show && false; }
        [ "$(grep -c '^Epoch' out1)" -eq 2 ]
        [ ! -s out2 ]
        grep -o 'replicas equal, digest.*' run/trainer.0.log >"digests.$sync"
        [ "$(wc -l <"digests.$sync")" -eq 2 ]
        grep -o 'replicas equal, digest.*' run/node.1/trainer.1.log | cmp - "digests.$sync"
        [ "$(grep -c '"kind":"epoch".*"val_count":101,' run/metrics.jsonl)" -eq 2 ]
        mv run/model.safetensors "$sync.safetensors"
        both_clean
    done
    cmp ddp.safetensors allreduce.safetensors
    cmp ddp.safetensors gather-scatter.safetensors
    cmp digests.ddp digests.gather-scatter
}

# Proves the other style of command line, and that torchrun's variables say the same.
@test "one rank a node, by --rank or by torchrun's variables" {
    on node1 "$pipeline" --master-ip 10.77.0.1 --num-nodes 2 --rank 0 --run-dir run "${small[@]}" >out1 2>err1 3>&- &
    one=$!
    on node2 env RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 \
        "$pipeline" --run-dir run "${small[@]}" >out2 2>err2 3>&-
    wait "$one"
    grep -q '^Epoch =  1' out1
    both_clean
}

# Trainers alone, on made-up images: rank 0 on node1, rank 1 on node2, each with the OPTION… of all and
# those in first or other; world sizes in world1 and world2. Sets code1, code2 and tenths, the time that the slower took.
ranks() {
    local began=${EPOCHREALTIME/./} pid trainer=("$BIN/trainer" --synthetic --model speednet --widths "8,8,8"
        --epochs 1 --local-world-size 1 --join-timeout 2)
    [[ $* == *--master-addr* ]] || trainer+=(--master-addr 10.77.0.1)
    on node1 "${trainer[@]}" --rank 0 "$@" "${first[@]}" --world-size "$world1" >out1 2>err1 3>&- &
    pid=$!
    code1=0 code2=0
    on node2 "${trainer[@]}" --rank 1 "$@" "${other[@]}" --world-size "$world2" >out2 2>err2 3>&- || code2=$?
    wait "$pid" || code1=$?
    tenths=$(((${EPOCHREALTIME/./} - began) / 100000))
}

# What both ranks end with and say, within the join timeout (2 s) and 1 s.
fault() { # CODE1 CODE2 WORD1 WORD2
    echo "codes $code1 $code2 after $tenths tenths of a second: $(tail -n 3 err1 err2)"
    [ "$code1 $code2" = "$1 $2" ]
    grep -q -- "$3" err1
    grep -q -- "$4" err2
    ((tenths <= 30))
}

@test "a learning rate that differs is named on every rank, with both values" {
    first=(--lr 0.1) other=(--lr 0.2)
    ranks
    fault 100 100 'lr differs: rank 0 has 0.1, rank 1 has 0.2' 'lr differs: rank 0 has 0.1, rank 1 has 0.2'
}

@test "another world size is named on every rank" {
    world2=3
    ranks
    fault 100 100 'world size 3, rank 0 with 2' 'world size 3, rank 0 with 2'
}

@test "a missing rank is named on every rank" {
    world1=3 world2=3
    ranks
    fault 111 111 'waiting at 10.77.0.1:29500 for rank 2 of 3' 'for rank 2 of 3'
}

@test "a port in use is named" {
    on node1 python3 -m http.server 29500 >/dev/null 2>&1 3>&- &
    hosts_wait "the other server" on node1 bash -c 'exec 9<>/dev/tcp/10.77.0.1/29500' 2>/dev/null
    ranks
    on node1 pkill -f http.server
    fault 111 111 'tcp://10.77.0.1:29500: the port is in use' "is the port another"
}

@test "a master that cannot be reached, is not there or has no address is told apart" {
    ranks --master-addr 10.77.0.9
    fault 100 111 '10.77.0.9, which is no address of this host' 'that host cannot be reached from here'
    ranks --master-addr 10.77.0.2 # where nothing listens
    fault 100 111 '10.77.0.2, which is no address of this host' 'nothing listens there'
    ranks --master-addr no.such.host
    fault 100 100 'no.such.host' 'no.such.host'
}

@test "an address or interface that other machines cannot reach is refused" {
    ranks --master-addr 127.0.0.1
    fault 100 100 '127.0.0.1 is 127.0.0.1 here, which no other node can reach' 'no other node can reach'
    ranks --interface lo
    fault 100 100 '--interface lo is 127.0.0.1' '--interface lo is 127.0.0.1'
    ranks --interface eth7
    fault 100 100 '--interface eth7: no interface' 'eth0 10.77.0.2'
}

@test "a stranger without the run's key is not let in" {
    on node1 "$pipeline" --num-nodes 2 --node-id 0 --master-addr 10.77.0.1 --run-dir run "${small[@]}" >out1 2>err1 3>&- &
    one=$!
    run on node2 env DDPIPE_RUN_KEY=another "$pipeline" --num-nodes 2 --node-id 1 --master-addr 10.77.0.1 --run-dir run "${small[@]}" 3>&-
    [ "$status" -eq 111 ]
    [[ $output == *"the run's key another"* ]]
    code1=0
    wait "$one" || code1=$?
    [ "$code1" -eq 111 ]
    grep -q "without the run's key" err1
    both_clean
}

lasting() { # a run in its first epochs when this returns
    lasting=("${piece[@]}" --model speednet --widths "8,8,8" --epochs 100000 --target-accuracy 0 --comm-timeout 4)
    on node1 "$pipeline" --num-nodes 2 --node-id 0 --master-addr 10.77.0.1 --run-dir run "${lasting[@]}" >out1 2>err1 3>&- &
    one=$!
    on node2 "$pipeline" --num-nodes 2 --node-id 1 --master-addr 10.77.0.1 --run-dir run "${lasting[@]}" >out2 2>err2 3>&- &
    two=$!
    hosts_wait "the first epoch" grep -q '^Epoch' out1
}

both_end() { # sets code1, code2 and seconds
    local began=$SECONDS
    code1=0 code2=0
    wait "$one" || code1=$?
    wait "$two" || code2=$?
    seconds=$((SECONDS - began))
}

# Proves that a network that is cut, which no socket hears of, ends both sides by the deadline.
@test "a cut network ends both machines by the communication timeout" {
    lasting
    hosts_cut node2
    both_end
    hosts_mend node2
    [ "$code1 $code2" = "111 111" ] || { show && false; }
    ((seconds <= 14)) || { show && false; }
    both_clean
}

# Last: it costs a machine.
@test "a machine that dies takes the run along, and leaves nothing on the other" {
    lasting
    hosts_kill node2
    both_end
    [ "$code1" -eq 111 ] || { show && false; }
    ((seconds <= 14)) || { show && false; }
    [ -z "$(left_on node1)" ]
}
