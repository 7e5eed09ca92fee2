#!/bin/bash
# The README's two commands and CI's provisioning on a machine that has nothing but what the README names: a minimal
# Debian in a folder, with processes, mounts, network, control groups and a host name of its own. Of this host it sees
# the sources of packages (pip's and apt's settings, and the local folders they name), the CA bundle, and caches kept
# for it alone. Once as root and once as an ordinary user.
#   engines/fresh.sh               make chaos, make test; as root then make engines, make image, and tests of the engines
#   engines/fresh.sh --ci FOLDER   make chaos and the quick tests as an ordinary user, then make test as root; FOLDER
#                                  gets which tests will be skipped before they run, and how each test ended
#   engines/fresh.sh --base        only makes the minimal systems, of each Python
#   --tests 'ARGUMENTS'            of pytest, for --ci: not all tests
#   --only root|user               one of the two            --commit REV   that commit instead of the working tree
#   --run 'COMMAND'                this instead of the commands above; what it writes to /out is copied to --out FOLDER
#   PYTHON=3.13                    that Python (of the Debian that has it): the set-up and make fast, without the extra
#                                  `trainer`, whose PyTorch takes gigabytes for a Python other than the tests' own
# Whatever kills it, the kernel ends its processes and mounts with it; its folder is removed when the last one is gone.
. "$(dirname "$0")/common.sh"

SELF=$(readlink -f "$0")
ROOT=$(dirname "$(dirname "$SELF")")
OLDEST=3.11 # of the Pythons that are supported, and the one that tests run on
NEWEST=3.13 # of those that a Debian has
STATE=$ENGINES_DIR/fresh
PACKAGES=python3,python3-venv,make,git,ca-certificates # what the README names
USER_ID=59321 # of the ordinary user; nobody of this host is likely to have it
FULL_S_MAX=7200
LIGHT_EXTRAS=docker,kubernetes,load,gameday,metrics
# Quick, without an engine, and near to what a machine has or lacks. Picked by name, wherever they are.
QUICK_TESTS="test_programs test_network test_pod_init test_slurm_storage test_docker_request test_undo"
ENGINE_TESTS="test_network test_docker test_slurm test_report_browser test_node_control test_pod_init test_prometheus"

# The base, made once ------------------------------------------------------------------------------------------

release_of() { # PYTHON: the Debian that has it
    case $1 in
        3.11) echo bookworm ;;
        3.13) echo trixie ;;
        *) die "no Debian has Python $1; write 3.11 or 3.13" ;;
    esac
}

base() { # prints the folder of the minimal system, and makes it where there is none or it is older than a month
    local mirror folder=$STATE/base-$RELEASE
    mirror=$(mirror_of "$(. /etc/os-release && echo "$VERSION_CODENAME")")
    [ -n "$mirror" ] || die "this host has no source of Debian packages"
    if [ "$(cat "$folder/.made-of" 2>/dev/null)" != "$PACKAGES $mirror" ] || [ -n "$(find "$folder/.made-of" -mtime +30)" ]; then
        say "making a minimal $RELEASE (once)"
        rm -rf --one-file-system "$folder" "$folder.new"
        mkdir -p "$folder.new"
        debootstrap --variant=minbase --include="$PACKAGES" "$RELEASE" "$folder.new" "$mirror" >"$STATE/debootstrap.log" ||
            { tail -n 20 "$STATE/debootstrap.log" >&2; die "debootstrap failed"; }
        rm -rf "$folder.new"/var/cache/apt/archives/*.deb
        docker_client "$folder.new/usr/local/bin"
        echo "$PACKAGES $mirror" >"$folder.new/.made-of"
        mv "$folder.new" "$folder"
    fi
    echo "$folder"
}

docker_client() { # FOLDER: the client alone, as on many machines whose daemon is elsewhere or nowhere
    local package work
    work=$(mktemp -d "$STATE/docker.XXXXXX")
    for package in docker-cli docker.io; do
        (cd "$work" && apt-get download "$package" >/dev/null 2>&1 || { apt-get update && apt-get download "$package"; } >/dev/null 2>&1) && break
    done
    dpkg-deb --extract "$work"/docker*.deb "$work" && cp "$work/usr/bin/docker" "$1/" || die "no package has Docker's client"
    rm -rf "$work"
}

# What a visit needs, prepared outside -------------------------------------------------------------------------

copy_source() { # FOLDER: the working tree as git sees it, or a commit
    mkdir -p "$1"
    if [ -n "${COMMIT:-}" ]; then
        git -C "$ROOT" archive "$COMMIT"
    else
        (cd "$ROOT" && git ls-files -z --cached --others --exclude-standard --deduplicate |
            while IFS= read -rd '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done | tar --create --null --files-from -)
    fi | tar --extract --no-same-owner --directory "$1"
}

# Everything the visit does is on the account of groups of its own, below the caller's.
enter_groups() { # NAME: notes each as "GROUP MOUNT"
    local line group mount controllers path
    while read -r mount controllers; do
        path=$(awk -F: -v wanted="$controllers" '$2 == wanted {print $3}' /proc/self/cgroup)
        group=${mount%/}${path%/}/$1
        [ -d "$(dirname "$group")" ] || group=$mount/$1
        mkdir "$group" 2>/dev/null || continue
        for line in cpuset.cpus cpuset.mems; do # a new group of this old kind has none, and takes no process then
            [ ! -e "$group/$line" ] || cat "$(dirname "$group")/$line" >"$group/$line" 2>/dev/null || true
        done
        if echo "$BASHPID" >"$group/cgroup.procs" 2>/dev/null; then echo "$group $mount"; else rmdir "$group"; fi
    done < <(group_mounts)
}

group_mounts() { # each hierarchy as "MOUNT CONTROLLERS", the latter as /proc/self/cgroup names them
    awk '{for (i = 7; i <= NF && $i != "-"; i++); kind = $(i + 1); options = $(i + 3)}
        kind == "cgroup2" {print $5, ""}
        kind == "cgroup" {named = ""; count = split(options, word, ",")
            for (w = 1; w <= count; w++) if (word[w] !~ /^(rw|ro|xattr|clone_children|release_agent=.*|noprefix|none)$/) named = named (named == "" ? "" : ",") word[w]
            print $5, named}' /proc/self/mountinfo
}

# One visit ----------------------------------------------------------------------------------------------------

visit() { # USER COMMANDS: in a new copy of the base; the folder goes when no process of the visit is left
    local work status=0 janitor machine
    mkdir -p "$STATE"/cache/{apt,pip-root,pip-user}
    chown -R "$USER_ID:$USER_ID" "$STATE/cache/pip-user"
    work=$(mktemp -d "$STATE/visit.XXXXXX")
    exec 8>"$work/lock"
    flock 8
    setsid "$SELF" _remove "$work" 8>&- </dev/null >/dev/null 2>&1 &
    janitor=$!
    prepare "$work" "$1" "$2" || die "the minimal system could not be prepared"
    setpriv --pdeathsig KILL "$SELF" _machine "$work" </dev/null &
    machine=$!
    join_network "$machine" "$work" || { kill -9 "$machine"; die "the visit got no network: $(cat "$work/network.log")"; }
    wait "$machine" || status=$?
    kill "$SLIRP" 2>/dev/null || true
    [ -z "${OUT:-}" ] || { mkdir -p "$OUT" && cp -r --no-preserve=ownership "$work/root/out/." "$OUT/"; }
    exec 8>&-
    wait "$janitor" || true
    return "$status"
}

prepare() { # FOLDER USER COMMANDS
    cp -a --reflink=auto "$BASE" "$1/root" &&
        copy_source "$1/root/home/tester/chaos-harness" &&
        python3 "$ROOT/engines/package_sources.py" "$1/root" >"$1/binds" &&
        echo "$2" >"$1/owner" && printf '%s\n' "$3" >"$1/root/commands" && : >"$1/groups" &&
        mkdir --mode 1777 "$1/root/out"
}

machine() { # FOLDER: becomes what the visit hangs on; the new namespaces end with it
    enter_groups "$(basename "$1")" >"$1/groups"
    exec unshare --mount --propagation=private --pid --fork --kill-child --net --uts --ipc --cgroup "$SELF" _inside "$1"
}

first_process() { # PID: of the new machine, as this host numbers it
    local child
    [ "$(cat "/proc/$1/comm" 2>/dev/null)" = unshare ] && child=$(cat "/proc/$1/task/$1/children") && [ -n "$child" ] && echo "${child%% *}"
}

join_network() { # PID FOLDER: its only way out is a program of this host that speaks for it; no rule of this host changes
    wait_until 10 first_process "$1" || return 1
    setpriv --pdeathsig KILL slirp4netns --configure --mtu=65520 --disable-host-loopback "$(first_process "$1")" tap0 >"$2/network.log" 2>&1 8>&- &
    SLIRP=$!
}

remove() { # FOLDER: waits for the end of all that holds its lock
    flock "$1/lock" true
    while read -r group _; do
        wait_until 5 empty "$group" || true
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done <"$1/groups" || true
    rm -rf --one-file-system "$1"
}

empty() { [ ! -e "$1" ] || ! find "$1" -name cgroup.procs -exec cat {} + | grep -q .; }

remove_stale() { # of visits whose janitor was killed, too
    local work
    for work in "$STATE"/visit.*; do
        [ ! -e "$work/lock" ] || ! flock --nonblock "$work/lock" true || remove "$work"
    done
}

# Inside: process 1 of the new machine ---------------------------------------------------------------------------

device() { # NAME: as this host has it
    local mode major minor
    [ -c "/dev/$1" ] || return 0
    read -r mode major minor < <(stat --format '%a %t %T' "/dev/$1")
    mkdir -p "$(dirname "dev/$1")"
    mknod --mode "$mode" "dev/$1" c $((16#$major)) $((16#$minor))
}

inside() { # FOLDER
    local name path group mount owner
    owner=$(cat "$1/owner")
    cd "$1/root"
    mount --bind . .
    cd "$1/root"
    mount -t proc -o nosuid,nodev,noexec proc proc
    mount -t sysfs -o nosuid,nodev,noexec sysfs sys
    mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
    while read -r group mount; do
        mkdir -p "sys/fs/cgroup${mount#/sys/fs/cgroup}"
        mount --bind "$group" "sys/fs/cgroup${mount#/sys/fs/cgroup}"
    done <"$1/groups"
    mount -t tmpfs -o mode=755,nosuid dev dev
    for name in null zero full random urandom tty fuse net/tun; do device "$name"; done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for name in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${name%:*}" "dev/${name#*:}"; done
    mount -t tmpfs -o mode=1777 shm dev/shm
    mount -t tmpfs -o mode=755 run run
    while read -r path; do
        if [ -d "$path" ]; then mkdir -p ".$path"; else mkdir -p "$(dirname ".$path")" && touch ".$path"; fi
        mount --bind "$path" ".$path"
        mount -o remount,bind,ro ".$path"
    done <"$1/binds"
    mkdir -p root/.cache/pip home/tester/.cache/pip
    [ -z "${CI_RUN:-}" ] || mount --bind "$OUT" out # whoever waits for it reads it while tests run
    mount --bind "$STATE/cache/apt" var/cache/apt/archives
    mount --bind "$STATE/cache/pip-root" root/.cache/pip
    mount --bind "$STATE/cache/pip-user" home/tester/.cache/pip
    hostname fresh
    printf '127.0.0.1 localhost\n127.0.1.1 fresh\n' >etc/hosts
    cp /etc/resolv.conf etc/resolv.conf
    wait_until 15 [ -e sys/class/net/tap0 ] || die "no network"
    mkdir -p .old
    pivot_root . .old
    cd /
    umount --lazy /.old
    rmdir /.old
    groupadd --gid "$USER_ID" tester
    useradd --uid "$USER_ID" --gid "$USER_ID" --no-create-home --shell /bin/bash tester
    cp /etc/skel/.[a-z]* /home/tester/
    [ "$owner" = root ] || chown -R tester:tester /home/tester
    exec /usr/bin/env -i TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /bin/bash -c '. /commands'
}

# What is run there: each line by name, with its time ------------------------------------------------------------

PRELUDE='
set -u
umask 022
cd /home/tester/chaos-harness
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*  # both users use the one copy
owner=$(stat --format %U .)
setpriv --reuid "$owner" --regid "$owner" --init-groups bash -c "git init --quiet && git add --all"  # as after git clone
. /package-settings
as() { # USER COMMAND: as by hand at a terminal of that user
    local started=$SECONDS status=0 home=/home/tester user=$1 path=/usr/local/bin:/usr/bin:/bin
    shift
    [ "$user" = tester ] || home=/root path=/usr/local/sbin:/usr/sbin:/sbin:$path
    echo "fresh: [$user] $*" >&2
    PATH=$path HOME=$home USER=$user LOGNAME=$user setpriv --reuid "$user" --regid "$user" --init-groups bash -c "$*" || status=$?
    echo "fresh: [$user] $*: exit $status after $((SECONDS - started)) s" >&2
    [ "$status" = 0 ] || failed=1
}
failed=0
'

list_source() { # names of what copy_source copies
    if [ -n "${COMMIT:-}" ]; then
        git -C "$ROOT" ls-tree -r --name-only "$COMMIT"
    else
        git -C "$ROOT" ls-files --cached --others --exclude-standard --deduplicate
    fi
}

files_of() { # TEST…: the files of these tests; each has one at least
    local name
    for name in "$@"; do
        list_source | grep -E "^tests/(.*/)?$name[^/]*\.py$" || die "no test file is called $name"
    done | tr '\n' ' '
}

commands() { # USER
    local user=$1 quick engine
    quick=$(files_of $QUICK_TESTS)
    engine=$(files_of $ENGINE_TESTS)
    [ "$user" = root ] || user=tester
    printf '%s' "$PRELUDE"
    [ -z "${PIP_COMPILE:-}" ] || printf 'export PIP_COMPILE=%q\n' "$PIP_COMPILE" # .ci/run says why
    if [ -n "${RUN:-}" ]; then
        printf 'as %s %q\n' "$user" "$RUN"
    elif [ "$RELEASE" != "$(release_of $OLDEST)" ]; then
        printf "as $user %q\n" "make fast EXTRAS='$LIGHT_EXTRAS'"
    elif [ -n "${CI_RUN:-}" ]; then
        printf 'as tester %q\n' "make chaos SCENARIO=spot-evict" "make test ARGS='$quick'"
        printf 'as root %q\n' ".ci/test-twice /out/first.jsonl --planned=/out/planned.jsonl ${TESTS:-}"
    else
        printf "as $user %q\n" "make chaos SCENARIO=spot-evict" "make test"
        [ "$user" = tester ] || printf 'as root %q\n' "make engines" "make image" "CI=true make test ARGS='$engine'"
    fi
    echo 'exit $failed'
}

main() { # the visits, one after the other
    local user users failed=
    need_root
    for program in debootstrap slirp4netns unshare setpriv pivot_root flock tar git; do
        command -v "$program" >/dev/null || die "$program is not installed; run engines/provision.sh fresh"
    done
    mkdir -p "$STATE"
    remove_stale
    exec 9>"$STATE/base.lock"
    flock 9
    for RELEASE in $([ -z "${ONLY_BASE:-}" ] || release_of $NEWEST) "$(release_of "$WANTED_PYTHON")"; do
        BASE=$(base)
    done
    exec 9>&-
    [ -z "${ONLY_BASE:-}" ] || return 0
    users=${ONLY:-root user}
    [ -z "${CI_RUN:-}" ] || users=both
    for user in $users; do
        visit "$user" "$(commands "$user")" || failed+=" $user"
    done
    [ -z "$failed" ] || { say "failed:$failed"; exit 1; }
    say "all passed"
}

arguments() { # exports what was asked for
    unset CI_RUN OUT TESTS ONLY ONLY_BASE COMMIT RUN
    case ${PYTHON:-} in # what `make` calls by this name may be a path
        3.*) export WANTED_PYTHON=$PYTHON ;;
        *) export WANTED_PYTHON=$OLDEST ;;
    esac
    unset PYTHON
    while [ $# -gt 0 ]; do
        case $1 in
            --base) export ONLY_BASE=yes ;;
            --ci) export CI_RUN=yes OUT=$(readlink -m "${2:?which folder?}") && mkdir -p "$OUT"; shift ;;
            --out) export OUT=${2:?which folder?}; shift ;;
            --tests) export TESTS=${2-}; shift ;;
            --only) case ${2:-} in root | user) export ONLY=$2 ;; *) die "--only: write root or user" ;; esac; shift ;;
            --commit) git -C "$ROOT" rev-parse --verify --quiet "${2:-}^{commit}" >/dev/null || die "unknown commit '${2:-}'"; export COMMIT=$2; shift ;;
            --run) export RUN=${2:?which command?}; shift ;;
            *) die "unknown option '$1'; choose from: --base, --ci FOLDER, --tests ARGUMENTS, --only root|user, --commit REV, --run COMMAND and --out FOLDER" ;;
        esac
        shift
    done
}

case ${1:-} in
    _main) main ;;
    _machine) machine "$2" ;;
    _inside) inside "$2" ;;
    _remove) remove "$2" ;;
    *)
        arguments "$@"
        exec timeout --foreground --kill-after 20 "$FULL_S_MAX" setpriv --pdeathsig KILL "$SELF" _main
        ;;
esac
