"""Defines observers of a campaign (all jobs that a scenario needs), which are called when a job begins or ends."""

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
    """One job of a campaign (all jobs that a scenario needs).

    `again` is True if a fault-free run is repeated, because its pace differed from that of the run with faults. `at` is
    the step of a checkpoint: the job ends at this checkpoint if `until_there` is True, and otherwise resumes from it.
    `folder` is the folder of the job's event log, if it is known in advance. `fault_free` is the folder with the job's
    fault-free runs.
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
    """The base class of observers of a campaign. Methods of subclasses must return at once."""

    def stage(self, stage: Stage) -> None:
        """Called when a job of the campaign is about to run."""

    def stage_ended(self, stage: Stage, how: str) -> None:
        """Called when a job has ended, with the job's outcome, or with `cached` if a stored run was used instead."""

    def note(self, text: str) -> None:
        """Called with a remark for the user that has no effect on the verdict."""

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        """Called with the verdict of a run, and the paths of its report files by name."""

    def begins(self, name: str, about: str) -> None:
        """Called when a gate (a suite of scenarios with one verdict) begins, and when each of its scenarios begins."""


class Together(CampaignObserver):
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
    observer.stage(stage)
    outcome = run()
    observer.stage_ended(stage, outcome.outcome)
    return outcome
