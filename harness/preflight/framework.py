"""Loads a checkpoint with the framework that wrote it, in a process with limits of time and memory.

Checkpoints are loaded only on request, because loading may run code: the metadata of a distributed checkpoint are a
pickle."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

from harness.preflight import framework_child
from harness.preflight.verification import Save, State
from harness.trainers.checkpoints.shared.formats import METADATA, SUFFIXES

LIMIT_S, BYTES_A_SECOND = 120, 20 * 2**20
MEMORY_BYTES, TIMES_SIZE = 16 * 2**30, 4  # torch alone maps some GiB
ANSWER_BYTES_MAX = 2**20


def load(save: Save, root: pathlib.Path, files: Sequence[str], python: str) -> None:
    """Loads the files of a checkpoint with their frameworks, and stores the result in `save`. The paths in `files` are
    relative to `root`."""
    jobs = [{"kind": kind, "path": str(root / path)} for file in files for kind, path in [_job(file)] if kind]
    limit_s = LIMIT_S + save.bytes // BYTES_A_SECOND
    command = [python, "-I", framework_child.__file__, str(MEMORY_BYTES + TIMES_SIZE * save.bytes)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    asked, ended = "".join(f"{json.dumps(job)}\n" for job in jobs).encode(), "its process ended early"
    with tempfile.TemporaryFile() as told:
        try:
            subprocess.run(
                command, input=asked, stdout=told, stderr=subprocess.DEVNULL, env=environment, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            ended = f"not done after {limit_s} s"
        except OSError as error:
            ended = f"{python}: {error.strerror}"
        told.seek(0)
        answers = _answers(told.read(ANSWER_BYTES_MAX))
    results = [answers.get(job["path"], ("not tried", ended)) for job in jobs] or [("not tried", "no file to load")]
    if answers.keys() < {job["path"] for job in jobs}:
        save.find(State.UNKNOWN, f"its own framework gave no answer: {ended}")
    for job, (loaded, why) in zip(jobs, results, strict=False):
        if loaded == "no":
            save.find(State.DAMAGED, f"its own framework does not load it: {why}", os.path.relpath(job["path"], root))
    loaded, why = min(results, key=lambda result: ("no", "not tried", "yes").index(result[0]))
    save.loaded = f"{loaded}: {why}" if loaded == "not tried" else loaded


def _job(file: str) -> tuple[str, str]:
    if file.endswith(f"/{METADATA}"):
        return "dcp", file.rpartition("/")[0]
    kind = "torch" if file.endswith(SUFFIXES) else "safetensors" if file.endswith(".safetensors") else ""
    return kind, file


def _answers(text: bytes) -> dict[str, tuple[str, str]]:
    """Parses the results that the loading process printed, and ignores all other lines of output."""
    found = {}
    for line in text.splitlines():
        try:
            told = json.loads(line)
            if told["loaded"] in ("yes", "no", "not tried"):
                found[str(told["path"])] = told["loaded"], str(told["why"])
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return found
