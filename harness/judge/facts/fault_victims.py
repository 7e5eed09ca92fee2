"""What victims did after a fault had killed, frozen or taken them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import node_of
from harness.judge.facts.known import OfFault
from harness.judge.facts.strikes import struck
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import CLEAN_CODES, acted_at

KILLED = (None, -9, 137, -15, 143)  # how one ends that cannot do anything, or is woken to be ended


@dataclass(frozen=True)
class FrozenWentOn(OfFault):
    """A frozen rank said something. `steps`: so many it did; `exited`: it left."""

    rank: int
    steps: int
    exited: bool


@dataclass(frozen=True)
class KilledWentOn(OfFault):
    """A rank began a step after the harness had seen it gone."""

    rank: int


@dataclass(frozen=True)
class NotTaken(OfFault):
    """A node that was given notice stayed until the job was over."""

    node: str


@dataclass(frozen=True)
class LeftByItself(OfFault):
    """A rank that was to be killed ended with a clean code, and no notice told it to."""

    rank: int


def frozen_went_on(evidence: Analysis) -> Iterator[FrozenWentOn]:
    """From when the harness saw a target stand still until the fault's time is over, or until it was told to end: the
    harness tells that before it lets the target go on."""
    run = evidence.run
    order, places_of = run.rows_by_process
    for fault in struck(evidence):
        if not fault.freezes or fault.lasts is None or not fault.effects:
            continue
        since = max(effect["at"] for effect in fault.effects) + run.uncertainty_ns
        until = min(acted_at(fault) + fault.lasts.ns, fault.healed or NEVER, fault.cancelled or NEVER)
        until -= run.uncertainty_ns
        alive = {row for target in fault.targets for row in evidence.places.alive(target, acted_at(fault))}
        for row in sorted(alive) if since < until else ():
            process, ends = run.processes[row], run.steps.end[order[places_of[row] : places_of[row + 1]]]
            steps = int(np.searchsorted(ends, until) - np.searchsorted(ends, since, "right"))
            exited = process.exit_code not in KILLED and since < (process.exited or 0) < until
            if steps > 0 or exited or since < process.last_seen < until:
                yield FrozenWentOn(fault.id, process.rank, steps, exited)


def killed_went_on(evidence: Analysis) -> Iterator[KilledWentOn]:
    """A node may have a notice: that is another thing. Between the fault's first word and its effect a rank runs."""
    run, places = evidence.run, evidence.places
    for fault in struck(evidence):
        gone = max([acted_at(fault), *(effect["at"] for effect in fault.effects)])
        ranks = [target for target in fault.targets if target.get("rank") is not None and fault.kills]
        alive = {row for target in ranks for row in places.alive(target, acted_at(fault))}
        for row in sorted(alive):
            if acted_at(fault) < run.processes[row].last_seen and places.last_begin[row] > gone:
                yield KilledWentOn(fault.id, run.processes[row].rank)


def not_taken(evidence: Analysis) -> Iterator[NotTaken]:
    for fault in struck(evidence) if evidence.run.outcome == "completed" else ():
        for target in fault.targets if fault.kills and fault.notice_ns is not None else ():
            if target.get("rank") is None and node_of(target) in evidence.places.kept:
                yield NotTaken(fault.id, str(target.get("node")))


def left_by_themselves(evidence: Analysis) -> Iterator[LeftByItself]:
    run, places = evidence.run, evidence.places
    for fault in struck(evidence) if run.outcome == "completed" else ():
        if not fault.kills or fault.graceful or fault.notice_ns is not None:
            continue
        alive = {(row, at) for target in fault.targets for at in fault.strikes for row in places.alive(target, at)}
        for row in sorted({row for row, at in alive if at <= (run.processes[row].exited or -1)}):
            victim = run.processes[row]
            warned = evidence.last_notices.get(victim.node, -1) >= acted_at(fault)
            if victim.exit_code in CLEAN_CODES and not warned:
                yield LeftByItself(fault.id, victim.rank)
