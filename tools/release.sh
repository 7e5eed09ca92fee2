#!/bin/bash
# A release of the commit that is checked out. Pushes and publishes nothing. `make release` calls it:
#   tools/release.sh ready           refuses a dirty tree, a tag that exists, and a changelog that does not fit
#   tools/release.sh ready v1.0.0    the same for a commit that has its tag: refuses a tag of another version
#   tools/release.sh build           dist/: wheel and source archive, made twice from the commit; their bytes must be equal
#   tools/release.sh verify          twine check, and dist/*.cdx.json: the core dependencies as CycloneDX
#   tools/release.sh tag             the annotated tag
# PYTHON must have what tools/release.txt names; `build` needs setuptools alone.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
die() { echo "release: $*" >&2; exit 1; }

ready() {
    [ -z "$(git status --porcelain)" ] || die "the working tree has changes that are not committed"
    if [ -n "${1:-}" ]; then
        [ "$1" = "v$version" ] || die "the tag is $1, and pyproject.toml has version $version"
    elif git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
        die "the tag v$version exists; raise the version in pyproject.toml"
    fi
    grep -Eq "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
        die "CHANGELOG.md has no section [$version] with a date"
    [ -z "$(sed -n '/^## \[Unreleased\]$/,/^## \[[0-9]/{/^## /d;/./p}' CHANGELOG.md)" ] ||
        die "CHANGELOG.md has lines under [Unreleased]; move them to [$version]"
}

# In a folder: the source archive, and the wheel that is made from it.
both() {
    local into=$1 archive name
    mkdir -p "$into/source" "$into/dist"
    git archive HEAD | tar -x --no-same-permissions -C "$into/source"
    archive=$(cd "$into/source" && "$PYTHON" -c 'from setuptools import build_meta; print(build_meta.build_sdist("../dist"))' | tail -n 1)
    name=${archive%.tar.gz}
    # setuptools writes the time of the build into the archive.
    tar -xzf "$into/dist/$archive" -C "$into"
    tar --sort=name --format=pax --pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f \
        --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$into" -c "$name" |
        gzip -9 --no-name >"$into/dist/$archive"
    (cd "$into/$name" && "$PYTHON" -c 'from setuptools import build_meta; build_meta.build_wheel("../dist")') >/dev/null
}

build() {
    work=$(mktemp -d)
    exec 3>&2 # the trap also runs where standard error goes to the log
    trap '[ $? = 0 ] || cat "$work/log" >&3; rm -rf "$work"' EXIT
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    both "$work/first" 2>"$work/log"
    both "$work/second" 2>"$work/log"
    diff -r "$work/first/dist" "$work/second/dist" >&2 || die "two builds of one commit differ"
    rm -rf dist
    cp -r "$work/first/dist" dist
    (cd dist && sha256sum -- *)
}

verify() {
    "$PYTHON" -m twine check --strict dist/*.whl dist/*.tar.gz
    "$PYTHON" -m cyclonedx_py requirements --output-reproducible --pyproject pyproject.toml \
        --output-file "dist/chaos_harness-$version.cdx.json" requirements.txt
}

tag() {
    ready
    git tag --annotate "v$version" --message "chaos-harness $version"
    echo "The tag v$version is made; publish it with: git push origin v$version"
}

case ${1:-} in
ready | build | verify | tag) "$@" ;;
*) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit 2 ;;
esac
