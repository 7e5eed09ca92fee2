"""Second restart: what the job saved after its recovery brings it back to where it was.

After the job the harness started its command once more, on a copy of its saves without the last one. So the job had to
restore the save before, do the same steps again, and save the same. Its word is not asked: the losses, samples and
weights of these steps, and what was saved last, must be the run's. The log is in `RUN/second-restart/`.

Where a repeat of the run is the same bit for bit, this must be, too; where it is not, it may be off by a few times as
much as the run is from its fault-free run in these steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.judge.facts import losses
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.losses import CURVES, HOLES_MAX, WORDS, Comparison
from harness.judge.score import Bounds, Score, ScoreResult
from harness.judge.verdict import Claim, Code, failed, unknown
from harness.timeline.timeline import Floats, Timeline
from harness.units import counted

ITEM = "second restart"
BAND_FACTOR, FLOOR_ULPS = 3.0, 16.0  # times the run's own distance, and of rounding
SAMPLES = {"first": "position", "count": "number of samples", "digest": "digest"}  # in words


class SecondRestart(Score):
    name = "second_restart"
    order = 43
    by_default = ITEM

    def score(self, evidence: Analysis, bounds: Bounds | None) -> ScoreResult:
        told, again = evidence.run.second_restart or {}, evidence.second_restart
        values: dict[str, Any] = {name: told.get(name) for name in ("outcome", "step", "seconds", "gpu_seconds")}
        values["steps"] = 0
        if bounds is None:
            return ScoreResult(values)
        if why := _nothing_learned(evidence, told):
            return ScoreResult(values, not_judged=[(ITEM, why)])
        if (claim := _outcome(told, again)) or again is None:
            return ScoreResult(values, reasons=[claim] if claim else ())
        compared = losses.compare(evidence.curve, losses.surviving(again.steps))
        values["steps"] = len(compared.step)
        step = int(told["step"])
        reasons = [*_restored(again, step), *_all_steps(evidence.run, again, step, told)]
        if reasons:
            return ScoreResult(values, reasons=reasons[:1])
        if why := _no_comparison(evidence, again, compared, step):
            return ScoreResult(values, not_judged=[(ITEM, why)])
        differ = [*_samples(evidence, compared), *_losses(evidence, compared), *_saved(evidence, again, step)]
        same = f"a second restart did {counted(len(compared.step), 'step')} once more"
        worst = sorted(differ, key=lambda claim: claim.good is None)[:1]
        return ScoreResult(values, reasons=worst, summary="" if worst else same)


def _nothing_learned(evidence: Analysis, told: Mapping[str, Any]) -> str:
    """Why it says nothing of the job; an empty text: it does."""
    run = evidence.run
    if not told and not run.drills:
        off = (run.plan.get("workload") or {}).get("restore_drill") is False
        return "restore_drill is off" if off else "none was made"
    if told.get("outcome") == "skipped":
        return str(told.get("reason") or "it was left out")
    step, last = told.get("step"), run.epochs[-1] if run.epochs else None
    if last and isinstance(step, int) and len(run.epochs) > 1 and step < last.first:
        saves = len({save.step for save in evidence.saves.whole if save.step >= last.first})
        steps = run.reached_step - last.first + 1
        return f"only {counted(steps, 'step')} and {counted(saves, 'save')} after the recovery"
    return ""


def _outcome(told: Mapping[str, Any], again: Timeline | None) -> Claim | None:
    outcome, step = told.get("outcome"), told.get("step")
    why = f": {told['reason']}" if told.get("reason") else ""
    if outcome == "failed":
        return failed(Code.SECOND_FAILED, f"second_restart: a restart from the save of step {step} failed{why}")
    if outcome == "timeout":
        return unknown(Code.SECOND_TIMEOUT, f"second_restart: a restart from the save of step {step} did not end{why}")
    if outcome == "error":
        return unknown(Code.SECOND_ERROR, f"second_restart: it could not be made{why}")
    if outcome != "done" or isinstance(step, bool) or not isinstance(step, int):
        return unknown(Code.SECOND_NO_END, "second_restart: it has no end in the log")
    if again is None or again.problems or again.dropped:
        lost = [f"{again.dropped} events were lost to a full disk"] if again and again.dropped else []
        what = f": {[*again.problems, *lost][0]}" if again else ""
        return unknown(Code.SECOND_NO_LOG, f"second_restart: it left no log that can be read{what}")
    return None


def _restored(again: Timeline, step: int) -> Iterator[Claim]:
    """It went on from the save that was left, as its workers say, or as their first step shows."""
    told = {process.restored_step for process in again.processes} - {None}
    first = again.epochs[0].first if again.epochs else None
    if 0 in told:
        text = f"second_restart: it started from scratch, though the save of step {step} was there"
        yield failed(Code.SECOND_FROM_SCRATCH, text)
    elif (told and told != {step}) or (first is not None and not step < first <= step + again.stride):
        came = f"said that it restored {sorted(s for s in told if s is not None)}" if told else "told no restore"
        text = f"second_restart: after the save of step {step} it {came}, and its first step was {first}"
        yield unknown(Code.SECOND_OTHER_STEP, text)


def _all_steps(run: Timeline, again: Timeline, step: int, told: Mapping[str, Any]) -> Iterator[Claim]:
    """To the end of the run, with a save there, if the run made one."""
    reached = int(again.steps.step.max(initial=0))  # by any rank: a line may be lost
    if reached < run.reached_step:
        text = f"it ended after step {reached}, and the run after step {run.reached_step}"
        yield failed(Code.SECOND_SHORT, f"second_restart: {text}")
    last, saved = max((_step(event) for event in run.published), default=0), told.get("saved_step")
    if last > step and isinstance(saved, int) and saved < last:
        text = f"it saved nothing after step {saved}, and the run saved step {last}"
        yield failed(Code.SECOND_SAVED_LESS, f"second_restart: {text}")


def _no_comparison(evidence: Analysis, again: Timeline, compared: Comparison, step: int) -> str:
    """Why its figures prove nothing; an empty text: nothing is wrong."""
    run = evidence.run
    bounds = (run.plan.get("expect") or {}).get("loss_continuity")
    if not isinstance(bounds, Mapping) or bounds.get("mode", "exact") == "final":
        return "the scenario sets no bound on what each step computes"
    if len(run.epochs) < 2:
        return "nothing in this run restarted the job, so that restarts change nothing is not asked"
    if not len(compared.step):
        return "it tells no step that the run told, too"
    if run.epochs[-1].size != again.largest_world:
        return f"the run ended with {run.epochs[-1].size} ranks, and it had {again.largest_world}"
    if evidence.incomparable:
        return evidence.incomparable
    begun = run.steps.begin[run.steps.survives & (run.steps.step > step)]
    if len(begun) and evidence.disturbed and evidence.disturbed[-1][1] > int(begun.min()):
        return f"a fault was at work after step {step}"
    return ""


def _bands(evidence: Analysis, compared: Comparison) -> dict[str, Floats]:
    """How far each figure may be off: nothing, where the run and its fault-free run are the same in these steps."""
    usual = evidence.comparison
    rows = np.isin(usual.step, compared.step) if usual else np.zeros(0, np.bool_)
    bands = {}
    for name in CURVES:
        mine = getattr(compared.run, name)
        apart = _apart(getattr(usual.run, name)[rows], getattr(usual.fault_free, name)[rows]) if usual else mine
        most = float(apart.max(initial=0.0))
        same = usual is not None and usual.identical
        bands[name] = np.zeros(len(mine)) if same else np.maximum(BAND_FACTOR * most, FLOOR_ULPS * losses.ulps(mine))
    return bands


def _apart(mine: Floats, other: Floats) -> Floats:
    """What one of the two does not tell is no distance."""
    return np.asarray(np.where(np.isfinite(mine) & np.isfinite(other), losses.distance(mine, other), 0.0))


def _losses(evidence: Analysis, compared: Comparison) -> Iterator[Claim]:
    """The first step in which a figure is off."""
    bands, found = _bands(evidence, compared), list[tuple[int, str]]()
    for name in CURVES:
        mine, other = getattr(compared.run, name), getattr(compared.fault_free, name)
        untold = np.isfinite(mine) & np.isnan(other)
        if untold.sum() > HOLES_MAX:
            text = f"{counted(int(untold.sum()), 'step')} without a number for its {WORDS[name]}, which the run has"
            yield unknown(Code.SECOND_OTHER_LOSS, f"second_restart: {text}")
        rows = np.flatnonzero(np.isfinite(mine) & ~untold & (losses.distance(mine, other) > bands[name]))
        found += [(int(row), name) for row in rows[:1]]
    for row, name in sorted(found)[:1]:
        mine, other = getattr(compared.run, name)[row], getattr(compared.fault_free, name)[row]
        text = f"at step {compared.step[row]} its {WORDS[name]} is {other:.9g}, and the run's was {mine:.9g}"
        yield failed(Code.SECOND_OTHER_LOSS, f"second_restart: {text}")


def _samples(evidence: Analysis, compared: Comparison) -> Iterator[Claim]:
    """The first step that consumed others, where both tell it; unless the scenario lets samples be repeated."""
    bounds = evidence.run.plan["expect"]["loss_continuity"]
    if bounds.get("samples") == "reported" or bounds.get("max_samples_repeated") or bounds.get("max_samples_skipped"):
        return
    for name, words in SAMPLES.items():
        untold = 0 if name == "digest" else -1
        mine, other = getattr(compared.run, name), getattr(compared.fault_free, name)
        for row in np.flatnonzero((mine != untold) & (other != untold) & (mine != other))[:1]:
            text = f"at step {compared.step[row]} it consumed other data than the run: another {words}"
            yield failed(Code.SECOND_OTHER_SAMPLES, f"second_restart: {text}")


def _saved(evidence: Analysis, again: Timeline, step: int) -> Iterator[Claim]:
    """The tensors of what both saved last, as the harness saw them; where the steps are the same bit for bit."""
    usual = evidence.comparison
    if usual is None or not usual.identical:
        return
    mine, other = _tensors(evidence.run), _tensors(again)
    for saved in sorted((mine.keys() & other.keys()), reverse=True):
        if saved > step and mine[saved] != other[saved]:
            text = f"the tensors in its save of step {saved} differ from those in the run's"
            yield failed(Code.SECOND_OTHER_TENSORS, f"second_restart: {text}")
            return


def _tensors(run: Timeline) -> dict[int, str]:
    """By step: the digest of the tensors in the save that the harness saw last."""
    return {_step(event): str(event["tensors"]) for event in run.published if event.get("tensors")}


def _step(event: Mapping[str, Any]) -> int:
    step = event.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else 0


SCORES = (SecondRestart(),)
