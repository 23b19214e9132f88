# shellcheck shell=bash
# options.sh: the options of run_pipeline.sh, which sources it. Its own are in the table below; which
# others there are, and whose they are, the programs say themselves (PROGRAM --options).
#
# Leaves behind: given[NAME]=VALUE, and options_PROGRAM=(…), what each program is to be passed.
# shellcheck disable=SC2154 # bin, jobs, programs are the script's

declare -A kind=([dataset]=value [data]=value [recipe]=value [ranks-per-node]=value
    [num-gpus]=value [num-nodes]=value [node-id]=value [rank]=value [master-addr]=value [master-ip]=value
    [master-port]=value [run-dir]=value [global-batch-size]=value [keep-store]=flag)
# What this script itself tells the programs.
derived=' world-size local-rank local-world-size endpoint listen metrics owner-pid store save
    print-config options version replay info dump remove sweep bench '
declare -A owners=() given=() typed=()
declare -A passed_to=() # program → its options, each quoted for the shell

ask_programs() {
    local program options name type
    for program in "${programs[@]}"; do
        [ -x "$bin/$program" ] || give_up "there is no $bin/$program: run make first"
        options=$("$bin/$program" --options) || give_up "$bin/$program does not run"
        while IFS=$'\t' read -r name type; do
            owners[$name]+=" $program"
            kind[$name]=${kind[$name]:-$type}
        done <<<"$options"
    done
    # These reach the programs from this script.
    unset 'owners[data]' 'owners[rank]' 'owners[master-addr]' 'owners[master-port]'
}

nearest() { # NAME: the known name with the smallest edit distance (Levenshtein)
    printf '%s\n' "${!kind[@]}" | awk -v a="$1" '
        function min(x, y) { return x < y ? x : y }
        {
            for (j = 0; j <= length($0); j++) d[0, j] = j
            for (i = 1; i <= length(a); i++) {
                d[i, 0] = i
                for (j = 1; j <= length($0); j++)
                    d[i, j] = min(min(d[i-1, j], d[i, j-1]) + 1,
                                  d[i-1, j-1] + (substr(a, i, 1) != substr($0, j, 1)))
            }
            if (NR == 1 || d[length(a), length($0)] < least) { least = d[length(a), length($0)]; best = $0 }
        }
        END { print best }'
}

take_options() { # WHERE ARG…: from the command line first, then from the recipe
    local where=$1 name value program
    local -A seen=()
    shift
    while (($#)); do
        [[ $1 == --?* ]] || refuse "$where: unexpected argument \"$1\""
        name=${1#--} && name=${name%%=*}
        [[ -v kind[$name] ]] || refuse "$where: unknown option \"--$name\": is --$(nearest "$name") meant?"
        [[ $derived != *[[:space:]]"$name"[[:space:]]* ]] || refuse "$where: --$name is chosen by run_pipeline.sh"
        # The programs themselves know which of theirs may be repeated.
        [[ ! -v seen[$name] || -v owners[$name] ]] || refuse "$where: --$name is given twice"
        if [[ ${kind[$name]} == flag ]]; then
            [[ $1 != *=* ]] || refuse "$where: --$name takes no value"
            value=yes
        elif [[ $1 == *=* ]]; then
            value=${1#*=}
        else
            (($# > 1)) || refuse "$where: --$name wants a value"
            value=$2 && shift
        fi
        shift
        seen[$name]=1
        overridden "$name" && continue
        given[$name]=$value
        for program in ${owners[$name]:-}; do
            passed_to[$program]+=" --$name"
            [ "${kind[$name]}" = flag ] || passed_to[$program]+="=$(printf %q "$value")"
        done
    done
    for name in "${!seen[@]}"; do typed[$name]=1; done
}

overridden() { # NAME: was it, or what means the same, given already?
    [[ -v typed[$1] ]] && return
    case $1 in
    batch-size) [[ -v typed[global-batch-size] ]] ;;
    global-batch-size) [[ -v typed[batch-size] ]] ;;
    ranks-per-node) [[ -v typed[num-gpus] ]] ;;
    num-gpus) [[ -v typed[ranks-per-node] ]] ;;
    *) false ;;
    esac
}

take_recipe() { # NAME
    local file=$jobs/recipes/$1.opts option value arguments=()
    [ -r "$file" ] || refuse "no recipe \"$1\"; there are: $(cd "$jobs/recipes" && echo *.opts | sed 's/\.opts//g')"
    while read -r option value; do
        [ -z "$option" ] || arguments+=("$option" ${value:+"$value"})
    done < <(sed 's/#.*//; s/[[:space:]]*$//' "$file")
    take_options "recipe $1" "${arguments[@]}"
}

whole() { # NAME: its value is a number from 1
    [[ ! -v given[$1] || ${given[$1]} =~ ^[1-9][0-9]{0,6}$ ]] || refuse "--$1 \"${given[$1]}\": a number from 1 is wanted"
}

exclude() { # NAME NAME
    [[ ! -v given[$1] || ! -v given[$2] ]] || refuse "--$1 and --$2 exclude each other"
}

derive() { # what follows from the options and the machine
    local program
    find_nodes
    if [[ -v given[global-batch-size] ]]; then
        ((given[global-batch-size] % world == 0)) ||
            refuse "--global-batch-size ${given[global-batch-size]} cannot be divided by $world ranks"
        for program in ${owners[batch-size]}; do
            passed_to[$program]+=" --batch-size=$((given[global-batch-size] / world))"
        done
    fi
    if [[ ! -v given[device] && -x $bin/trainer-cuda && ${CUDA_VISIBLE_DEVICES-all} ]] && compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
        say "this node has a GPU: --device cuda (for the CPU, say --device cpu)"
        given[device]=cuda passed_to[trainer]+=" --device=cuda"
    fi
    if [ "${given[device]:-}" = cuda ]; then
        [ -x "$bin/trainer-cuda" ] || refuse "--device cuda: there is no $bin/trainer-cuda; it is built where nvcc, cuDNN and NCCL are"
    elif [[ -v given[num-gpus] ]]; then
        say "--num-gpus without --device cuda: $local_world ranks on the CPU"
    fi
    for program in "${programs[@]}"; do eval "options_$program=(${passed_to[$program]:-})"; done
}
