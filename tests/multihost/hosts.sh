# shellcheck shell=bash
# Several hosts on this machine, for tests: each has a network namespace joined to a bridge, and its own
# host name, /dev/shm and /tmp. Sourced. Needs root; without it, or where the kernel refuses, the test is
# skipped (exit 77).
#
#   hosts_up N [RATE]      host1 .. hostN; RATE limits each link (for tc: 200mbit)
#   on HOST COMMAND...     runs a command on a host
#   link HOST up|down      a host's network, without a word to anybody
#   agent                  path of the command that stands for ssh: `agent HOST COMMAND`
#
# Everything goes with the shell that sourced this: the hosts are processes, killed at its end.

hosts_folder=$(mktemp -d)
hosts_id=$(printf 'rs%05x' $(($$ % 1048576)))
hosts_count=0
agent=$hosts_folder/agent

hosts_skip() {
    echo "skipped: $*"
    exit 77
}

hosts_down() {
    local k
    for ((k = 1; k <= hosts_count; k++)); do
        [ -f "$hosts_folder/host$k" ] && kill -9 "$(cat "$hosts_folder/host$k")" 2>/dev/null
        ip netns pids "$hosts_id-$k" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "$hosts_id-$k" 2>/dev/null
    done
    ip link del "${hosts_id}b" 2>/dev/null
    rm -rf "$hosts_folder"
}
trap hosts_down EXIT

on() {
    local host=$1
    shift
    nsenter --target "$(cat "$hosts_folder/$host")" --net --uts --mount --wd="$PWD" -- "$@"
}

link() {
    on "$1" ip link set eth0 "$2"
}

host_up() {
    local k=$1 rate=$2 space=$hosts_id-$1 address=10.91.7.$1
    ip netns add "$space" &&
        ip link add "${hosts_id}v$k" type veth peer name eth0 netns "$space" &&
        ip link set "${hosts_id}v$k" master "${hosts_id}b" up &&
        ip -n "$space" addr add "$address/24" dev eth0 &&
        ip -n "$space" link set eth0 up &&
        ip -n "$space" link set lo up || return
    if [ -n "$rate" ]; then
        ip netns exec "$space" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 400ms ||
            return
    fi
    ip netns exec "$space" unshare --uts --mount --propagation private sh -c "
        hostname host$k &&
        mount -t tmpfs -o size=4g tmpfs /dev/shm &&
        mount --bind '$hosts_folder/hosts' /etc/hosts &&
        echo \$\$ >'$hosts_folder/host$k' && exec sleep infinity" &
    disown
    local try
    for try in 1 2 3 4 5 6 7 8 9 10; do
        [ -s "$hosts_folder/host$k" ] && return
        sleep 0.1
    done
    return 1
}

hosts_up() {
    local count=$1 rate=${2:-} k
    [ "$(id -u)" -eq 0 ] || hosts_skip "hosts on one machine need root"
    local tool
    for tool in ip tc unshare nsenter; do
        command -v "$tool" >/dev/null || hosts_skip "$tool is not there"
    done
    {
        echo "127.0.0.1 localhost"
        for ((k = 1; k <= count; k++)); do echo "10.91.7.$k host$k"; done
    } >"$hosts_folder/hosts"
    ip link add "${hosts_id}b" type bridge && ip link set "${hosts_id}b" up ||
        hosts_skip "the kernel makes no bridge here"
    hosts_count=$count
    for ((k = 1; k <= count; k++)); do
        host_up "$k" "$rate" || hosts_skip "the kernel makes no network namespaces here"
    done
    cat >"$agent" <<AGENT
#!/bin/sh
# Stands for ssh: options, a host, a command.
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
exec nsenter --target "\$(cat "$hosts_folder/\$host")" --net --uts --mount --wd="$PWD" -- sh -c "\$*"
AGENT
    chmod +x "$agent"
    # MPI over these links, and nothing else: MPICH's transport talks past them through shared memory else.
    export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0,lo
    export OMPI_MCA_plm_rsh_agent=$agent OMPI_MCA_oob_tcp_if_include=10.91.7.0/24 \
        OMPI_MCA_btl_tcp_if_include=10.91.7.0/24 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_pml=ob1 \
        OMPI_MCA_orte_keep_fqdn_hostnames=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none \
        OMPI_MCA_mpi_yield_when_idle=1
}
