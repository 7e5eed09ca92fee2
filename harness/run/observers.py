"""Observers of a job: a terminal, a web page, a test. An observer gets typed status and decides nothing."""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.log.checked_lines import Record

Heard = Sequence[tuple[Record, Record]]  # (header of the writer, event)


@dataclass(frozen=True)
class FaultStatus:
    """A fault that has fired, and the newest thing known about it."""

    id: str
    moment: str  # acting · injected · effect · recovered · healed


@dataclass(frozen=True)
class Status:
    """A job as it is now. `phase` and `loss` are the trainer's own words."""

    run_id: str
    elapsed_s: float
    phase: str
    step: int  # the last one that every rank has done
    steps: int | None  # planned, where that is known
    loss: float | None
    rehearsals: Sequence[str]  # those that are going on
    faults: Sequence[FaultStatus]
    run_dir: pathlib.Path | None = None  # where its log is


class Observer(Protocol):
    """Hears of a job while it runs, many times a second. Must return at once."""

    def status(self, status: Status) -> None: ...

    def new_events(self, events: Heard) -> None:
        """Takes new events of the job's log, in order within a writer."""

    def starts_again(self, why: str, about_s: float) -> None:
        """Tells that the job is over, and its command starts once more, for about so long."""

    def left_behind(self, reason: str) -> None:
        """Hears that something could not be undone at the end of the job."""


class Silent:
    """Watches nothing."""

    def status(self, status: Status) -> None: ...

    def new_events(self, events: Heard) -> None: ...

    def starts_again(self, why: str, about_s: float) -> None: ...

    def left_behind(self, reason: str) -> None: ...


SILENT = Silent()
