"""How much of the training's traffic went through network faults, and was each effect over after its fault?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_effects import Effect
from harness.judge.facts.strikes import struck
from harness.judge.score import Expectation, Score, ScoreResult
from harness.judge.verdict import Verdict
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Timeline

# As measured (`fault.traffic`). Bytes that went through and lost no time are a result, and it is said.


class OwnTraffic(Score):
    name = "own_traffic"
    order = 46

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        faults = [fault for fault in evidence.run.faults if fault.injected is not None and fault.network]
        measured = [fault for fault in faults if _is_measured(fault)]
        unslowed = list(_lost_no_time(evidence, measured)) if measured else []
        values: dict[str, Any] = {"faults": len(faults), "measured": len(measured)}
        values |= {"bytes": sum(map(_bytes, measured)), "lost_no_time": unslowed}
        if bounds is None:
            return ScoreResult(values)
        untold = ", ".join(dict.fromkeys(fault.id for fault in faults if not _is_measured(fault)))
        unknown = [(self.by_default, f"whether it went through {untold} was not measured")] if untold else []
        return ScoreResult(values, summary="; ".join(unslowed), not_judged=unknown)


def _is_measured(fault: FaultRecord) -> bool:
    return any("ok" in each for each in fault.traffic)


def _bytes(fault: FaultRecord) -> int:
    return sum(int(each.get("measured", 0)) for each in fault.traffic)


def _lost_no_time(evidence: Analysis, measured: Sequence[FaultRecord]) -> Iterator[str]:
    """Traffic went through a fault that neither stopped nor slowed the job, and syncs took no longer than usual."""
    felt = {name for episode in evidence.run.episodes for name in episode.faults}
    felt |= {each.fault for each in evidence.degraded} | {each.id for each in evidence.slowed.unmeasurable}
    band = evidence.usual.sync
    if band is None:
        return
    for fault in measured:
        if fault.id in felt or not all(each.get("ok") for each in fault.traffic):
            continue
        during = _sync_during(evidence.run, fault)
        if during is not None and during <= band:
            times = f"gradient sync took {during / 1e6:.1f} ms, {band / 1e6:.1f} ms at most without a fault"
            yield f"{_bytes(fault)} bytes of the training went through {fault.id} and lost no time: {times}"


def _sync_during(run: Timeline, fault: FaultRecord) -> float | None:
    steps, since, until = run.steps, acted_at(fault), run.end if fault.healed is None else fault.healed
    within = slice(*steps.end.searchsorted([since, until + 1]))
    waits = steps.sync_ns[within][steps.begin[within] >= since]
    waits = waits[waits > 0]
    return float(np.median(waits)) if len(waits) else None


# Each fault's effect was over once it was healed, as measured (`fault.ended`).


class EffectEnd(Score):
    name = "effect_end"
    order = 45

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        lasting = [
            each for each in struck(evidence) if not each.kills or each.ends
        ]  # of a kill there is nothing to undo
        measured = [fault for fault in lasting if fault.ends]
        over = sum(all(map(_is_over, map(Effect.of, fault.ends))) for fault in measured)
        values = {"faults": len(lasting), "measured": len(measured), "over": over}
        if bounds is None:
            return ScoreResult(values)
        untold = ", ".join(dict.fromkeys(fault.id for fault in lasting if not fault.ends))
        unknown = [(self.by_default, f"the end of the effect was not measured: {untold}")] if untold else []
        return ScoreResult(values, list(_lines(measured)), not_judged=unknown)


def _is_over(end: Effect) -> bool:
    """A rate or a time may be nearly what it was; no process may be left."""
    return end.ok and not (end.counted and end.falls_short)


def _lines(faults: list[FaultRecord]) -> Iterator[Expectation]:
    for fault in faults:
        ends = [*map(Effect.of, fault.ends)]
        bad = next((end for end in ends if not _is_over(end)), None)
        end = bad or ends[-1]
        observed, bound = end.shown, f"{end.expected} {end.unit}".strip()
        reason = f"fault {fault.id} was healed, but its effect did not end: measured {observed}, expected {bound}"
        verdict = Verdict.PASS if bad is None else Verdict.INVALID
        yield Expectation(f"effect_end.{fault.id}", bound, observed, verdict, "" if bad is None else reason)


SCORES = (OwnTraffic(), EffectEnd())
