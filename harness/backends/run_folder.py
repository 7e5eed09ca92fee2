"""Names the files of a run's folder, and the folders in it that a node may write.

A backend mounts the whole folder read-only into a node, except for the files and folders that the node may write. The
following table shows who writes which files:

    plan.json  undo.jsonl  key  holds.json  holds/  damage/  clock/  gpu/  rdma/  data/  kept/
                                               the harness; nodes only read
    delivered.zip                              what runs on a node and what a trainer imports; nodes only read
    events/harness.jsonl  logs/                the harness
    events/<node>/  logs/<node>….log           that node (`control` is the control host)
    answers/<node>/                            that node: claims of planned faults, answers to orders
    recorded/                                  the harness: file operations of nodes in the folders of `Launch.recorded`
    checkpoints/ and whatever folder a command names as `{run_dir}/<folder>`   the nodes that run this command
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
from collections.abc import Sequence

from harness.backends import delivery
from harness.backends.contract import Launch
from harness.errors import UsageError
from harness.log import untrusted_files
from harness.node import gpu_health, rdma, skew
from harness.node.node_paths import ANSWERS, EVENTS, KEY_ENV, LOGS, answers_of, environment, events_of, log_of

CONTROL = "control"
CHECKPOINTS = "checkpoints"
RECORDS = "recorded"
# Made by the harness; nodes read them.
FOR_NODES = ("holds.json", "holds", "damage", "clock", gpu_health.FOLDER, rdma.FOLDER, "data", delivery.NAME)
KEY = "key"
_TAKEN = {KEY, EVENTS, LOGS, ANSWERS, *FOR_NODES, "kept", "slurm", "drill", "second-restart", "fault-free", "twin"}
_TAKEN |= {RECORDS}

_NAMED = re.compile(r"\{run_dir\}/([A-Za-z0-9_][A-Za-z0-9_.-]*)")

Owner = tuple[int, int]  # user and group

__all__ = ["ANSWERS", "EVENTS", "LOGS", "answers_of", "environment", "events_of", "log_of"]


def folders_of(workload: Launch, node: str) -> tuple[str, ...]:
    """Returns the folders in the run's folder that this node may write: the folders in the node's command and, unless
    `node` is the control host, the checkpoints and mounts."""
    command = (workload.control or ()) if node == CONTROL else workload.command
    named = [name for word in command for name in _NAMED.findall(word)]
    always = [] if node == CONTROL else [CHECKPOINTS, *(mount.split("/")[0] for mount in workload.mounts)]
    return tuple(
        name
        for name in dict.fromkeys([*always, *named])
        if not (name in _TAKEN or name.startswith(("calibration-", "resumed-")))
    )


def writable(workload: Launch, node: str, key: str) -> list[str]:
    """Returns all paths in the run's folder that a node may write; `key` is the node with its incarnation."""
    return [events_of(node), answers_of(node), log_of(key), *folders_of(workload, node)]


def prepare(run_dir: pathlib.Path, workload: Launch, nodes: Sequence[str], owner: Owner | None = None) -> None:
    """Makes the run's folder, with all that nodes need at their start. Folders that nodes may write get the owner
    `owner`. Raises `UsageError` if `run_dir` is a relative path, which nodes could not find."""
    if not run_dir.is_absolute():
        raise UsageError(f"run directory {str(run_dir)!r}: an absolute path is needed")
    run_dir.mkdir(parents=True, exist_ok=True)
    delivery.deliver(run_dir)
    with contextlib.suppress(FileExistsError):
        key = os.open(run_dir / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(key, "w") as file:
            file.write(secrets.token_hex(32))
    for name in (EVENTS, LOGS, ANSWERS):
        untrusted_files.make_folder(run_dir, name)
    for node in nodes:
        for name in (events_of(node), answers_of(node), *folders_of(workload, node)):
            untrusted_files.make_folder(run_dir, name, owner)
    for mount in workload.mounts:
        untrusted_files.make_folder(run_dir, mount, owner)
    skew.make_offsets(run_dir, nodes)
    gpu_health.make_states(run_dir, nodes, workload.ranks_per_node)
    if owner is not None:
        # What the harness has put there for nodes can be read by their user, whatever the caller's umask is.
        trees = [tree for name in FOR_NODES for tree in ((run_dir / name), *(run_dir / name).rglob("*"))]
        for path in (run_dir, *trees):
            if path.exists() and not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def key_of(run_dir: pathlib.Path) -> dict[str, str]:
    return {KEY_ENV: untrusted_files.read(run_dir, KEY, 1024).decode()}


def prepare_log(run_dir: pathlib.Path, key: str, owner: Owner | None = None) -> None:
    """Makes a node's log file in advance, so that the node needs no right to write to the folder of logs."""
    descriptor = untrusted_files.open_file(run_dir, log_of(key), os.O_WRONLY | os.O_CREAT)
    try:
        if owner is not None:
            os.fchown(descriptor, *owner)
    finally:
        os.close(descriptor)
