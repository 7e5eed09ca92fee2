"""Lists every external program that this project or its tests call, with its Debian package and its purpose.

The list is used by `chaos doctor`, by the tests and by `engines/provision.sh`, which runs this file as a script:

    python3 harness/programs.py GROUP…      prints the packages of these groups that have to be installed.

This file imports no module of ours, so that it runs as a script. A test fails if code calls a program not listed here.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass

GROUPS = {
    "base": "part of every Debian",
    "setup": "the two commands of the README",
    "tests": "tests, and clocks of nodes",
    "browser": "tests of the report in a browser",
    "monitoring": "tests of metrics and alerts with a Prometheus of their own",
    "docker": "a Docker engine of our own",
    "slurm": "a Slurm of our own",
    "kubernetes": "a Kubernetes of our own",
    "fresh": "`make fresh`",
}


@dataclass(frozen=True)
class Program:
    name: str
    package: str
    use: str
    groups: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} is not installed or not on PATH (Debian package {self.package}): {self.use}"


def _base(package: str, names: str, use: str) -> list[Program]:
    return [Program(name, package, use, ("base",)) for name in names.split()]


_ALL = [
    *_base("apt", "apt-config apt-get", "install packages"),
    *_base("bash", "bash", "runs the engines' scripts"),
    *_base("dash", "sh", "runs one line of shell"),
    *_base("coreutils", "base64 basename cat chmod chown cp dirname head id ln mkdir mknod", "handle files"),
    *_base("coreutils", "mktemp mv readlink rm rmdir seq sort stat tail touch tr", "handle files"),
    *_base("coreutils", "env sleep timeout true", "stand in for a trainer, and limit time"),
    *_base("coreutils", "nice", "lets daemons come before the jobs on a busy host"),
    *_base("dpkg", "dpkg-deb dpkg-query", "unpack a package; tell which ones are installed"),
    *_base("findutils", "find xargs", "find files"),
    *_base("grep", "grep", "searches text"),
    *_base("hostname", "hostname", "names a machine of its own"),
    *_base("mawk", "awk", "reads tables of the kernel"),
    *_base("mount", "mount umount", "mount and unmount"),
    *_base("passwd", "groupadd useradd", "makes an ordinary user"),
    *_base("sed", "sed", "changes text"),
    *_base("systemd", "systemctl", "keeps installed daemons from starting"),
    *_base("tar", "tar", "packs a system into an image"),
    *_base("util-linux", "flock nsenter pivot_root setpriv setsid unshare", "namespaces, users, locks"),
    Program("python3", "python3", "runs everything", ("setup",)),
    Program("make", "make", "sets everything up", ("setup",)),
    Program("git", "git", "tells what belongs to the project, and a commit", ("setup", "fresh")),
    Program("ip", "iproute2", "networks of nodes; tests look at them", ("tests", "slurm", "kubernetes")),
    Program("tc", "iproute2", "tests look at network queues with it", ("tests",)),
    Program("nft", "nftables", "tests look at packet rules with it", ("tests",)),
    Program("cc", "gcc", "builds the library that gives a node a clock of its own", ("tests",)),
    Program("gcc", "gcc", "the same, where there is no cc", ("tests",)),
    Program("chromium", "chromium", "the browser that tests open reports in", ("browser",)),
    Program("prometheus", "prometheus", "scrapes the metrics of a job, and fires alerts", ("monitoring",)),
    Program("promtool", "prometheus", "checks metrics and alert rules", ("monitoring",)),
    Program("prometheus-alertmanager", "prometheus-alertmanager", "hands alerts on to a game day", ("monitoring",)),
    Program("docker", "docker.io", "builds the image of nodes", ("docker", "kubernetes")),
    Program("dockerd", "docker.io", "runs nodes as containers", ("docker",)),
    Program("runc", "runc", "starts the containers", ("docker",)),
    Program("iptables", "iptables", "the containers' network", ("docker", "kubernetes")),
    Program("curl", "curl", "asks the engine whether it is up", ("docker", "kubernetes")),
    Program("debootstrap", "debootstrap", "makes a minimal Debian", ("docker", "fresh")),
    *(
        Program(name, "slurm-wlm", "runs nodes as those of a Slurm cluster", ("slurm",))
        for name in ("sbatch", "scancel", "scontrol", "sinfo", "slurmctld", "slurmd", "squeue", "srun")
    ),
    Program("munged", "munge", "lets the machines of the cluster trust each other", ("slurm",)),
    Program("tini", "tini", "is process 1 of a machine of the cluster", ("slurm",)),
    Program("go", "golang-1.19-go", "builds it", ("kubernetes",)),
    Program("dpkg-source", "dpkg-dev", "unpacks its source", ("kubernetes",)),
    Program("openssl", "openssl", "makes its keys; a certificate for a test", ("tests", "kubernetes")),
    Program("etcd", "etcd-server", "keeps its state", ("kubernetes",)),
    Program(
        "slirp4netns", "slirp4netns", "connects the minimal system without a change of this host's network", ("fresh",)
    ),
]
PROGRAMS = {program.name: program for program in _ALL}
COMPILERS = ("cc", "gcc", "clang")  # any of them will do
PROGRAMS["clang"] = Program("clang", "clang", "the same, where there is no gcc", ())
PROGRAMS["patch"] = Program("patch", "patch", "applies the fix of a bug that no release has", ())
# What has no program of its own: headers for the compiler, letters for the browser.
FURTHER_PACKAGES = {"tests": ("libc6-dev",), "browser": ("fonts-dejavu-core",)}


def missing(names: Iterable[str]) -> list[Program]:
    """Returns the named programs that this machine lacks. Raises `KeyError` for a name that is not in `PROGRAMS`."""
    return [program for program in map(PROGRAMS.__getitem__, names) if shutil.which(program.name) is None]


def members(group: str) -> list[str]:
    return [program.name for program in PROGRAMS.values() if group in program.groups]


def packages(groups: Iterable[str]) -> list[str]:
    """Returns the Debian packages that groups need: packages of missing programs, and others such as fonts."""
    wanted: dict[str, None] = {}
    for group in groups:
        wanted |= dict.fromkeys(program.package for program in missing(members(group)))
        wanted |= dict.fromkeys(FURTHER_PACKAGES.get(group, ()))
    return list(wanted)


if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in GROUPS]:
        sys.exit(f"unknown group '{unknown[0]}'; choose from: {', '.join(GROUPS)}")
    print("\n".join(packages(sys.argv[1:])))
