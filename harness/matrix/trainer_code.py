"""Identifies the version of the trainer's code. The results of a stopped sweep (restarts from several saves) are used
only if the trainer's code has not changed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterator

from harness.backends.contract import Backend
from harness.plan.run_plan import Plan
from harness.run import provenance
from harness.trainers.shared import outcome_inputs

FACTS = ("source_digest", "trainer_commit", "trainer_diff", "data_digest", "image_digest")
FILES_MAX, FOLDERS_MAX = 5000, 5000  # most of a trainer that are looked at
SCRIPTS = (".py", ".sh", ".bash")
NO_CODE = {"plan.json", "pyvenv.cfg"}  # files of a folder that holds a run, or the packages of others
CODE_UNKNOWN = (
    "this sweep is one of before, and no file of the trainer's code is known: name its files under digest:, or remove "
    "the sweep's folder if the code has changed"
)


def code_of(plan: Plan, backend: Backend) -> dict[str, str]:
    """Returns the commit and digests of the trainer's code. The digest `files` covers all Python files in the trainer's
    folders."""
    facts = provenance.facts(plan, backend)
    return {name: str(facts[name]) for name in FACTS if name in facts} | {"files": _digest(plan)}


def is_known(plan: Plan, code: dict[str, str]) -> bool:
    return "image_digest" in code or outcome_inputs.code_of(plan.workload.trainer) is not None


def _digest(plan: Plan) -> str:
    scripts = (file for file in plan.workload.trainer.files() if file.suffix in SCRIPTS)
    folders = {*plan.launch().sources, *(str(file.resolve().parent) for file in scripts)}
    found = hashlib.sha256()
    for path in itertools.islice((path for folder in sorted(folders) for path in _python_files(folder)), FILES_MAX):
        with contextlib.suppress(OSError):
            found.update(f"{path}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _python_files(folder: str) -> Iterator[pathlib.Path]:
    for place, folders, names in itertools.islice(os.walk(folder), FOLDERS_MAX):
        if not NO_CODE.isdisjoint(names):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (pathlib.Path(place, name) for name in sorted(names) if name.endswith(".py"))
