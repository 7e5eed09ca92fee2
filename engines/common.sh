# Sourced by the engine scripts: where engines keep their state, and how one is started and ended by its pid.
set -euo pipefail

ENGINES_DIR=${CHAOS_ENGINES_DIR:-/var/lib/chaos-engines}

say() { echo "$(basename "$0"): $*" >&2; }
die() { say "$*"; exit 4; }

need_root() { [ "$(id -u)" = 0 ] || die "must run as root"; }

# Where this host gets a release's packages from.
mirror_of() { # CODENAME
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
        awk -v suite="$1" '$2 == suite && $3 == "main" {print $1; exit}'
}

# A daemon must not keep what its caller had open: a lock, say, would be held for as long as the daemon lives.
close_inherited() {
    local each
    for each in /proc/$$/fd/*; do
        each=${each##*/}
        [ "$each" -le 2 ] || [ "$each" -eq 255 ] || eval "exec $each>&-"
    done
}

# The process in a pid file, if it still is the program we started (a pid may be used again by another).
pid_of() { # FILE PROGRAM
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 1
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && echo "$pid"
}

wait_until() { # SECONDS COMMAND…
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

gone() { ! kill -0 "$1" 2>/dev/null; }

end_process() { # PID: SIGTERM, and SIGKILL for one that does not listen
    kill "$1" 2>/dev/null || return 0
    wait_until 20 gone "$1" || kill -9 "$1" 2>/dev/null || true
    wait_until 5 gone "$1" || die "process $1 does not end"
}

daemon() { # COMMAND…: goes on in a session of its own. It keeps open nothing of the caller's: a lock would be held for ever
    (
        for file in "/proc/$BASHPID/fd"/*; do
            [ "${file##*/}" -le 2 ] || eval "exec ${file##*/}>&-"
        done
        exec setsid "$@"
    ) </dev/null &
}
