"""Divergence: a loss that leaves its course and does not come back. The trainer must say so, and go back before it.

Judged where a fault drives the loss away, by the steps in the log: a spike that passes by itself needs no answer. What
a trainer says that it left out is judged in every run: see `harness.judge.facts.spikes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.emitter import abnormal
from harness.judge.codes import Code
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.spikes import Spike, alarms, seldom
from harness.judge.score import Bounds, Finding, Score, ScoreResult, Verdict
from harness.timeline.timeline import Timeline

ITEM = "divergence of the loss"
UNSEEN = f"each step, and a spike lasts {abnormal.SPIKE_STEPS} of them"


class DivergenceBounds(Bounds):
    """Nothing to set; `divergence: off` where nobody has to go back."""


class Divergence(Score):
    name = "divergence"
    section = "metrics"
    order = 29  # before the losses: what diverged is the cause of other losses
    Bounds = DivergenceBounds
    by_default = ITEM

    def score(self, evidence: Analysis, bounds: DivergenceBounds | None) -> ScoreResult:
        run, found, left_out = evidence.run, evidence.spikes, evidence.left_out
        values = {"loss_spikes": len(found), "samples_left_out": sum(count for _, count in left_out.accepted)}
        if bounds is None:
            return ScoreResult(values)
        reasons: list[Finding] = [
            Finding(Verdict.FAIL, f"divergence: {text}", Code.SAMPLES_LEFT_OUT_WRONG) for text in left_out.wrong
        ]
        reasons += [
            Finding(Verdict.INCONCLUSIVE, f"divergence: {text}", Code.SAMPLES_LEFT_OUT_UNPROVEN)
            for text in left_out.unproven
        ]
        struck = any(fault.diverges and fault.injected is not None for fault in run.faults)
        not_judged = [(ITEM, f"the loss is not told in {UNSEEN}")] if struck and seldom(run) else []
        return ScoreResult(values, reasons=[*_unanswered(run, found), *reasons][:1], not_judged=not_judged)


def _unanswered(run: Timeline, found: Sequence[Spike]) -> Iterator[Finding]:
    """Spikes since a fault struck that the trainer did not see, or that it went on with."""
    struck = [fault.injected for fault in run.faults if fault.diverges and fault.injected is not None]
    for spike in found:
        if not struck or spike.end < min(struck):
            continue
        if not any(_answers(run, alarm, spike) for alarm in alarms(run)):
            yield Finding(Verdict.FAIL, f"divergence: {spike}, and the trainer did not say so", Code.SPIKE_UNTOLD)
        elif run.steps.survives[list(spike.rows)].any():
            yield Finding(
                Verdict.FAIL,
                f"divergence: {spike}; the trainer said so, and went on with these steps",
                Code.SPIKE_WENT_ON,
            )


def _answers(run: Timeline, alarm: Mapping[str, Any], spike: Spike) -> bool:
    """Whether the alarm is about this spike: told since it began, and of one of its steps, if it names one."""
    step = alarm.get("at_step")
    near = step is None or spike.since <= step <= spike.seen + abnormal.SPIKE_STEPS
    return bool(near and alarm["at"] >= spike.begin - run.uncertainty_ns)


SCORES = (Divergence(),)
