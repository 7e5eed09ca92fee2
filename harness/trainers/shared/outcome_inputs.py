"""What decides the outcome of a fault-free run: the workload with its data and source, and this machine."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import sysconfig
from typing import Any

from harness.node.emitter import nvml
from harness.trainers.contract import Workload
from harness.trainers.shared import checkout


def write_data(workload: Workload, run_dir: pathlib.Path) -> None:
    """The shards of a run's own training data: the same on every run with the same Python."""
    if not workload.data or (run_dir / "data").exists():  # a copy of another run's
        return
    text = _text()
    size = -(-len(text) // workload.data.shards)
    (run_dir / "data").mkdir()
    for number, start in enumerate(range(0, len(text), size)):
        (run_dir / "data" / f"shard-{number:03d}.txt").write_bytes(text[start : start + size])


def data_digest() -> str:
    """Of the data that `write_data` writes, whatever the number of shards."""
    return hashlib.sha256(_text()).hexdigest()[:16]


def _text() -> bytes:
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"".join(file.read_bytes() for file in files)


def outcome_digest(workload: Workload, seed: int, backend: str) -> str:
    """Names what decides a fault-free run bit for bit: workload, seed, trainer source, torch, Python, CPU, backend."""
    source = hashlib.sha256()
    for file in workload.trainer.files():
        with file.open("rb") as content:  # a word of a command may name a large one
            source.update(file.name.encode() + b"\0" + hashlib.file_digest(content, "sha256").digest())
    decides = {
        "workload": workload.to_json(),
        "seed": seed,
        "backend": backend,
        "source": source.hexdigest(),
        "torch": _version("torch"),
        "python": sys.version,
        "machine": [platform.machine(), _cpu_model()],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def environment_facts() -> dict[str, Any]:
    """Machine, moment and commit of a run, for its report. No host name, no path, no environment variable."""
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        **nvml.facts(),
        "harness": _version("chaos-harness"),
        "begun_at": datetime.datetime.now(datetime.UTC).isoformat(),
        **({"commit": commit} if (commit := checkout.commit_of(pathlib.Path.cwd())) else {}),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
