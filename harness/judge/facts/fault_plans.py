"""Faults that struck otherwise than planned: of another kind, too early, at another time after a notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import OfFault
from harness.judge.facts.strikes import planned, struck
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at

EARLY_STEPS = 2  # so many before its step may be the last one that was told when a fault strikes
NOTICE_SHARE = 0.9  # of the time that a notice promises, at the least
NOTICE_LATE_NS = 10 * 10**9  # so much later an engine may take a node that was given notice


@dataclass(frozen=True)
class OtherKind(OfFault):
    kind: str
    planned: str


@dataclass(frozen=True)
class TooEarly(OfFault):
    """`furthest`: the furthest step that was done by then."""

    furthest: int
    planned: int


@dataclass(frozen=True)
class OtherNotice(OfFault):
    """A node was taken earlier or much later than its notice promised."""

    after_ns: int
    promised_ns: int


@dataclass(frozen=True)
class CameBack(OfFault):
    """A replacement came for a node, and none was planned."""

    node: str


def other_kinds(evidence: Analysis) -> Iterator[OtherKind]:
    plans = planned(evidence.run)
    for fault in struck(evidence):
        kind = plans.get(fault.id, {}).get("fault")
        if fault.kind and kind not in (None, fault.kind):
            yield OtherKind(fault.id, fault.kind, kind)


def too_early(evidence: Analysis) -> Iterator[TooEarly]:
    run, plans = evidence.run, planned(evidence.run)
    for fault in struck(evidence) if evidence.work.has_steps and not run.lost else ():
        step = (plans.get(fault.id, {}).get("when") or {}).get("step")
        furthest = evidence.work.furthest(acted_at(fault) + run.uncertainty_ns)
        if isinstance(step, int) and furthest < step - EARLY_STEPS * run.stride:
            yield TooEarly(fault.id, furthest, step)


def other_notices(evidence: Analysis) -> Iterator[OtherNotice]:
    work = evidence.work
    for fault in struck(evidence) if evidence.run.outcome == "completed" and work.has_steps else ():
        promised = fault.notice_ns
        if promised is None or not fault.kills:
            continue
        for after in (at - acted_at(fault) for at in fault.strikes if at < work.over):
            if 0 < after < promised * NOTICE_SHARE or after > promised / NOTICE_SHARE + NOTICE_LATE_NS:
                yield OtherNotice(fault.id, after, promised)


def came_back(evidence: Analysis) -> Iterator[CameBack]:
    for fault in struck(evidence):
        for target in fault.targets if fault.replaced is False else ():
            node, incarnation = target.get("node"), target.get("incarnation") or 1
            given = evidence.places.given.get((node, incarnation + 1), -NEVER)
            if target.get("rank") is None and given > acted_at(fault):
                yield CameBack(fault.id, str(node))
