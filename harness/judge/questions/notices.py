"""Counts the notices that a node will be taken away, and how many of these notices the job ignored. The report names
each ignored notice, and a scenario may limit the number of ignored notices.

The job acts on a notice if any rank logs the notice, saves or exits before the node is taken. A save that was due
anyway counts as a reaction to the notice, too, because the log does not show why a rank saves.
"""

from collections.abc import Iterator

import numpy as np

from harness.evidence.reported import told
from harness.judge.bounds import NoticesBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Score, ScoreResult, left_open, line
from harness.judge.verdict import Doubt, Ground, Kind
from harness.timeline.lookups import first_from
from harness.timeline.sorted_events import acted_at, key_of
from harness.timeline.timeline import FaultRecord
from harness.units import format_duration

NAME = "notices.max_ignored"


def notices(evidence: Analysis, bounds: NoticesBounds | None) -> ScoreResult:
    given = [ignored for fault in evidence.run.faults for ignored in _given(evidence, fault)]
    allowed = f"≤ {bounds.max_ignored}" if bounds else ""
    if not given or "checkpoints" not in told(evidence.run):
        why = "nobody tells of checkpoints" if given else "no node was taken after a notice to ranks at work"
        return ScoreResult({}, [left_open(NAME, allowed, why, Doubt.UNMEASURED)] if bounds else [])
    ignored = [words for words in given if words]
    summary = "; ".join(ignored)
    values = {"given": len(given), "ignored": len(ignored)} if ignored or bounds else {}
    if bounds is None:
        return ScoreResult(values, summary=summary)
    why = summary if len(ignored) > bounds.max_ignored else ""
    observed = f"{len(ignored)} of {len(given)}"
    return ScoreResult(values, [line(NAME, allowed, observed, why, Ground(Kind.ABSENCE))], summary=summary)


def _given(evidence: Analysis, fault: FaultRecord) -> Iterator[str]:
    run, ends = evidence.run, evidence.run.steps.end
    released = {slot.key: slot.released for slot in run.slots if not slot.kept}
    for target in fault.targets if fault.injected is not None and fault.notice_ns else ():
        given, node = acted_at(fault), key_of(target)
        mine = (row for row, each in enumerate(run.processes) if each.key == node)
        working = any(evidence.places.last_begin[row] > 0 for row in mine)  # some ranks may report no steps
        if node not in released or not working or not len(ends) or int(ends.min()) >= given:
            continue
        taken = min(first_from(fault.strikes, given), released[node])
        if _acted(evidence, given, taken):
            yield ""
        elif given < int(ends.max()):
            until = f"in the {format_duration(taken - given)} until {node[0]} went"
            yield f"nobody acted on the notice of {fault.id}: no save and no exit {until}"


def _acted(evidence: Analysis, given: int, taken: int) -> bool:
    run, margin = evidence.run, evidence.run.uncertainty_ns
    left = (process.left for process in run.processes if process.left is not None)
    found = np.array([*(each["at"] for each in (*run.notices, *run.checkpoints, *run.exits)), *left], np.int64)
    return bool(((found >= given - margin) & (found < taken + margin)).any())


SCORES = (Score("notices", 13, notices),)
