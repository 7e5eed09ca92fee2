"""Finds the wings (optional parts of the harness, such as game days) by the file `wing.py` in their folders.

A wing can store results of its own, such as that of a game day. The list of runs, `chaos show` and `chaos score`
recognize a wing's result by a file in the result's folder. A wing can define kinds of YAML files, each with a top-level
key by which `chaos validate` recognizes it. A wing's results can answer questions of the pre-launch checklist. Apart
from its own code, only the list of commands names a wing.
"""

import contextlib
import enum
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from harness.backends.contract import Backend
from harness.judge.verdict import Verdict
from harness.plan.run_plan import Plan
from harness.plugins import Family
from harness.report.run_report import Report, read_regular
from harness.report.section import Section
from harness.run.stop import StopRequest
from harness.trainers.contract import build_trainer

_FAMILY = Family("wing", "harness", "WING", part="wing")


class Part(NamedTuple):
    """One part of a stored result, such as a rehearsal of a game day."""

    name: str
    verdict: Verdict | None  # `None`: not judged
    reasons: Sequence[str]


@dataclass(frozen=True)
class Result:
    verdict: Verdict
    reasons: Sequence[str]
    parts: Sequence[Part]
    next_steps: Sequence[str] = ()


class StoredKind(Protocol):
    """A kind of stored result of several runs, such as a game day. `report` is the name of the result's file."""

    report: str

    def is_in(self, folder: pathlib.Path) -> bool:
        """Returns True if this folder holds a result of this kind, judged or not."""

    def read(self, folder: pathlib.Path) -> Result:
        """Reads the result in a folder. Raises `ReportError` if the result was not judged, or cannot be read."""

    def values(self, folder: pathlib.Path) -> Any:
        """Returns the result in a folder as JSON data."""

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        """Judges a stored result again from its event logs. Returns the new result, and a function that writes
        reports."""


@dataclass(frozen=True)
class FileKind:
    """A kind of YAML file that users write and `chaos validate` checks.

    `key` is a top-level key that only files of this kind have; `folder` is the usual folder's name. `check` takes the
    paths of a file and of the scenarios' folder, and returns a summary. `check` raises `UsageError` with all mistakes
    in the file.
    """

    name: str
    key: str
    folder: str
    check: Callable[[pathlib.Path, pathlib.Path], str]


class Item(enum.StrEnum):
    RESUMES = "checkpoints resume"
    DATA = "data balanced"
    DRY_RUN = "dry run done"
    ALERTS = "monitoring delivers alerts"
    GATE = "gate green on this commit"
    GAME_DAY = "game day held"
    RUNBOOKS = "runbooks linked"
    CLUSTER = "cluster fit"


class Proof(NamedTuple):
    """The answer that a stored result gives to a question of the pre-launch checklist.

    `at_s` is the time of the result in seconds since 1970. `commits` holds the commits of the tested project in the
    result's runs, and `trainers` the trainers' names, if known.
    """

    item: Item
    verdict: Verdict
    words: str
    folder: pathlib.Path
    at_s: float
    commits: frozenset[str]
    trainers: frozenset[str]


class Swept(NamedTuple):
    """The result of a sweep (many restarts of a job from its checkpoints). `run_id` is the report's folder name."""

    run_id: str
    verdict: Verdict
    reasons: Sequence[str]


# Runs a job many times by its plan, in the folder of reports, and judges the runs. The function hears remarks for the
# user; the flag says that a complete sweep is judged again instead of run. Raises `ChaosError` if it cannot be run.
Sweep = Callable[[Plan, pathlib.Path, Backend, StopRequest, Callable[[str], None], bool], Swept]


@dataclass(frozen=True)
class Wing:
    stored: Sequence[StoredKind] = ()
    files: Sequence[FileKind] = ()
    sweeps: Mapping[str, Sweep] = field(default_factory=dict)  # by its word in a suite
    proofs: Callable[[pathlib.Path], Iterator[Proof]] = lambda reports: iter(())  # proofs of the results stored there
    section: Callable[[Report], Section | None] = lambda report: None  # section of a run's report


def wings() -> Iterator[Wing]:
    return (_FAMILY.load(name) for name in _FAMILY.names())


def sections_of(report: Report) -> list[Section]:
    return [section for wing in wings() if (section := wing.section(report))]


def sweep_of(name: str) -> Sweep:
    return next(wing.sweeps[name] for wing in wings() if name in wing.sweeps)


def latest_s() -> float:
    """Returns the latest plausible time of a stored result: in a minute, because a file server's clock may be ahead."""
    return time.time() + 60.0


def newest(reports: pathlib.Path, name: str) -> Iterator[tuple[pathlib.Path, float]]:
    """Yields each folder with a file `name`, and the time of this file's last change, the newest first."""
    found = []
    for path in reports.glob(f"*/{name}"):
        with contextlib.suppress(OSError):
            if (at_s := path.stat(follow_symlinks=False).st_mtime) <= latest_s():
                found.append((at_s, path.parent))
    return ((folder, at_s) for at_s, folder in sorted(found, reverse=True))


class _Planned(msgspec.Struct):
    workload: dict[str, object]


def trainers_of(*plans: object) -> frozenset[str]:
    found = set()
    for plan in plans:
        with contextlib.suppress(OSError, msgspec.MsgspecError, KeyError, ValueError, RecursionError):
            values = msgspec.json.decode(read_regular(plan)) if isinstance(plan, pathlib.Path) else plan
            found.add(build_trainer(msgspec.convert(values, _Planned).workload["trainer"]).in_words())
    return frozenset(found)


def stored_kind_of(folder: pathlib.Path) -> StoredKind | None:
    return next((kind for wing in wings() for kind in wing.stored if kind.is_in(folder)), None)
