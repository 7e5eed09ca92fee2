"""Defines observers of a running job, such as a terminal, a web page or a test. Observers never influence the job."""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.log.checked_lines import Record

Heard = Sequence[tuple[Record, Record]]  # (header of the writer, event)


@dataclass(frozen=True)
class FaultStatus:
    """A fault that was injected into a running job, with the fault's newest known state, such as `healed`."""

    id: str
    moment: str  # acting · injected · effect · recovered · healed


@dataclass(frozen=True)
class Status:
    """The present state of a running job. `phase` and `loss` are the values that the trainer logged last."""

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
    """An observer of a running job, called many times a second. Each method must return at once."""

    def status(self, status: Status) -> None: ...

    def new_events(self, events: Heard) -> None:
        """Called with new events of the job's log; the events of each writer are in order."""

    def starts_again(self, why: str, about_s: float) -> None:
        """Called when the ended job's command starts once more, for a test of about `about_s` seconds."""

    def left_behind(self, reason: str) -> None:
        """Called if something could not be undone at the end of the job."""


class Silent:
    def status(self, status: Status) -> None: ...

    def new_events(self, events: Heard) -> None: ...

    def starts_again(self, why: str, about_s: float) -> None: ...

    def left_behind(self, reason: str) -> None: ...


SILENT = Silent()
