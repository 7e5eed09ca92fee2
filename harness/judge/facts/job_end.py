"""How the job ended, and what became of its nodes, worlds and processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import Places
from harness.judge.facts.deaths import End
from harness.judge.facts.known import By
from harness.judge.facts.reported import blindness
from harness.node.emitter import EXIT_LEFT
from harness.timeline.lineage import NEVER
from harness.timeline.phase_names import phase_words
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import format_duration


@dataclass(frozen=True)
class Failed:
    """The job's command failed. `spoiler`: the fault that damaged a checkpoint, of a job that restored nothing after
    it. `seen`: its steps are known."""

    spoiler: str
    seen: bool
    by: By = By.SEEN


@dataclass(frozen=True)
class GivenUp:
    """The harness gave the job up."""

    by: By = By.SEEN


@dataclass(frozen=True)
class Unfinished:
    """The job ended without an error before its last step. `since`: the end of the last one that it did."""

    since: int
    by: By = By.SEEN


@dataclass(frozen=True)
class WentBack:
    """The job did its last step, and ended with the state of an earlier one."""

    kept: int
    by: By = By.SEEN


@dataclass(frozen=True)
class Unexplained:
    """Deaths that no fault explains and that end alike. `spoiler`: the fault that had damaged a checkpoint before."""

    ends: Sequence[End]
    spoiler: str
    by: By = By.MISSING


@dataclass(frozen=True)
class LeftWithoutNotice:
    """A node left the job though nobody took it or had given it a notice."""

    node: str
    code: int
    at: int
    by: By = By.SEEN


@dataclass(frozen=True)
class TooSmall:
    """The job did steps in a world smaller than it allows, in ranks."""

    size: int
    least: int
    by: By = By.SEEN


@dataclass(frozen=True)
class Unused:
    """The job had a node from its begin to its end, and it took part in no step."""

    node: str
    by: By = By.MISSING


def done(run: Timeline) -> str:
    return f"step {run.reached_step}" + (f" of {run.planned_steps}" if run.planned_steps else "")


def reached(run: Timeline) -> str:
    last = run.segments[-1] if run.segments else None
    stuck = f", at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}" if last else ""
    return f"reached {done(run)}{stuck}"


def ended(evidence: Analysis) -> Iterator[Failed | GivenUp | Unfinished | WentBack]:
    """A command that failed has failed, also where no step is known."""
    run, blind = evidence.run, blindness(evidence.run, evidence.fault_free)
    if run.outcome == "failed" and (blind or "fail_fast" not in (run.plan.get("expect") or {})):
        spoiler = None if blind else _never_past(run)
        yield Failed(spoiler.id if spoiler else "", not blind)
    elif run.outcome == "aborted" and not blind and not given_up_early(run):
        yield GivenUp()
    elif run.outcome == "completed" and not blind and run.aborted is None and len(run.steps):
        yield from _completed(run)


def _completed(run: Timeline) -> Iterator[Unfinished | WentBack]:
    """The last step is done, and the final state has it."""
    kept = int(run.steps.step[run.steps.survives & run.steps.complete].max(initial=0))  # the final state is of it
    if not run.finished:
        yield Unfinished(int(run.progress.end.max(initial=run.begin)))
    elif kept < (run.last_told_step or 0):
        yield WentBack(kept)


def given_up_early(run: Timeline) -> bool:
    """Whether the harness gave it up before any of its faults had struck."""
    return run.outcome == "aborted" and bool(run.plan.get("faults")) and first_strike(run.faults) == NEVER


def _never_past(run: Timeline) -> FaultRecord | None:
    """The fault that damaged a checkpoint, of a job that restored nothing after it."""
    struck = [fault for fault in run.faults if fault.spoils and fault.injected is not None]
    if not struck or any((process.restored or 0) > (struck[-1].injected or 0) for process in run.processes):
        return None
    return struck[-1]


def unexplained(run: Timeline, dead: Sequence[End]) -> Sequence[Unexplained]:
    """Deaths that end alike, taken together."""
    spoiler = _never_past(run) if dead else None
    alike: dict[tuple[Any, ...], list[End]] = {}
    for death in dead:
        spoilt = spoiler is not None and death.at >= (spoiler.injected or 0)
        alike.setdefault((spoilt, death.rank is None, death.code, death.error, death.met), []).append(death)
    return [Unexplained(ends, spoiler.id if spoiler and kind[0] else "") for kind, ends in alike.items()]


def left_without_notice(run: Timeline, places: Places) -> Iterator[LeftWithoutNotice]:
    """Nodes that left the job as a drained one does, or with 0 while others went on."""
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    told = {(notice["node"], notice["incarnation"]) for notice in run.notices if notice.get("source") != "peer"}
    for exit_ in run.exits:
        left = exit_["code"] == EXIT_LEFT or (exit_["code"] == 0 and exit_["at"] < last)
        if exit_["rank"] is None and left and (exit_["node"], exit_["incarnation"]) in places.kept - told:
            yield LeftWithoutNotice(exit_["node"], exit_["code"], exit_["at"])


def too_small(run: Timeline) -> Iterator[TooSmall]:
    least = run.planned_size.min_world_size or 0
    stepped = np.bincount(run.progress.epoch, minlength=len(run.epochs)) > 0
    for number, epoch in enumerate(run.epochs):
        if epoch.size < least and stepped[number]:
            yield TooSmall(epoch.size, least)


def unused(run: Timeline) -> Iterator[Unused]:
    """But for nodes that a fault was aimed at."""
    aimed = {target.get("node") for fault in run.faults for target in fault.targets}
    worked = {run.processes[index].node for epoch in run.epochs for index in epoch.processes}
    known = {slot.node for slot in run.slots}
    kept = {slot.node for slot in run.slots if slot.kept and slot.incarnation == 1}
    for node in sorted(kept - worked - aimed) if run.finished and worked <= known else ():
        yield Unused(node)
