"""Defines observers of a campaign, which are told which job comes next, and how it ended."""

import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.judge.score import Scorecard
from harness.run.job import Outcome
from harness.run.observers import Silent
from harness.units import counted


@dataclass(frozen=True)
class Stage:
    """One job of a campaign. `again`: a fault-free run made anew, because its pace differed from the run's.

    `at`: it ends at the save of this step, or goes on from that save. `folder`: the place of its log, if known before.
    `fault_free`: the folder with its fault-free runs.
    """

    kind: Literal["first look", "fault-free run", "run with faults", "run", "blindness check"]
    nodes: int
    again: bool = False
    at: int | None = None
    until_there: bool = False
    folder: pathlib.Path | None = field(default=None, compare=False)
    fault_free: pathlib.Path | None = field(default=None, compare=False)

    @property
    def in_words(self) -> str:
        part = "" if self.at is None else f" {'up to' if self.until_there else 'from'} the save of step {self.at}"
        return f"{self.kind}{part}, {counted(self.nodes, 'node')}"


class CampaignObserver(Silent):
    """Base of observers of a campaign (the jobs for a scenario). Its methods do nothing, and must return at once."""

    def stage(self, stage: Stage) -> None:
        """Called when a job of the campaign is about to run."""

    def stage_ended(self, stage: Stage, how: str) -> None:
        """Called when a job of the campaign has ended, with its outcome, or `cached` if it did not have to run."""

    def note(self, text: str) -> None:
        """Called with a remark for the user that changes no verdict."""

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        """Called with the verdict of a run, and the files of its report."""

    def begins(self, name: str, about: str) -> None:
        """Called when a gate begins, or one of its scenarios."""


class Together(CampaignObserver):
    """Several observers of a campaign that act as one."""

    def __init__(self, *observers: CampaignObserver):
        self.observers = observers


def _told_to_all(name: str) -> Callable[..., None]:
    def tell(self: Together, *given: object) -> None:
        for each in self.observers:
            getattr(each, name)(*given)

    return tell


for _name in dir(CampaignObserver):
    if not _name.startswith("_"):
        setattr(Together, _name, _told_to_all(_name))

SILENT_CAMPAIGN = CampaignObserver()


def staged(observer: CampaignObserver, stage: Stage, run: Callable[[], Outcome]) -> Outcome:
    """Runs one job of a campaign, and tells the observer of its begin and end."""
    observer.stage(stage)
    outcome = run()
    observer.stage_ended(stage, outcome.outcome)
    return outcome
