#!/bin/bash
# Installs programs from the distribution's own packages, by what they are for. Idempotent.
#   engines/provision.sh docker slurm browser monitoring tests      harness/programs.py has the list
. "$(dirname "$0")/common.sh"

LIST=$(dirname "$0")/../harness/programs.py

missing() { # PACKAGE…: those that are not installed
    for package in "$@"; do
        dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

install() { # PACKAGE…
    need_root
    command -v apt-get >/dev/null || die "not a Debian system; install what corresponds to: $*"
    # Packages start their daemons on systems with systemd; ours are started by our own scripts only.
    local options=(-o DPkg::Lock::Timeout=600 -y --no-install-recommends)
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get "${options[@]}" install "$@" >&2 || { apt-get update >&2; apt-get "${options[@]}" install "$@" >&2; }
}

keep_quiet() { # PACKAGE…: what was just installed for tests alone does not start with the machine either
    command -v systemctl >/dev/null || return 0
    for package in "$@"; do
        case $package in
            prometheus | prometheus-alertmanager) systemctl disable --now "$package" >&2 || true ;;
        esac
    done
}

[ $# -gt 0 ] || set -- docker slurm browser monitoring tests
# Only what is not there: somebody who has a Docker daemon of their own needs none of ours.
listed=$("${PYTHON:-python3}" "$LIST" "$@") || die "nothing was installed"
mapfile -t wanted < <(xargs --no-run-if-empty --max-args 1 <<<"$listed")
mapfile -t wanted < <(missing "${wanted[@]}")
if [ ${#wanted[@]} -gt 0 ]; then
    install "${wanted[@]}"
    keep_quiet "${wanted[@]}"
fi
say "ready: $*"
