"""Who watches a campaign: beside the status of each job, what is run next, and what came of it."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from harness.judge.score import Scorecard
from harness.run.observers import Observer, Silent


@dataclass(frozen=True)
class Stage:
    """One job of a campaign. `again`: the fault-free run that was kept went at another pace, so it is made anew."""

    kind: Literal["first look", "fault-free run", "run with faults", "run", "canary"]
    nodes: int
    again: bool = False


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

    def canary(self, card: Scorecard) -> None:
        """The canary of a gate has its verdict."""

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

    def canary(self, card: Scorecard) -> None:
        return None

    def scenario(self, name: str, title: str) -> None:
        return None

    def not_run(self, reason: str) -> None:
        return None


SILENT_CAMPAIGN = SilentCampaign()
