"""Finds everything that decides a fault-free run's results: the workload with its data and code, and this machine."""

import datetime
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from typing import Any

from harness.node.emitter import nvml
from harness.trainers.contract import Trainer, Workload
from harness.trainers.shared import checkout

MODULES_MAX = 2000
ENTRIES_MAX = 10_000  # of a folder
DEPTH_MAX = 4  # of packages in packages
_SCRIPTS = (".py", ".sh", ".bash")  # one of a shell may start a Python script beside it: "$(dirname "$0")/train.py"
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|(?:ba|da|k|z)?sh|env|torchrun|accelerate|deepspeed")


def write_data(workload: Workload, run_dir: pathlib.Path) -> None:
    """Writes the shards of a run's training data, which are equal in every run with the same Python."""
    if not workload.data or (run_dir / "data").exists():  # a copy of another run's
        return
    text = _text()
    size = -(-len(text) // workload.data.shards)
    (run_dir / "data").mkdir()
    for number, start in enumerate(range(0, len(text), size)):
        (run_dir / "data" / f"shard-{number:03d}.txt").write_bytes(text[start : start + size])


def data_digest() -> str:
    return hashlib.sha256(_text()).hexdigest()[:16]


def _text() -> bytes:
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"".join(file.read_bytes() for file in files)


def outcome_digest(workload: Workload, seed: int, backend: str) -> str:
    """Returns a digest of all that decides a fault-free run's results, such as workload, seed, code, torch and CPU."""
    decides = {
        "workload": workload.to_json(),
        "seed": seed,
        "backend": backend,
        "source": source_digest(workload.trainer),
        "torch": _version("torch"),
        "python": sys.version,
        "machine": [platform.machine(), _cpu_model()],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def source_digest(trainer: Trainer) -> str:
    source = hashlib.sha256()
    for file in _sources(trainer.files()):
        with file.open("rb") as content:  # a word of a command may name a large one
            source.update(file.name.encode() + b"\0" + hashlib.file_digest(content, "sha256").digest())
    return source.hexdigest()[:16]


def code_of(trainer: Trainer) -> pathlib.Path | None:
    """Returns the file with the trainer's code: preferably a Python script, else a shell script, else another program.
    Returns `None` if the command names only interpreters and launchers; changes of the code are then not noticed."""
    files = trainer.files()
    scripts = (file for suffix in _SCRIPTS for file in files if file.suffix == suffix)
    programs = (file for file in files if os.access(file, os.X_OK) and not _INTERPRETER.fullmatch(file.name))
    own = (file for file in programs if not (file.parent.parent / "pyvenv.cfg").exists())
    return next(itertools.chain(scripts, own), None)


def _sources(named: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    folders = dict.fromkeys(file.resolve().parent for file in named if file.suffix in _SCRIPTS)
    modules = itertools.islice((path for folder in folders for path in _modules(folder, DEPTH_MAX)), MODULES_MAX)
    return list(dict.fromkeys([*named, *modules]))


def _modules(folder: pathlib.Path, depth: int) -> Iterator[pathlib.Path]:
    """Yields the Python files below a folder. Skips subfolders without an `__init__.py`, such as output folders."""
    with os.scandir(folder) as entries:
        found = sorted(itertools.islice(entries, ENTRIES_MAX), key=lambda entry: entry.name)
    for entry in found:
        path = pathlib.Path(entry.path)
        if entry.name.endswith(".py") and entry.is_file():
            yield path
        elif depth and entry.is_dir() and (path / "__init__.py").is_file():
            yield from _modules(path, depth - 1)


def environment_facts() -> dict[str, Any]:
    """Returns machine, versions, start time and commit of a run, but no host name, path or environment variable."""
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
