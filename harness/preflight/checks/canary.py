"""Checks a short run of the trainer without faults: the loss falls, the gradient norm does not jump, the GPUs are busy,
and little time is spent waiting for data."""

from __future__ import annotations

import statistics

import numpy as np

from harness.judge.verdict import Verdict
from harness.preflight.checks.contract import Check, Finding, Judged, Seen, doubt
from harness.report import usage
from harness.units import counted

STEPS_MIN = 20  # fewer show no trend
PART = 0.2  # of the steps: the first ones are held against the last ones
CALM = 20.0  # times the median, a norm of the gradient may be once the job has settled
GPU_BUSY_MIN = 50.0  # percent
DATA_MAX = 0.1  # of the time


class Canary(Check):
    title = "The trainer for a while"
    order = 8
    needs = "canary"
    most = 1.5
    cause = "a slower rank or link, other data, or another version of the trainer"

    def judge(self, seen: Seen) -> Judged:
        if seen.canary is None:
            return Judged(findings=[doubt(f"the trainer, without a fault: {seen.canary_ended or 'it was not run'}")])
        if seen.canary_ended:
            words = f"the trainer fails on this cluster without a fault: {seen.canary_ended}"
            return Judged(words, [Finding(words, "the first error is in its log")])
        card, curve = seen.canary, seen.canary.evidence.curve
        steps, untold, findings = card.evidence.run.steps, [], list[Finding]()
        if card.verdict is not Verdict.PASS:
            certain = card.verdict is Verdict.FAIL
            findings.append(Finding(f"without a fault: {card.reasons[0]}", certain=certain))
        told = curve.loss[np.isfinite(curve.loss)]
        if len(told) < STEPS_MIN:
            findings.append(doubt(f"whether the loss falls is not known: {counted(len(told), 'step')} told one"))
        else:
            part = max(1, round(PART * len(told)))
            first, last = (float(np.median(each)) for each in (told[:part], told[-part:]))
            if last >= first:
                words = f"the loss does not fall: {first:.4g} at the begin, {last:.4g} at the end of {len(told)} steps"
                cause = "a learning rate, data that is not shuffled or not there, or weights that are not updated"
                findings.append(Finding(words, cause, figure=last, usual=first))
        norms = steps.grad_norm[~np.isnan(steps.grad_norm) & (steps.applied != 0)]  # a loss scale leaves out overflows
        findings += _norms(norms) if len(norms) else []
        untold += [] if len(norms) else ["norms of gradients"]
        spent, waited = int((steps.end - steps.begin).sum()), int(steps.data_ns.sum())
        share = waited / spent if spent else 0.0
        untold += [] if waited else ["waiting for data"]
        if share > DATA_MAX:
            words = f"{100 * share:.0f} % of the time of steps is spent waiting for data"
            cause = "too few loader workers, or storage that is too slow for them"
            findings.append(Finding(words, cause, figure=share, usual=DATA_MAX))
        busy = usage.figures(card.evidence.run)["gpu_busy_percent"]
        untold += ["use of GPUs"] if busy is None else []
        if busy is not None and busy < GPU_BUSY_MIN:
            words, cause = f"GPUs are busy {busy:.0f} % of the time", "data, small batches, or one slow rank"
            findings.append(Finding(words, cause, figure=busy, usual=GPU_BUSY_MIN, unit="%"))
        took = card.metrics.get("step_seconds_p50")
        words = f"{counted(len(curve), 'step')}" + (f" of {1000 * took:.3g} ms" if took else "")
        words += f"; loss {told[0]:.4g} to {told[-1]:.4g}" if len(told) else ""
        words += f"; not told: {', '.join(untold)}" if untold else ""
        return Judged(words, findings, {"step (s)": took} if took else {})


def _norms(norms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[Finding]:
    if not np.isfinite(norms).all():
        return [Finding("a gradient is not finite", "an overflow, or a GPU that computes wrongly")]
    settled = norms[len(norms) // 5 :]  # a job that begins may take large steps
    usual, most = statistics.median(settled.tolist()), float(settled.max())
    if most <= CALM * usual:
        return []
    words = f"norms of gradients jump: up to {most:.3g}, {most / usual:.0f} times their median"
    return [Finding(words, "a bad batch, or a learning rate that is too high", figure=most, usual=usual)]


CHECK = Canary()
