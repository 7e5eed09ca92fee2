"""Measures how much training traffic network faults disturbed, and counts the faults whose effect ended."""

from collections.abc import Iterator, Sequence

import numpy as np

from harness.evidence.by_time import healed_at
from harness.evidence.faults import Effect, struck
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Score, ScoreResult
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Timeline


def own_traffic(evidence: Analysis, bounds: object) -> ScoreResult:
    """Measures how much training traffic network faults disturbed, and names those faults that slowed no step."""
    faults = [fault for fault in struck(evidence) if fault.network]
    measured = [fault for fault in faults if any("ok" in each for each in fault.traffic)]
    unslowed = list(_lost_no_time(evidence, measured)) if measured else []
    values = {"faults": len(faults), "measured": len(measured)}
    told = values | {"bytes": sum(map(_bytes, measured)), "lost_no_time": unslowed}
    known = {fault.id for fault in measured}
    untold = dict.fromkeys(fault.id for fault in faults if fault.id not in known)
    why = f"whether it went through {', '.join(untold)} was not measured" if untold else ""
    return ScoreResult(told, summary="; ".join(unslowed) if bounds else "", why_not=why)


def _bytes(fault: FaultRecord) -> int:
    return sum(int(each.get("measured", 0)) for each in fault.traffic)


def _lost_no_time(evidence: Analysis, measured: Sequence[FaultRecord]) -> Iterator[str]:
    felt = {name for episode in evidence.run.episodes for name in episode.faults}
    felt |= {each.fault for each in evidence.slowed.degraded} | {each.id for each in evidence.slowed.unmeasurable}
    band = evidence.usual.sync
    for fault in measured:
        if band is None or fault.id in felt or not all(each.get("ok") for each in fault.traffic):
            continue
        during = _sync_during(evidence.run, fault)
        if during is not None and during <= band:
            times = f"gradient sync took {during / 1e6:.1f} ms, {band / 1e6:.1f} ms at most without a fault"
            yield f"{_bytes(fault)} bytes of the training went through {fault.id} and lost no time: {times}"


def _sync_during(run: Timeline, fault: FaultRecord) -> float | None:
    steps, since, until = run.steps, acted_at(fault), healed_at(run, fault)
    within = slice(*steps.end.searchsorted([since, until + 1]))
    waits = steps.sync_ns[within][steps.begin[within] >= since]
    waits = waits[waits > 0]
    return float(np.median(waits)) if len(waits) else None


def effect_end(evidence: Analysis, bounds: object) -> ScoreResult:
    """Counts the faults whose effect was over once the faults were undone. A fault that kills counts only if the end of
    its effect was measured."""
    lasting = [each for each in struck(evidence) if not each.kills or each.ends]
    over = [all(Effect.of(end).is_over for end in fault.ends) for fault in lasting if fault.ends]
    untold = dict.fromkeys(fault.id for fault in lasting if not fault.ends)
    why = f"the end of the effect was not measured: {', '.join(untold)}" if untold else ""
    values = {"faults": len(lasting), "measured": len(over), "over": sum(over)}
    return ScoreResult(values, why_not=why)


SCORES = (Score("own_traffic", 46, own_traffic), Score("effect_end", 45, effect_end))
