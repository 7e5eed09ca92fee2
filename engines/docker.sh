#!/bin/bash
# A Docker daemon of our own beside whatever the host has: own socket, own data, no TCP port.
#   engines/docker.sh start | stop | status | host
. "$(dirname "$0")/common.sh"

STATE=$ENGINES_DIR/docker
SOCKET=$STATE/docker.sock
PID_FILE=$STATE/dockerd.pid
LOG=$STATE/dockerd.log
CGROUP=chaos-docker

answers() { curl --silent --fail --max-time 2 --unix-socket "$SOCKET" http://docker/_ping; }

# All containers together would otherwise weigh as much as a single process of the host, and starve beside a
# busy one. Where there is no such group (another version, another layout) they get what the system gives them.
weigh_containers() {
    local group
    for group in /sys/fs/cgroup/cpu/$CGROUP /sys/fs/cgroup/$CGROUP; do
        [ -e "$(dirname "$group")/cgroup.procs" ] && mkdir -p "$group" || continue
        [ -w "$group/cpu.shares" ] && echo 16384 >"$group/cpu.shares"
        [ -w "$group/cpu.weight" ] && echo 1600 >"$group/cpu.weight"
    done
    true
}

# A kubelet wants its pods spared by the OOM killer. Where nobody may have that (no CAP_SYS_RESOURCE, as in some virtual
# machines), runc would fail for it: the wish is left out.
runc_without_spared() {
    (echo -1 >/proc/self/oom_score_adj) 2>/dev/null && return
    mkdir -p "$STATE/bin"
    cat >"$STATE/bin/runc" <<WRAPPER
#!/bin/sh
for argument; do
    [ "\$previous" = --bundle ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "\$argument/config.json"
    previous=\$argument
done
exec $(command -v runc) "\$@"
WRAPPER
    chmod 755 "$STATE/bin/runc"
    export PATH="$STATE/bin:$PATH"
}

start() {
    pid_of "$PID_FILE" dockerd >/dev/null && { wait_until 20 answers || die "dockerd runs but does not answer; see $LOG"; return; }
    need_root
    command -v dockerd >/dev/null || die "dockerd is not installed; run engines/provision.sh docker"
    close_inherited
    mkdir -p "$STATE"
    rm -f "$PID_FILE" "$SOCKET"
    runc_without_spared
    # A name of its own for the default bridge would be one more thing to undo; runs use their own networks anyway.
    daemon dockerd --host "unix://$SOCKET" --data-root "$STATE/data" --exec-root "$STATE/exec" --pidfile "$PID_FILE" \
        --cgroup-parent "/$CGROUP" --bridge none --shutdown-timeout 5 >>"$LOG" 2>&1
    weigh_containers
    wait_until 30 answers || die "dockerd did not come up within 30 s: $(tail -n 3 "$LOG")"
}

stop() {
    local pid
    pid=$(pid_of "$PID_FILE" dockerd) && end_process "$pid"
    rm -f "$SOCKET"
    # dockerd leaves its mounts behind when it had to be killed.
    grep -o " $STATE/exec[^ ]*" /proc/mounts | sort -r | xargs --no-run-if-empty umount --lazy || true
}

case ${1:-} in
    start) start; say "running, DOCKER_HOST=unix://$SOCKET" ;;
    stop) stop; say "stopped" ;;
    status) if answers >/dev/null; then say "running, DOCKER_HOST=unix://$SOCKET"; else say "not running"; exit 1; fi ;;
    host) echo "unix://$SOCKET" ;;
    *) die "write one of: start, stop, status, host" ;;
esac
