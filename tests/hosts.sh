# shellcheck shell=bash disable=SC2016 # the inner shells expand it
# hosts.sh: machines of their own on this one, from Linux namespaces, for bats files that source it.
#
# A host is a process (sleep) in a network, hostname, mount, process and shared-memory namespace of its
# own; its death is the machine's: all its processes, sockets and its /dev/shm go with it. All hosts
# hang on a bridge in a namespace that is like theirs, called "switch". Nothing of it exists outside the
# namespaces, so nothing can be left behind.
#
#   hosts_missing             prints why there can be no hosts here; nothing where there can
#   hosts_up NAME…            host i has the address 10.77.0.i and one core; the switch 10.77.0.254
#   on NAME COMMAND…          runs it there, in this folder
#   hosts_cut NAME            takes its cable out; hosts_mend NAME puts it back
#   hosts_kill NAME           switches it off
#   hosts_down                all of them

host_pid() { cat "$hosts_folder/$1.pid"; }

hosts_missing() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "network namespaces need root"
    elif ! unshare --net --uts --ipc --mount --propagation unchanged --pid --fork true 2>/dev/null; then
        echo "this kernel gives no network, mount and process namespaces"
    elif ! unshare --net sh -c 'ip link add br0 type bridge && ip link add veth0 type veth peer name veth1' 2>/dev/null; then
        echo "this kernel has no bridge or veth"
    fi
}

host_start() { # NAME
    local parent
    # Where / is no mount point (chroot), only the mounts below it can be made private.
    setpriv --pdeathsig KILL unshare --net --uts --ipc --mount --propagation unchanged --pid --fork --kill-child sh -c '
        mount --make-rprivate / 2>/dev/null || mount --make-rprivate /dev /proc 2>/dev/null
        mount -t proc proc /proc && mount -t tmpfs -o size=2g tmpfs /dev/shm && hostname "$1" && ip link set lo up &&
            echo up >"$2" && exec sleep infinity' sh "$1" "$hosts_folder/$1" 3>&- >/dev/null 2>&1 &
    parent=$!
    disown
    hosts_wait "host $1" test -s "$hosts_folder/$1"
    pgrep -P "$parent" >"$hosts_folder/$1.pid"
}

hosts_wait() { # WHAT COMMAND…: until it is true
    local what=$1 end=$((SECONDS + 90))
    shift
    until "$@"; do
        if ((SECONDS >= end)); then echo "waited too long for $what" && return 1; fi
        sleep 0.02
    done
}

hosts_up() {
    local name number=0
    hosts_folder=$(mktemp -d "$BATS_FILE_TMPDIR/hosts.XXXX") && export hosts_folder
    host_start switch
    echo 0 >"$hosts_folder/switch.core"
    on switch ip link add br0 type bridge
    on switch ip addr add 10.77.0.254/24 dev br0
    on switch ip link set br0 up
    for name; do
        number=$((number + 1))
        host_start "$name"
        mkdir -m 700 "$hosts_folder/$name.run" # a dead machine's private folders are no one's to remove
        echo $(((number - 1) % $(nproc))) >"$hosts_folder/$name.core"
        # The other end goes to the switch by its process's number here.
        nsenter -t "$(host_pid "$name")" -n ip link add eth0 type veth peer name "port-$name" netns "$(host_pid switch)"
        on "$name" ip addr add "10.77.0.$number/24" dev eth0
        on "$name" ip link set eth0 up
        on switch ip link set "port-$name" master br0
        on switch ip link set "port-$name" up
    done
}

on() { # NAME COMMAND…
    local name=$1 runtime=''
    shift
    [ ! -d "$hosts_folder/$name.run" ] || runtime=$hosts_folder/$name.run
    taskset -c "$(cat "$hosts_folder/$name.core")" nsenter -t "$(host_pid "$name")" -r -n -u -i -m -p \
        env ${runtime:+XDG_RUNTIME_DIR="$runtime"} sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

hosts_cut() { on switch ip link set "port-$1" down; }
hosts_mend() { on switch ip link set "port-$1" up; }

hosts_kill() { kill -KILL "$(host_pid "$1")" && rm "$hosts_folder/$1.pid"; }

hosts_down() {
    local file name
    for file in "$hosts_folder"/*.pid; do
        name=${file##*/}
        [ ! -e "$file" ] || hosts_kill "${name%.pid}"
    done
}
