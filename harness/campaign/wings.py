"""What the wings of this house tell its trunk, which knows none of them by name: the files `wing.py` in their folders.

A wing has stored results of its own, which the list of runs, `chaos show` and `chaos score` find by a file in the run's
folder; and files that people write, which `chaos validate` knows by what stands in them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from harness.judge.score import Verdict
from harness.plugins import Family

_FAMILY = Family("wing", "harness", "WING", part="wing")


class Part(NamedTuple):
    """One of the parts that a result is made of, as a rehearsal of a game day."""

    name: str
    verdict: Verdict
    reasons: Sequence[str]


@dataclass(frozen=True)
class Result:
    """What a terminal and the list of runs show of a stored result that is more than one run."""

    verdict: Verdict
    reasons: Sequence[str]
    parts: Sequence[Part]


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


@dataclass(frozen=True)
class Wing:
    stored: Sequence[StoredKind] = ()
    files: Sequence[FileKind] = ()


def wings() -> Iterator[Wing]:
    return (_FAMILY.load(name) for name in _FAMILY.names())


def stored_kinds() -> list[StoredKind]:
    return [kind for wing in wings() for kind in wing.stored]


def stored_kind_of(folder: pathlib.Path) -> StoredKind | None:
    """`None`: it is a run of one scenario."""
    return next((kind for kind in stored_kinds() if kind.is_in(folder)), None)
