# shellcheck shell=bash
# slurm.sh: a real Slurm of two nodes, node1 and node2, each a machine of hosts.sh, for bats files that
# source both. slurmctld runs on the switch, munged here: its socket is a file that all of them see.
#
#   slurm_missing     prints why there can be no Slurm here; nothing where there can
#   slurm_up          both nodes are idle when it returns
#   slurm COMMAND…    runs a client command where slurmctld is

slurm_missing() {
    local program
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null || { echo "no $program: make deps installs it" && return; }
    done
    hosts_missing
}

slurm() { on switch env SLURM_CONF="$SLURM_CONF" PATH="$PATH:/usr/sbin:/usr/bin" "$@"; }

slurm_conf() {
    cat <<END
ClusterName=test
SlurmctldHost=switch(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm_folder/munge.sock
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1,bf_interval=1
MailProg=/bin/true
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
InactiveLimit=0
KillWait=2
StateSaveLocation=$slurm_folder/state
SlurmdSpoolDir=$slurm_folder/spool.%n
SlurmctldPidFile=$slurm_folder/slurmctld.pid
SlurmdPidFile=$slurm_folder/slurmd.%n.pid
SlurmctldLogFile=$slurm_folder/slurmctld.log
SlurmdLogFile=$slurm_folder/slurmd.%n.log
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node1 NodeAddr=10.77.0.1 CPUs=8 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
NodeName=node2 NodeAddr=10.77.0.2 CPUs=8 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

slurm_idle() { [ "$(slurm sinfo -h -N -o %T 2>/dev/null | sort | uniq -c | tr -d ' \n')" = 2idle ]; }

slurm_up() {
    local node
    hosts_up node1 node2
    # munged wants every folder above its socket safe from others, and open to them.
    slurm_folder=$(mktemp -d /tmp/ddpipe-slurm.XXXXXX) && chmod 711 "$slurm_folder"
    export slurm_folder SLURM_CONF=$slurm_folder/slurm.conf
    mkdir "$slurm_folder/state"
    slurm_conf >"$SLURM_CONF"
    # Devices that only Slurm counts.
    mknod "$slurm_folder/gpu0" c 195 0 && mknod "$slurm_folder/gpu1" c 195 1
    printf 'AutoDetect=off\nNodeName=node[1-2] Name=gpu File=%s/gpu[0-1]\n' "$slurm_folder" >"$slurm_folder/gres.conf"
    # No limits by cgroups here; but without this slurmd looks for their file system, which a container may lack.
    echo CgroupPlugin=cgroup/v1 >"$slurm_folder/cgroup.conf"
    head -c 64 /dev/urandom >"$slurm_folder/munge.key" && chmod 400 "$slurm_folder/munge.key"
    on switch munged --key-file="$slurm_folder/munge.key" --socket="$slurm_folder/munge.sock" \
        --pid-file="$slurm_folder/munged.pid" --log-file="$slurm_folder/munged.log" \
        --seed-file="$slurm_folder/munged.seed" 3>&-
    slurm slurmctld -c 3>&-
    for node in node1 node2; do
        on "$node" env SLURM_CONF="$SLURM_CONF" PATH="$PATH:/usr/sbin" slurmd -N "$node" 3>&-
    done
    hosts_wait "two idle nodes" slurm_idle
}

slurm_down() { # the daemons die with their machines
    hosts_down
    rm -rf "${slurm_folder:?}"
}
