"""End of effects: each fault's effect was over once it was healed, as measured (`fault.ended`)."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.score import Bounds, Evidence, Expectation, Score, ScoreResult, Verdict
from harness.timeline.timeline import FaultRecord

ITEM = "end of the faults' effects"


class EffectEndBounds(Bounds):
    """Nothing to set; `effect_end: off` where a fault is meant to stay."""


class EffectEnd(Score):
    name = "effect_end"
    order = 45
    Bounds = EffectEndBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: EffectEndBounds | None) -> ScoreResult:
        run = evidence.run
        struck = [each for each in run.faults if each.injected is not None and each.id not in run.beside.faults]
        lasting = [fault for fault in struck if not fault.kills or fault.ends]  # of a kill there is nothing to undo
        measured = [fault for fault in lasting if fault.ends]
        values = {"faults": len(lasting), "measured": len(measured), "over": sum(map(_over, measured))}
        if bounds is None:
            return ScoreResult(values)
        untold = ", ".join(dict.fromkeys(fault.id for fault in lasting if not fault.ends))
        unknown = [(ITEM, f"the end of the effect was not measured: {untold}")] if untold else []
        return ScoreResult(values, list(_lines(measured)), not_judged=unknown)


def _lines(faults: list[FaultRecord]) -> Iterator[Expectation]:
    for fault in faults:
        bad = next((end for end in fault.ends if end.get("ok") is not True), None)
        end = bad or fault.ends[-1]
        observed = f"{end.get('measured')} {end.get('unit', '')}".strip()
        bound = f"{end.get('expected')} {end.get('unit', '')}".strip()
        reason = f"fault {fault.id} was healed, but its effect did not end: measured {observed}, expected {bound}"
        verdict = Verdict.PASS if bad is None else Verdict.INVALID
        yield Expectation(f"effect_end.{fault.id}", bound, observed, verdict, "" if bad is None else reason)


def _over(fault: FaultRecord) -> bool:
    return all(end.get("ok") is True for end in fault.ends)


SCORES = (EffectEnd(),)
