"""Starts scripts as the harness does, observed or not, and reads what the observer told."""

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from event_files import WriterLog, read_log
from machine import CHILDREN

from harness.backends import delivery
from harness.node.boot import OBSERVE_ENV, with_delivered

LIMIT_S = 250


def environment(folder: pathlib.Path, observed: bool = True, **more: str) -> dict[str, str]:
    """Of a command whose events lie in `folder/events`; what watches it comes from the delivered archive."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("CHAOS_", "PYTHON"))}
    plain |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": CHILDREN, **more}
    if not observed:
        return with_delivered(plain, str(delivery.deliver(folder)))
    plain |= {"CHAOS_EVENTS": str(folder / "events"), "CHAOS_NODE": "node0", OBSERVE_ENV: "auto"}
    return with_delivered(plain, str(delivery.deliver(folder)))


def start(words: Sequence[str], env: Mapping[str, str], folder: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate()
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return process.returncode, out, err


def run(words: Sequence[str], env: Mapping[str, str], folder: pathlib.Path) -> tuple[int, str, str]:
    return finish(start(words, env, folder))


def run_ranks(
    script: str, folder: pathlib.Path, ranks: int, observed: bool = True, **more: str
) -> list[tuple[int, str, str]]:
    """The script once for each rank, as a launcher starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    started = [
        start(
            ["-c", script], environment(folder, observed, RANK=str(rank), LOCAL_RANK=str(rank), **job, **more), folder
        )
        for rank in range(ranks)
    ]
    return [finish(process) for process in started]


def logs(folder: pathlib.Path) -> list[WriterLog]:
    return read_log(folder) if folder.is_dir() else []


def events(folder: pathlib.Path, name: str) -> list[dict[str, Any]]:
    """All events of this name in the only trainer's log there."""
    trainers = [log for log in logs(folder) if log.header["role"] == "trainer"]
    assert len(trainers) == 1, [log.header for log in trainers]
    return [event for event in trainers[0].events if event["event"] == name]


def expanded(*steps: Mapping[str, Any]) -> list[int]:
    """The samples of these steps, one by one."""
    runs = [run for step in steps for run in step["samples"]]
    return [run[0] + at * (run[2] if len(run) > 2 else 1) for run in runs for at in range(run[1])]
