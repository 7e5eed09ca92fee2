"""Who watches a campaign: beside the status of each job, what is run next, and what came of it."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from harness.judge.score import Scorecard
from harness.run.observers import Heard, Observer, Silent, Status
from harness.units import counted


@dataclass(frozen=True)
class Stage:
    """One job of a campaign. `again`: the fault-free run that was kept went at another pace, so it is made anew.

    `at`: it ends at the save of this step, or goes on from it.
    `folder`: where its log will be, if that is known before. `fault_free`: the folder with its fault-free runs.
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


class CampaignObserver(Observer, Protocol):
    """Hears of a campaign in the order of events. Must return at once."""

    def stage(self, stage: Stage) -> None:
        """This job is needed now."""

    def stage_ended(self, stage: Stage, how: str) -> None:
        """`how` is the job's outcome, or `cached` where it did not have to run."""

    def note(self, text: str) -> None:
        """Something that the user should know, and that changes no verdict."""

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        """A run has its verdict and its report."""

    def suite(self, name: str, title: str, scenarios: int, seed: int) -> None:
        """A gate begins."""

    def blindness_check(self, card: Scorecard) -> None:
        """The blindness check of a gate has its verdict."""

    def scenario(self, name: str, title: str) -> None:
        """A scenario of a gate begins."""

    def not_run(self, reason: str) -> None:
        """That scenario cannot be run."""


class SilentCampaign(Silent):
    """Watches nothing."""

    def stage(self, stage: Stage) -> None:
        return None

    def stage_ended(self, stage: Stage, how: str) -> None:
        return None

    def note(self, text: str) -> None:
        return None

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        return None

    def suite(self, name: str, title: str, scenarios: int, seed: int) -> None:
        return None

    def blindness_check(self, card: Scorecard) -> None:
        return None

    def scenario(self, name: str, title: str) -> None:
        return None

    def not_run(self, reason: str) -> None:
        return None


class Together:
    """Several observers as one."""

    def __init__(self, *observers: CampaignObserver):
        self.observers = observers

    def status(self, status: Status) -> None:
        for each in self.observers:
            each.status(status)

    def new_events(self, events: Heard) -> None:
        for each in self.observers:
            each.new_events(events)

    def left_behind(self, reason: str) -> None:
        for each in self.observers:
            each.left_behind(reason)

    def stage(self, stage: Stage) -> None:
        for each in self.observers:
            each.stage(stage)

    def stage_ended(self, stage: Stage, how: str) -> None:
        for each in self.observers:
            each.stage_ended(stage, how)

    def note(self, text: str) -> None:
        for each in self.observers:
            each.note(text)

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        for each in self.observers:
            each.judged(card, files)

    def suite(self, name: str, title: str, scenarios: int, seed: int) -> None:
        for each in self.observers:
            each.suite(name, title, scenarios, seed)

    def blindness_check(self, card: Scorecard) -> None:
        for each in self.observers:
            each.blindness_check(card)

    def scenario(self, name: str, title: str) -> None:
        for each in self.observers:
            each.scenario(name, title)

    def not_run(self, reason: str) -> None:
        for each in self.observers:
            each.not_run(reason)


SILENT_CAMPAIGN = SilentCampaign()
