#!/bin/bash
# Installs what the real engines need from the distribution's own packages. Idempotent.
#   engines/provision.sh docker slurm
. "$(dirname "$0")/common.sh"

declare -A PACKAGES=(
    [docker]="docker.io iptables debootstrap"
    [browser]="chromium fonts-dejavu-core gcc libc6-dev"
    [slurm]="slurm-wlm munge tini iproute2"
)

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

[ $# -gt 0 ] || set -- "${!PACKAGES[@]}"
wanted=()
for engine in "$@"; do
    [ -n "${PACKAGES[$engine]:-}" ] || die "there is no engine '$engine'; there is ${!PACKAGES[*]}"
    # Somebody who has a Docker daemon of their own needs none of ours.
    if [ "$engine" = docker ] && type dockerd iptables debootstrap >/dev/null 2>&1; then continue; fi
    read -ra packages <<<"${PACKAGES[$engine]}"
    mapfile -t absent < <(missing "${packages[@]}")
    wanted+=("${absent[@]}")
done
[ ${#wanted[@]} -eq 0 ] || install "${wanted[@]}"
say "ready: $*"
