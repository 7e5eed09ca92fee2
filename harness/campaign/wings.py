"""Finds the wings by the file `wing.py` in their folders. The trunk knows none of them by name.

A wing has stored results of its own: the list of runs, `chaos show` and `chaos score` find them by a file in the run's
folder. It may have files that people write, which `chaos validate` knows by a key. It states what its results prove
before a launch.
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
    """A stored result of several runs, as a terminal and the list of runs show it."""

    verdict: Verdict
    reasons: Sequence[str]
    parts: Sequence[Part]
    next_steps: Sequence[str] = ()


class StoredKind(Protocol):
    """A kind of result of several runs, such as a game day. `report` is the name of its file in a folder."""

    report: str

    def is_in(self, folder: pathlib.Path) -> bool:
        """Returns True if this folder holds a result of this kind, judged or not."""

    def read(self, folder: pathlib.Path) -> Result:
        """Reads the result in a folder. Raises `ReportError` if it was not judged, or cannot be read."""

    def values(self, folder: pathlib.Path) -> Any:
        """Returns the result in a folder as JSON data."""

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        """Judges the result again from its event logs. Returns it, and a function that writes its reports."""


@dataclass(frozen=True)
class FileKind:
    """A kind of files that people write. `key`: a top-level key of only these files; `folder`: their usual place.
    `check` takes the file and the scenarios' folder, returns a summary, and raises `UsageError` with all mistakes."""

    name: str
    key: str
    folder: str
    check: Callable[[pathlib.Path, pathlib.Path], str]


class Item(enum.StrEnum):
    """A question of the checklist that should be answered before a launch."""

    RESUMES = "checkpoints resume"
    DATA = "data balanced"
    DRY_RUN = "dry run done"
    ALERTS = "monitoring delivers alerts"
    GATE = "gate green on this commit"
    GAME_DAY = "game day held"
    RUNBOOKS = "runbooks linked"
    CLUSTER = "cluster fit"


class Proof(NamedTuple):
    """The answer that a stored result gives to a question of the checklist before a launch. `at_s`: seconds since 1970.
    `commits`, `trainers`: commits of the project under test and names of trainers in its runs, as far as known."""

    item: Item
    verdict: Verdict
    words: str
    folder: pathlib.Path
    at_s: float
    commits: frozenset[str]
    trainers: frozenset[str]


class Swept(NamedTuple):
    """The result of trying a job's restarts from its saves. `run_id` is the folder of its report."""

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
    """Returns the latest time that a result may claim: one minute from now, because servers have their own clocks."""
    return time.time() + 60.0


def newest(reports: pathlib.Path, name: str) -> Iterator[tuple[pathlib.Path, float]]:
    """Yields folders with this file, and the time of its last change, the newest first."""
    found = []
    for path in reports.glob(f"*/{name}"):
        with contextlib.suppress(OSError):
            if (at_s := path.stat(follow_symlinks=False).st_mtime) <= latest_s():
                found.append((at_s, path.parent))
    return ((folder, at_s) for at_s, folder in sorted(found, reverse=True))


class _Planned(msgspec.Struct):
    """The field of a plan that names the trainer."""

    workload: dict[str, object]


def trainers_of(*plans: object) -> frozenset[str]:
    """Returns the names of the trainers in these plans, given as values or as paths of plan.json files."""
    found = set()
    for plan in plans:
        with contextlib.suppress(OSError, msgspec.MsgspecError, KeyError, ValueError, RecursionError):
            values = msgspec.json.decode(read_regular(plan)) if isinstance(plan, pathlib.Path) else plan
            found.add(build_trainer(msgspec.convert(values, _Planned).workload["trainer"]).in_words())
    return frozenset(found)


def stored_kind_of(folder: pathlib.Path) -> StoredKind | None:
    """Returns the kind of a stored result, or `None` for a run of one scenario."""
    return next((kind for wing in wings() for kind in wing.stored if kind.is_in(folder)), None)
