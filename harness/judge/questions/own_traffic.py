"""Own traffic: the training's own bytes went through what each network fault disturbed (`fault.traffic`).

A run in which they went around it is invalid. Bytes that went through and lost no time are a result, and it is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.judge.codes import Code
from harness.judge.facts import usual
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bounds, Finding, Score, ScoreResult, Verdict
from harness.timeline.timeline import FaultRecord, Timeline

ITEM = "the training's own traffic"


class OwnTrafficBounds(Bounds):
    """Nothing to set; `own_traffic: off` where a fault is meant to miss the training's traffic."""


class OwnTraffic(Score):
    name = "own_traffic"
    order = 46
    Bounds = OwnTrafficBounds
    by_default = ITEM

    def score(self, evidence: Analysis, bounds: OwnTrafficBounds | None) -> ScoreResult:
        struck = [fault for fault in evidence.run.faults if fault.injected is not None and fault.network]
        measured = [fault for fault in struck if any("ok" in each for each in fault.traffic)]
        unslowed = [text for fault in measured if (text := _lost_no_time(evidence, fault))]
        values: dict[str, Any] = {"faults": len(struck), "measured": len(measured)}
        values |= {"bytes": sum(map(_bytes, measured)), "lost_no_time": unslowed}
        if bounds is None:
            return ScoreResult(values)
        untold = ", ".join(dict.fromkeys(fault.id for fault in struck if fault not in measured))
        unknown = [(ITEM, f"whether it went through {untold} was not measured")] if untold else []
        reasons = [finding for fault in measured for finding in _missed(fault)]
        return ScoreResult(values, reasons=reasons, summary="; ".join(unslowed), not_judged=unknown)


def _bytes(fault: FaultRecord) -> int:
    return sum(int(each.get("measured", 0)) for each in fault.traffic)


def _missed(fault: FaultRecord) -> Iterator[Finding]:
    for each in fault.traffic:
        if each.get("ok") is False:
            counted = f"{each.get('measured', 0)} bytes in {each.get('seconds', 0):g} s, at least {each.get('least')}"
            text = f"fault {fault.id} did not meet the training's own traffic on {each.get('node')}: {counted} expected"
            yield Finding(Verdict.INVALID, f"{text} ({each.get('detail', '')})", Code.FAULT_MISSED_TRAFFIC)


def _lost_no_time(evidence: Analysis, fault: FaultRecord) -> str:
    """Traffic went through a fault that neither stopped nor slowed the job, and syncs took no longer than usual."""
    named = {name for episode in evidence.run.episodes for name in episode.faults}
    slowed = {each.fault for each in evidence.degraded} | {each.id for each in evidence.unmeasurable_slowdowns}
    if fault.id in named | slowed or not all(each.get("ok") for each in fault.traffic):
        return ""
    during, band = _sync_during(evidence.run, fault), usual.sync_upper(evidence.fault_free_runs)
    if during is None or band is None or during > band:
        return ""
    times = f"gradient sync took {during / 1e6:.1f} ms, {band / 1e6:.1f} ms at most without a fault"
    return f"{_bytes(fault)} bytes of the training went through {fault.id} and lost no time: {times}"


def _sync_during(run: Timeline, fault: FaultRecord) -> float | None:
    steps = run.steps
    until = run.end if fault.healed is None else fault.healed
    rows = (steps.begin >= (fault.injected or 0)) & (steps.end <= until) & (steps.sync_ns > 0)
    return float(np.median(steps.sync_ns[rows])) if rows.any() else None


SCORES = (OwnTraffic(),)
