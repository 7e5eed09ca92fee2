"""What the wings of this house tell its trunk, which knows none of them by name: the files `wing.py` in their folders.

A wing has stored results of its own, which the list of runs, `chaos show` and `chaos score` find by a file in the run's
folder; and files that people write, which `chaos validate` knows by what stands in them. It says what its results prove
before a launch.
"""

from __future__ import annotations

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
    """One of the parts that a result is made of, as a rehearsal of a game day."""

    name: str
    verdict: Verdict | None  # `None`: not judged
    reasons: Sequence[str]


@dataclass(frozen=True)
class Result:
    """What a terminal and the list of runs show of a stored result that is more than one run."""

    verdict: Verdict
    reasons: Sequence[str]
    parts: Sequence[Part]
    next_steps: Sequence[str] = ()


class StoredKind(Protocol):
    """`report`: the file in a run's folder that holds the result."""

    report: str

    def is_in(self, folder: pathlib.Path) -> bool:
        """Whether this run is of the kind, judged or not."""

    def read(self, folder: pathlib.Path) -> Result:
        """Raises `ReportError` where it was not judged, or its report cannot be read."""

    def values(self, folder: pathlib.Path) -> Any:
        """The same for programs."""

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        """Again, from the event log alone; and what writes its reports."""


@dataclass(frozen=True)
class FileKind:
    """Files that people write. `key`: what stands at the top of such a file and of no other; `folder`: where such files
    lie. `check` says what was found right, in words, and raises `UsageError` with every mistake found; it is given the
    file and the folder of the scenarios."""

    name: str
    key: str
    folder: str
    check: Callable[[pathlib.Path, pathlib.Path], str]


class Item(enum.StrEnum):
    """What should be known before a launch."""

    RESUMES = "checkpoints resume"
    DATA = "data balanced"
    DRY_RUN = "dry run done"
    ALERTS = "monitoring delivers alerts"
    GATE = "gate green on this commit"
    GAME_DAY = "game day held"
    RUNBOOKS = "runbooks linked"
    CLUSTER = "cluster fit"


class Proof(NamedTuple):
    """What a stored result says to an item. `at_s`: since 1970. `commits`, `trainers`: of the project under test, and
    what they are called, in its runs, as far as it is known."""

    item: Item
    verdict: Verdict
    words: str
    folder: pathlib.Path
    at_s: float
    commits: frozenset[str]
    trainers: frozenset[str]


class Swept(NamedTuple):
    """What a sweep over a job came to. `run_id`: the folder of its report."""

    run_id: str
    verdict: Verdict
    reasons: Sequence[str]


class Sweep(Protocol):
    """Runs a job many times, and judges what came of it. `known`: one that is complete is judged again, and not run.
    Raises `ChaosError` where it cannot be run."""

    def __call__(
        self,
        plan: Plan,
        reports: pathlib.Path,
        backend: Backend,
        stop: StopRequest,
        tell: Callable[[str], None],
        known: bool,
    ) -> Swept: ...


@dataclass(frozen=True)
class Wing:
    stored: Sequence[StoredKind] = ()
    files: Sequence[FileKind] = ()
    sweeps: Mapping[str, Sweep] = field(default_factory=dict)  # by the word that a suite has for it
    proofs: Callable[[pathlib.Path], Iterator[Proof]] = lambda reports: iter(())  # of what is stored there
    section: Callable[[Report], Section | None] = lambda report: None  # of the report of a run


def wings() -> Iterator[Wing]:
    return (_FAMILY.load(name) for name in _FAMILY.names())


def sections_of(report: Report) -> list[Section]:
    return [section for wing in wings() if (section := wing.section(report))]


def sweep_of(name: str) -> Sweep:
    return next(wing.sweeps[name] for wing in wings() if name in wing.sweeps)


def latest_s() -> float:
    """What claims to be of later than this proves nothing: it would be the newest for years. Servers have clocks of
    their own, so a minute is allowed."""
    return time.time() + 60.0


def newest(reports: pathlib.Path, name: str) -> Iterator[tuple[pathlib.Path, float]]:
    """The folders of results that hold this file, with the time of its last change; the newest first."""
    found = []
    for path in reports.glob(f"*/{name}"):
        with contextlib.suppress(OSError):
            if (at_s := path.stat(follow_symlinks=False).st_mtime) <= latest_s():
                found.append((at_s, path.parent))
    return ((folder, at_s) for at_s, folder in sorted(found, reverse=True))


class _Work(msgspec.Struct):
    trainer: object


class _Planned(msgspec.Struct):
    """As much of a plan as tells what is trained."""

    workload: _Work


def trainers_of(*plans: object) -> frozenset[str]:
    """What the trainers of these plans, or files plan.json, are called, as far as they can be read."""
    found = set()
    for plan in plans:
        with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
            values = msgspec.json.decode(read_regular(plan)) if isinstance(plan, pathlib.Path) else plan
            found.add(build_trainer(msgspec.convert(values, _Planned).workload.trainer).in_words())
    return frozenset(found)


def stored_kinds() -> list[StoredKind]:
    return [kind for wing in wings() for kind in wing.stored]


def stored_kind_of(folder: pathlib.Path) -> StoredKind | None:
    """`None`: it is a run of one scenario."""
    return next((kind for kind in stored_kinds() if kind.is_in(folder)), None)
