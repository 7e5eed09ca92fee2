"""Did anybody in the job act on the notice that a node will be taken? It is told; it fails where a scenario bounds it.

To act is to tell of the notice, to save, or to leave, on whatever rank, before the node is taken. A save that was due
anyway counts: nobody can tell it from one over the notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from harness.judge.bounds import NoticesBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import node_of
from harness.judge.facts.reported import told
from harness.judge.score import Expectation, Score, ScoreResult, left_open, line
from harness.judge.verdict import Doubt, Ground, Kind
from harness.timeline.lookups import first_from
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord
from harness.units import format_duration

NAME = "notices.max_ignored"


class _Notice(NamedTuple):
    fault: str
    node: str
    given: int
    taken: int


class Notices(Score):
    name = "notices"
    order = 13

    def score(self, evidence: Analysis, bounds: NoticesBounds | None) -> ScoreResult:
        notices = [notice for fault in evidence.run.faults for notice in _given(evidence, fault)]
        if not notices or "checkpoints" not in told(evidence.run):
            why = "no node was taken after a notice to ranks at work" if not notices else "nobody tells of checkpoints"
            return ScoreResult({}, [left_open(NAME, _allowed(bounds), why, Doubt.UNMEASURED)] if bounds else [])
        ignored = [notice for notice in notices if not _acted(evidence, notice)]
        words = "; ".join(map(_in_words, ignored))
        return ScoreResult(
            {"given": len(notices), "ignored": len(ignored)} if ignored or bounds else {},
            _lines(bounds, notices, ignored, words) if bounds else [],
            summary=words,
        )


def _allowed(bounds: NoticesBounds) -> str:
    return f"≤ {bounds.max_ignored}"


def _lines(
    bounds: NoticesBounds, notices: Sequence[_Notice], ignored: Sequence[_Notice], words: str
) -> list[Expectation]:
    why = words if len(ignored) > bounds.max_ignored else ""
    return [line(NAME, _allowed(bounds), f"{len(ignored)} of {len(notices)}", why, Ground(Kind.ABSENCE))]


def _in_words(notice: _Notice) -> str:
    lasted = format_duration(notice.taken - notice.given)
    return f"nobody acted on the notice of {notice.fault}: no save and no exit in the {lasted} until {notice.node} went"


def _given(evidence: Analysis, fault: FaultRecord) -> Iterator[_Notice]:
    """To nodes that were taken after it, and whose ranks were at work: others may not be able to save yet."""
    run = evidence.run
    if fault.injected is None or not fault.notice_ns:
        return
    released = {(slot.node, slot.incarnation): slot.released for slot in run.slots if not slot.kept}
    for target in fault.targets:
        given, node = acted_at(fault), node_of(target)
        taken = min(first_from(fault.strikes, given), released.get(node, run.end))
        mine = (row for row, each in enumerate(run.processes) if (each.node, each.incarnation) == node)
        working = any(evidence.places.last_begin[row] > 0 for row in mine)  # one may be silent meanwhile
        begun = bool(len(run.steps)) and int(run.steps.end.min()) < given
        notice = _Notice(fault.id, str(node[0]), given, taken)
        # One may save and leave at once, and do no further step.
        went_on = begun and (given < int(run.steps.end.max()) or _acted(evidence, notice))
        if node in released and working and went_on:
            yield notice


def _acted(evidence: Analysis, notice: _Notice) -> bool:
    """Also if it was at the very end: clocks are only known so well."""
    run, margin = evidence.run, evidence.run.uncertainty_ns
    left = (process.left for process in run.processes if process.left is not None)
    moments = [*(each["at"] for each in (*run.notices, *run.checkpoints, *run.exits)), *left]
    found = np.array(moments, np.int64)
    return bool(((found >= notice.given - margin) & (found < notice.taken + margin)).any())


SCORES = (Notices(),)
