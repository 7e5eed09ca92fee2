#!/bin/bash
# A real Slurm of several nodes on this one host. Each node, and the control host, is a little machine of its own:
# host name, process table and network in namespaces, joined by a bridge that no other network reaches.
#   engines/slurm.sh start | stop | status | env
#   engines/slurm.sh kill NODE RUN   everything on the node dies at once, in the name of a run
#   engines/slurm.sh boot NODE       brings a dead node back
#   engines/slurm.sh heal RUN        brings back what was killed in the name of that run
# CHAOS_SLURM_NODES says how many nodes (4).
. "$(dirname "$0")/common.sh"

SELF=$(readlink -f "$0")
STATE=$ENGINES_DIR/slurm
NODES=${CHAOS_SLURM_NODES:-4}
NETWORK=10.78.0

node_names() { seq -f 'n%g' "$NODES"; }
address_of() { echo "$NETWORK.$((10 + ${1#n}))"; }
is_node() { node_names | grep -qx -- "$1" || die "unknown node '$1'; choose one of: $(node_names | xargs)"; }
host_pid() { pid_of "$STATE/run/$1.pid" unshare; } # of a machine: ctl or a node
client() { nsenter --target "$(cat "$STATE/run/ctl.ns")" --net --uts env SLURM_CONF="$STATE/slurm.conf" "$@"; }

# What the machines are ----------------------------------------------------------------------------------------

write_configuration() {
    mkdir -p "$STATE"/{bin,log,munge,run,killed,spool,state}
    chmod 700 "$STATE/munge"
    [ -s "$STATE/munge/key" ] || (umask 077; head -c 1024 /dev/urandom >"$STATE/munge/key")
    { echo "127.0.0.1 localhost"; echo "$NETWORK.1 ctl"; for n in $(node_names); do echo "$(address_of "$n") $n"; done; } >"$STATE/hosts"
    cat >"$STATE/slurm.conf" <<CONF
ClusterName=chaos
SlurmctldHost=ctl($NETWORK.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$STATE/munge/socket
SlurmctldPidFile=$STATE/run/slurmctld.pid
SlurmctldLogFile=$STATE/log/slurmctld.log
SlurmdPidFile=$STATE/run/slurmd-%n.pid
SlurmdLogFile=$STATE/log/slurmd-%n.log
SlurmdSpoolDir=$STATE/spool/%n
StateSaveLocation=$STATE/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=2
ReturnToService=2
SlurmctldParameters=preempt_send_user_signal
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_continue
SlurmdTimeout=5
MessageTimeout=5
PropagatePrioProcess=1
TCPTimeout=2
MpiDefault=none
NodeName=DEFAULT CPUs=2 RealMemory=2000 State=UNKNOWN
$(for n in $(node_names); do echo "NodeName=$n NodeAddr=$(address_of "$n")"; done)
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=3 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=100 PreemptMode=OFF MaxTime=INFINITE State=UP
CONF
    local half=$(((NODES + 1) / 2)) # two leaf switches below one
    { echo "SwitchName=leaf0 Nodes=n[1-$half]"
      [ "$NODES" -le "$half" ] || echo "SwitchName=leaf1 Nodes=n[$((half + 1))-$NODES]"
      [ "$NODES" -le "$half" ] || echo "SwitchName=spine Switches=leaf[0-1]"; } >"$STATE/topology.conf"
    # The cluster's network is reachable from inside it only, so its commands run there; a job's already do.
    for command in sbatch scancel scontrol sinfo squeue srun; do
        cat >"$STATE/bin/$command" <<WRAPPER
#!/bin/sh
export SLURM_CONF='$STATE/slurm.conf'
[ -z "\$SLURMD_NODENAME" ] || exec '$(type -P "$command")' "\$@"
exec nsenter --target "\$(cat '$STATE/run/ctl.ns')" --net --uts --wdns="\$PWD" '$(type -P "$command")' "\$@"
WRAPPER
        chmod 755 "$STATE/bin/$command"
    done
}

machine() { # NAME: runs `slurm.sh _NAME` as the only thing of a new machine, whose init reaps and dies with it
    rm -f "$STATE/run/$1.ns"
    daemon unshare --net --uts --ipc --pid --mount --propagation=slave --mount-proc --fork --kill-child \
        tini -s -- "$SELF" _machine "$1" >>"$STATE/log/$1.log" 2>&1
    echo $! >"$STATE/run/$1.pid"
    wait_until 5 find_inside "$1" || die "machine $1 did not start: $(tail -n 3 "$STATE/log/$1.log")"
}

find_inside() { # NAME: notes the pid, as the host numbers it, of the machine's init
    local inside
    inside=$(cat "/proc/$(cat "$STATE/run/$1.pid")/task/$(cat "$STATE/run/$1.pid")/children")
    [ -n "${inside// /}" ] && [ "$(cat "/proc/${inside// /}/comm")" = tini ] && echo "${inside// /}" >"$STATE/run/$1.ns"
}

run_machine() { # NAME, inside: what it does for the rest of its life
    hostname "$1"
    mount --bind "$STATE/hosts" /etc/hosts
    ip link set lo up
    export SLURM_CONF=$STATE/slurm.conf
    if [ "$1" = ctl ]; then
        ip link add lan type bridge
        ip addr add "$NETWORK.1/24" dev lan
        ip link set lan up
        munged --force --key-file "$STATE/munge/key" --socket "$STATE/munge/socket" --pid-file "$STATE/munge/pid" \
            --log-file "$STATE/log/munged.log" --seed-file "$STATE/munge/seed"
        exec nice --adjustment=-10 slurmctld -D -c  # a busy host must not look like lost nodes; tasks have the user's priority
    fi
    wait_until 5 ip link show eth0 || die "machine $1 got no network"
    ip addr add "$(address_of "$1")/24" dev eth0
    ip link set eth0 up
    exec nice --adjustment=-10 slurmd -D -b
}

boot() { # NODE
    host_pid "$1" >/dev/null && return
    machine "$1"
    local lan inside
    lan=$(cat "$STATE/run/ctl.ns") inside=$(cat "$STATE/run/$1.ns")
    # The bridge end of a machine that was killed may live a moment longer.
    nsenter --target "$lan" --net ip link del "$1" 2>/dev/null || true
    nsenter --target "$lan" --net ip link add "$1" type veth peer name eth0 netns "$inside"
    nsenter --target "$lan" --net ip link set "$1" master lan up
    rm -f "$STATE/killed/$1"
}

dead() { gone "$1" || grep -q '^State:\sZ' "/proc/$1/status" 2>/dev/null; } # an init is a zombie only once all else is gone

kill_machine() { # NAME
    local pid inside
    pid=$(host_pid "$1") || return 0
    inside=$(cat "$STATE/run/$1.ns" 2>/dev/null || echo "$pid")
    kill -9 "$pid"
    wait_until 5 dead "$inside" || die "machine $1 does not end"
    rm -f "$STATE/run/$1.pid" "$STATE/run/$1.ns"
}

# The cluster --------------------------------------------------------------------------------------------------

controller_up() { client scontrol ping | grep -q 'is UP'; }
nodes_up() { [ "$(client sinfo --noheader --format %T --Node --partition low | grep -cE '^(idle|mixed|allocated)$')" = "$NODES" ]; }

start() {
    close_inherited
    type slurmctld slurmd munged tini >/dev/null 2>&1 || die "Slurm is not installed; run engines/provision.sh slurm"
    if ! host_pid ctl >/dev/null; then
        stop
        rm -rf "$STATE"/{state,spool,killed}
        write_configuration
        machine ctl
        wait_until 10 controller_up || die "slurmctld did not come up: $(tail -n 3 "$STATE/log/slurmctld.log")"
    fi
    for n in $(node_names); do boot "$n"; done
    wait_until 30 nodes_up || die "not all nodes came up: $(client sinfo --noheader --Node --long | xargs)"
}

stop() {
    for file in "$STATE"/run/*.pid; do
        name=$(basename "$file" .pid)
        host_pid "$name" >/dev/null && kill_machine "$name" || true
    done
}

heal() { # RUN
    for mark in "$STATE"/killed/*; do
        [ "$(cat "$mark" 2>/dev/null)" = "$1" ] && boot "$(basename "$mark")" || true
    done
}

alone() { # one change at a time: a run's end and its reverter may both want to heal
    need_root
    mkdir -p "$STATE"
    exec 9>"$STATE/lock"
    flock --wait 60 9 || die "another $(basename "$0") does not end"
}

case ${1:-} in start | stop | kill | boot | heal) alone ;; esac
case ${1:-} in
    start) start; say "running, export SLURM_CONF=$STATE/slurm.conf PATH=$STATE/bin:\$PATH" ;;
    stop) stop; say "stopped" ;;
    status) if host_pid ctl >/dev/null && controller_up; then client sinfo; else say "not running"; exit 1; fi ;;
    env) echo "export SLURM_CONF=$STATE/slurm.conf PATH=$STATE/bin:\$PATH" ;;
    kill) is_node "${2:-}"; echo "${3:?name a run}" >"$STATE/killed/$2"; kill_machine "$2" ;;
    boot) is_node "${2:-}"; boot "$2" ;;
    heal) heal "${2:?which run?}" ;;
    _machine) run_machine "$2" ;;
    *) die "write one of: start, stop, status, env, kill NODE RUN, boot NODE, heal RUN" ;;
esac
