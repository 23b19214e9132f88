# shellcheck shell=bash
# nodes.sh: which node of how many this is, for run_pipeline.sh, which sources it.
#
# Asked in this order: the command line, in either of two styles (--num-nodes, --node-id and ranks per
# node; or --num-nodes and --rank, one rank a node); torchrun's variables, where it started this
# script once per node; those of the Slurm step that did, never those of the job around it. The first
# that says something counts; another that says something else is an error that names both.
#
# Leaves behind: nodes, node, local_world, world, master_addr, master_port ('' where one node needs
# none). The programs are told by options, so what the environment says is taken away.
# shellcheck disable=SC2154,SC2034 # given is options.sh's; the rest is run_pipeline.sh's

one() { # WHAT SOURCE=VALUE…: sets value and source to the first that has a value; the others must agree
    local what=$1 word
    shift
    value='' source=''
    for word; do
        [ -n "${word#*=}" ] || continue
        if [ -z "$value" ]; then
            source=${word%%=*} value=${word#*=}
        elif [ "${word#*=}" != "$value" ]; then
            refuse "$source=$value contradicts $word: $what"
        fi
    done
    [[ $what == host* || -z $value || $value =~ ^(0|[1-9][0-9]{0,4})$ ]] || refuse "$source=$value: a number is wanted ($what)"
}

find_nodes() {
    local value source step='' torch='' slurm_master='' slurm_port=''
    # One task per node: this script. Within a job but outside a step nothing is said.
    if [[ -n ${SLURM_STEP_NUM_TASKS:-} && ${SLURM_STEP_NUM_TASKS} == "${SLURM_STEP_NUM_NODES:-}" ]]; then
        step=yes
    elif [[ -n ${SLURM_STEP_NUM_TASKS:-} ]]; then
        refuse "this Slurm step has $SLURM_STEP_NUM_TASKS tasks on ${SLURM_STEP_NUM_NODES:-?} nodes: start one per node (--ntasks-per-node=1); --ranks-per-node says how many ranks"
    fi
    if [[ -n ${RANK:-} && -n ${WORLD_SIZE:-} ]]; then
        torch=yes
        ((${LOCAL_WORLD_SIZE:-1} == 1)) ||
            refuse "LOCAL_WORLD_SIZE=$LOCAL_WORLD_SIZE: start run_pipeline.sh once per node; --ranks-per-node says how many ranks"
    fi
    one "how many nodes" "--num-nodes=${given[num-nodes]:-}" "WORLD_SIZE=${torch:+$WORLD_SIZE}" \
        "SLURM_STEP_NUM_NODES=${step:+$SLURM_STEP_NUM_NODES}"
    nodes=${value:-1}
    ((nodes >= 1)) || refuse "$source=$value: there is at least one node"
    local nodes_source=$source
    one "which node" "--node-id=${given[node-id]:-}" "--rank=${given[rank]:-}" "RANK=${torch:+$RANK}" \
        "SLURM_NODEID=${step:+$SLURM_NODEID}"
    node=${value:-}
    if [ -z "$node" ]; then
        ((nodes == 1)) || refuse "$nodes_source=$nodes: which node is this? --node-id 0 to $((nodes - 1)) is wanted"
        node=0
    fi
    ((node < nodes)) || refuse "$source=$node: the nodes of ${nodes_source:-one node}${nodes_source:+=$nodes} are 0 to $((nodes - 1))"

    one "how many ranks a node" "--ranks-per-node=${given[ranks-per-node]:-}" "--num-gpus=${given[num-gpus]:-}"
    local_world=${value:-1}
    if [[ -v given[rank] ]] && ((local_world > 1)); then
        refuse "--rank is the style of one rank per node: with $source $local_world say --node-id"
    fi
    world=$((nodes * local_world))

    if [ -n "$step" ] && ((nodes > 1)); then
        slurm_master=$(slurm_address "$(scontrol show hostnames "${SLURM_STEP_NODELIST:-}" | head -1)")
        slurm_port=$((20000 + ${SLURM_JOB_ID:-0} % 12000))
    fi
    one "host of node 0" "--master-addr=${given[master-addr]:-}" "--master-ip=${given[master-ip]:-}" \
        "MASTER_ADDR=$( ((nodes == 1)) || echo "${MASTER_ADDR:-}")"
    # Slurm knows a host, torchrun or the user may know a better name for it.
    master_addr=${value:-$slurm_master}
    one "port of node 0" "--master-port=${given[master-port]:-}" "MASTER_PORT=$( ((nodes == 1)) || echo "${MASTER_PORT:-}")"
    master_port=${value:-$slurm_port}
    if ((nodes == 1)); then
        # What the environment says of a master belongs to something else.
        master_addr=${master_addr:-127.0.0.1} master_port=${master_port:-$(free_port)}
    elif [ -z "$master_addr" ]; then
        refuse "$nodes_source=$nodes: where is node 0? --master-addr HOST (or MASTER_ADDR) is wanted"
    fi
    master_port=${master_port:-29500}
    ((master_port >= 1 && master_port < 65535)) || refuse "$source=$value: 1 to 65534 is wanted, the aggregator has the port after it"
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT SLURM_PROCID SLURM_LOCALID \
        SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NUM_NODES
}

slurm_address() { # NODE: what the cluster calls it by, which need not be its name
    local address
    address=$(scontrol --oneliner show node "$1" | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
    echo "${address:-$1}"
}

free_port() { # below the range that the kernel hands out by itself
    local port
    while :; do
        port=$((20000 + RANDOM % 12768))
        grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$port") [0-9A-F:]* 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null || break
    done
    echo "$port"
}
