#!/bin/bash
# Builds the image that Docker nodes run. Needs no registry: where BASE_IMAGE is not given, the base is this
# host's own distribution; Python packages come from a wheelhouse that pip fills on the host.
#   BASE_IMAGE=…  another base (CUDA, for instance)     IMAGE=…  another name than chaos-node
#   WHEELHOUSE=no packages are installed by pip inside the build (their index must be reachable there)
. "$(dirname "$0")/common.sh"

ROOT=$(cd "$(dirname "$0")/.." && pwd)
IMAGE=${IMAGE:-chaos-node}
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
PACKAGES=(torch numpy fsspec nvidia-ml-py)
BASE_PACKAGES=python3,python3-venv,iproute2,nftables,procps,ca-certificates

command -v docker >/dev/null || die "no docker command; run engines/provision.sh docker"
if [ -z "${DOCKER_HOST:-}" ] && "$(dirname "$0")/docker.sh" status 2>/dev/null; then
    DOCKER_HOST=$("$(dirname "$0")/docker.sh" host)
    export DOCKER_HOST
fi
docker version >/dev/null || die "no Docker daemon answers; run engines/docker.sh start"

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

build_base() { # NAME: a minimal system of this host's own release
    need_root
    command -v debootstrap >/dev/null || die "no debootstrap; run engines/provision.sh docker, or give BASE_IMAGE"
    local codename mirror
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(mirror_of "$codename")
    [ -n "$mirror" ] || die "no package source for $codename on this host; give BASE_IMAGE"
    say "base image from $codename packages"
    debootstrap --variant=minbase --include="$BASE_PACKAGES" "$codename" "$WORK/base" "$mirror" >"$WORK/debootstrap.log" ||
        { tail -n 20 "$WORK/debootstrap.log" >&2; die "debootstrap failed"; }
    (cd "$WORK/base" && rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/* usr/share/{doc,man,locale,info,lintian}/*)
    # The mirror is the host's business, not the image's.
    rm -f "$WORK/base/etc/apt/sources.list"
    tar -C "$WORK/base" --numeric-owner -c . | docker import --change 'CMD ["sh"]' - "$1" >/dev/null
    rm -rf "$WORK/base"
}

fill_wheelhouse() { # DIRECTORY: kept between builds, since PyTorch is large
    mkdir -p "$1"
    [ "${WHEELHOUSE:-yes}" = no ] && return
    local version wanted kept
    version=$(docker run --rm --network none "$BASE_IMAGE" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
        die "$BASE_IMAGE has no python3; build with WHEELHOUSE=no to have it installed"
    wanted="$version ${PACKAGES[*]} $(cat "$ROOT/constraints.txt")"
    kept=${CHAOS_ENGINES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/chaos-engines}/wheels
    if [ "$(cat "$kept/.wanted" 2>/dev/null)" != "$wanted" ]; then
        say "downloading wheels for Python $version"
        rm -rf "$kept" && mkdir -p "$kept"
        "$PYTHON" -m pip download -qq --disable-pip-version-check --only-binary :all: --python-version "$version" \
            --constraint "$ROOT/constraints.txt" --dest "$kept" "${PACKAGES[@]}" >&2
        echo "$wanted" >"$kept/.wanted"
    fi
    cp "$kept"/*.whl "$1"
}

if [ -z "${BASE_IMAGE:-}" ]; then
    BASE_IMAGE=chaos-base
    have_image "$BASE_IMAGE" || build_base "$BASE_IMAGE"
fi

CONTEXT=$WORK/context
mkdir -p "$CONTEXT"
fill_wheelhouse "$CONTEXT/wheels"
(cd "$ROOT" && find reference_trainer -name '*.py' -print0 | sort -z | xargs -0 cp --parents --target-directory "$CONTEXT")
cp "$ROOT/constraints.txt" "$CONTEXT"
trainer_digest=$(cd "$ROOT" && "$PYTHON" -c 'from harness.backends.delivery import trainer_digest; print(trainer_digest())')

# The classic builder is enough, and BuildKit's client may be absent.
docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0
docker build --quiet --network host --file "$ROOT/image/Dockerfile" --tag "$IMAGE" \
    --build-arg "BASE_IMAGE=$BASE_IMAGE" --label "chaos.trainer=$trainer_digest" "$CONTEXT" >/dev/null 2>"$WORK/build.log" ||
    { cat "$WORK/build.log" >&2; die "the image could not be built"; }
say "$IMAGE: $(docker image inspect --format '{{.Size}}' "$IMAGE" | awk '{printf "%.0f MB", $1 / 1e6}')"
