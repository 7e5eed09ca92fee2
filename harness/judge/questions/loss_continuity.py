"""Judges loss continuity: how far the run's losses are from the fault-free run's, apart from rolled-back steps.

The loss, gradient norm and learning rate of each step that was not rolled back are compared with the fault-free run's.
Repeated and skipped samples are counted. The guarantees `result.*` judge other values of a step, such as weights.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.evidence import samples
from harness.evidence.logs import CHANGED
from harness.evidence.losses import CURVES, WORDS, Comparison, Curve, by_scale, ulps
from harness.evidence.samples import Consumed
from harness.judge.assumption import FRESH
from harness.judge.bounds import SAMPLE_BOUNDS, ContinuityBounds
from harness.judge.facts import repeated_steps
from harness.judge.facts.analysis import NO_BOUND, Analysis
from harness.judge.score import Bound, Expectation, Score, ScoreResult, line
from harness.judge.verdict import Ground, Kind, Verdict
from harness.judge.weighing import answer
from harness.log.reading import is_told
from harness.timeline.lineage import NEVER
from harness.timeline.timeline import Bools, Timeline
from harness.units import counted

COMPUTED, COMPARED = Ground(Kind.LOSSES), Ground(Kind.CURVES)
IN_BAND = COMPUTED, Ground(Kind.BAND)
SOONER = "fault-free runs are alike for longer, but how fast rounding grows depends on where training is"
MODE = "loss_continuity.mode"


def loss_continuity(evidence: Analysis, bounds: ContinuityBounds | None) -> ScoreResult:
    consumed = evidence.consumed or samples.by_places(evidence.curve, evidence.left_out)
    values = _values(evidence, bounds.mode if bounds else "exact", consumed)
    odd = "; ".join(filter(None, _amounts(consumed)))
    in_passing = [("sample order", f"{NO_BOUND}, but {odd}")] if odd else []
    if bounds is None:
        return ScoreResult(values, not_judged=in_passing)
    if bounds.against == "itself":
        return _against_itself(evidence, values)
    last, final = evidence.run.changed_after, bounds.mode == "final"  # the last losses before a change are too few
    changed = [] if last == NEVER else [("losses" if final else f"losses after step {last}", CHANGED)]
    in_passing = [*in_passing, *changed]
    mode, reach = _mode(evidence, bounds)
    asked, judged = not bounds.model_fields_set.isdisjoint(SAMPLE_BOUNDS), bounds.samples == "judged"
    lines = [] if changed and final and mode.verdict is not Verdict.FAIL else [mode]
    lines += _sample_lines(bounds, consumed, mode.verdict, asked) if judged else ()
    if final:
        odd_steps, most = values["nonfinite_steps"], bounds.max_nonfinite_steps
        lines.append(Bound("loss_continuity.max_nonfinite_steps", unit="steps").line(most, odd_steps, "", COMPUTED))
    if bounds.max_spike is not None:
        spike = Bound("loss_continuity.max_spike", lambda x: f"{x:.4g}")
        lines.append(spike.line(bounds.max_spike, values["spike_max"], "", COMPUTED))
    unseen = not consumed.comparable or (evidence.consumed is not None and consumed.repeated is None)
    untold = [("sample order", consumed.why)] if unseen else []
    untold = [*untold, *changed, *(_unseen(evidence) if bounds.mode == "envelope" else ())]
    untold = untold if judged else in_passing or [("sample order", NO_BOUND)]
    said = {
        "exact": "losses identical bit for bit",
        "final": f"final loss {_percent(values['final_gap_percent'])} off the fault-free run",
    }.get(bounds.mode, f"losses within the {bounds.mode} band{_reach(reach)}")
    said += f" up to step {last}, after which a fault changed the command" * bool(changed)
    return ScoreResult(values | reach, lines, (), said * (mode in lines), untold)


def _against_itself(evidence: Analysis, values: dict[str, Any]) -> ScoreResult:
    """Compares each repeated step with its first execution. An error that occurs in both executions of a step is not
    found."""
    found = repeated_steps.done_again(repeated_steps.executed(evidence.run))
    values["done_again"] = repeated_steps.values(found)
    name, bound = "loss_continuity.against", "steps done again are the same"
    lines = list[Expectation]()
    for each in repeated_steps.compared(found):
        verdict = answer(each)
        observed = None if verdict is Verdict.INCONCLUSIVE else each.words
        lines.append(line(name, bound, observed, "" if verdict is Verdict.PASS else each.words, COMPUTED))
    if not lines:
        return ScoreResult(values, [line(name, bound, None, "no step was done again after a restart")])
    steps = counted(sum(each.steps for each in found), "step")
    unseen = [("steps that were done once", "with nothing to compare them with")]
    return ScoreResult(values, lines, summary=f"{steps} done again, as the first time", not_judged=unseen)


def _values(evidence: Analysis, mode: str, consumed: Consumed) -> dict[str, Any]:
    curve, comparison = evidence.curve, evidence.comparison
    resumes = list(_resumes(evidence.run, curve, comparison))
    return {
        "mode": mode,
        "max_abs_diff": comparison.max_abs_diff if comparison else None,
        "first_divergent_step": comparison.first_divergent_step if comparison else None,
        "final_gap_percent": comparison.final_gap_percent if comparison else None,
        "nonfinite_steps": _nonfinite(curve, evidence.run.changed_after, comparison),
        "steps_compared": len(comparison.step) if comparison else 0,
        "samples_repeated": consumed.repeated,
        "samples_skipped": consumed.skipped,
        "steps_missing": len(evidence.missing),
        "resumes": resumes,
        "spike_max": max((each["spike"] for each in resumes if each["spike"] is not None), default=None),
    }


def _amounts(consumed: Consumed) -> tuple[str, str]:
    if consumed.kind == "places":
        told = ((consumed.repeated, "repeated"), (consumed.skipped, "skipped"))
        one, two = (
            f"{counted(many, 'sample')} {'was' if many == 1 else 'were'} {what}, first {consumed.where}" if many else ""
            for many, what in told
        )
        return one, two
    of = " inputs of steps" if consumed.kind == "digests" else ""
    repeated = f"{consumed.repeated}{of} repeated{consumed.repeated_where}" if consumed.repeated else ""
    return repeated, f"{consumed.skipped}{of} never seen{consumed.skipped_where}" if consumed.skipped else ""


def _sample_lines(bounds: ContinuityBounds, consumed: Consumed, mode: Verdict, asked: bool) -> Iterator[Expectation]:
    amounts = (consumed.repeated, bounds.max_samples_repeated), (consumed.skipped, bounds.max_samples_skipped)
    for what, (observed, bound), which in zip(("repeated", "skipped"), amounts, _amounts(consumed), strict=True):
        name = f"loss_continuity.max_samples_{what}"
        if observed is None and bounds.mode == "exact" and mode is Verdict.PASS:
            text = "the losses equal the fault-free run's, bit for bit"
            yield line(name, f"≤ {bound}", text, "", COMPUTED, bound_value=bound, unit="samples")
        elif observed is not None or consumed.comparable or asked:
            reason = consumed.why if observed is None else which
            yield Bound(name, unit="samples").line(bound, observed, reason, Ground(Kind.ORDER))


def _mode(evidence: Analysis, bounds: ContinuityBounds) -> tuple[Expectation, dict[str, Any]]:
    comparison = evidence.comparison
    if comparison is None or evidence.incomparable:
        return line(MODE, bounds.mode, None, evidence.incomparable, COMPARED), {}
    if bounds.mode == "exact":
        return _held(bounds.mode, comparison, comparison.differs, COMPUTED, Ground(Kind.BITS)), {}
    if bounds.mode == "final":
        return _final(bounds, comparison), {}
    if bounds.mode == "envelope":
        return _envelope(evidence, comparison)
    outside = {c: comparison.apart(c) > bounds.max_ulp * ulps(getattr(comparison.fault_free, c)) for c in CURVES}
    source = f"{bounds.max_ulp:g} units in the last place"
    return _held(f"ulp, {source}", comparison, outside, COMPUTED), {"band": source}


def _final(bounds: ContinuityBounds, comparison: Comparison) -> Expectation:
    bound, gap = f"final, within {bounds.max_final_gap:g} %", None
    if comparison.differs["lr"].any():
        return _held(bound, comparison, {"lr": comparison.differs["lr"]}, COMPUTED)
    if int(comparison.step[-1]) == comparison.fault_free_last:
        gap = comparison.final_gap_percent
    grounds = COMPUTED, Ground(Kind.GAP, bound=bounds.max_final_gap)
    if gap is None:
        why = "the last steps cannot be compared with the fault-free run"
        return line(MODE, bound, None, why, *grounds, settles=FRESH)
    told = f"the final loss is {_percent(gap)} off the fault-free run"
    reason = "one of the last losses is no number" if np.isnan(gap) else told
    numbers: dict[str, Any] = {"bound_value": bounds.max_final_gap, "observed_value": abs(gap), "unit": "%"}
    return line(MODE, bound, _percent(gap), reason * (not abs(gap) <= bounds.max_final_gap), *grounds, **numbers)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:+.2g} %"


def _nonfinite(curve: Curve, last: int, comparison: Comparison | None) -> int | None:
    if comparison is None or not np.isfinite(comparison.fault_free.loss).any():
        return None
    curve = curve.at(np.flatnonzero(curve.step <= last))
    odd = is_told(curve.loss) & ~np.isfinite(curve.loss)
    if np.isfinite(comparison.fault_free.grad_norm).any():
        odd |= is_told(curve.grad_norm) & ~np.isfinite(curve.grad_norm)
    return int((odd & ~by_scale(odd & (curve.applied == 0))).sum())  # a skipped update changed nothing


def _held(bound: str, comparison: Comparison, outside: dict[str, Bools], *grounds: Ground) -> Expectation:
    found = {curve: int(rows.argmax()) for curve, rows in outside.items() if rows.any()}
    steps = len(comparison.step)
    if not found:
        text = f"{counted(steps, 'step')} {'agrees' if steps == 1 else 'agree'} with the fault-free run"
        return line(MODE, bound, text, "", *grounds)
    curve = min(found, key=found.__getitem__)
    row = found[curve]
    mine, other = getattr(comparison.run, curve)[row], getattr(comparison.fault_free, curve)[row]
    differ = f"{', '.join(WORDS[c] for c in found)} differ{'s' if len(found) == 1 else ''} from the fault-free run"
    digits = 9 if f"{mine:.9g}" != f"{other:.9g}" else 17  # enough to show the difference
    apart = f"{WORDS[curve]} {mine:.{digits}g} instead of {other:.{digits}g}"
    observed = f"{int(np.logical_or.reduce(list(outside.values())).sum())} of {steps} steps differ"
    return line(MODE, bound, observed, f"{differ}: at step {comparison.step[row]} {apart}", *grounds)


def _envelope(evidence: Analysis, comparison: Comparison) -> tuple[Expectation, dict[str, Any]]:
    band = evidence.envelope
    if isinstance(band, str):
        return line(MODE, "envelope", None, band, *IN_BAND), {}
    bound, sees = f"envelope, {band.source}", band.sees(comparison)
    values = {"band": band.source, "sees": [each._asdict() for each in sees]}
    if why := evidence.resume_alone[0]:
        return line(MODE, bound, "the resume by itself", why, *IN_BAND), values
    grounds = (COMPUTED,) if comparison.differs["lr"].any() else IN_BAND  # one fault-free run shows it
    outside, early = band.outside(comparison), band.too_soon(comparison)
    odd = np.flatnonzero(np.logical_or.reduce(list(outside.values())))
    if (lasts := band.lasts(comparison)) and not (len(odd) and comparison.step[odd[0]] < lasts.first):
        where = f"in steps {lasts.first} to {lasts.last} by {lasts.apart:.2g} on average"
        reason = f"{WORDS[lasts.curve]} differs from the fault-free run: {where}, at most {lasts.most:.2g} is usual"
        return line(MODE, bound, where, reason, *grounds), values
    if not len(odd) and any(rows.any() for rows in early.values()):
        why = f"{_held(bound, comparison, early).reason}; {SOONER}"
        return line(MODE, bound, None, why, *grounds, settles=FRESH), values
    return _held(bound, comparison, outside, *grounds), values


def _unseen(evidence: Analysis) -> Iterator[tuple[str, str]]:
    comparison, band = evidence.comparison, evidence.envelope
    if comparison is None or evidence.incomparable or isinstance(band, str) or not (sees := band.sees(comparison)):
        return
    resumed, alone = evidence.resumed_runs, evidence.calibrated
    least, changes = sees[-1].percent, band.changes_by(sees[0])
    if least >= changes:
        why = f"only {least:.2g} % or more shows, and training changes the loss by {changes:.2g} % from there on"
        yield "a loss that is off for good", why
    if resumed is None and len({epoch.size for epoch in evidence.run.epochs}) > 1:
        yield "the resume by itself", "no fault-free run resumes with as many ranks"
    elif resumed is not None and not isinstance(alone, str) and alone.blind_from(int(resumed.before.step[-1])):
        why = "runs of two sizes differ from their first steps on, and those that the band is drawn from change it, too"
        yield "the change of size by itself", why


def _reach(values: dict[str, Any]) -> str:
    most = max((each["percent"] for each in values.get("sees", ())), default=None)
    return "" if most is None else f" (off for good by {most:.2g} % would show)"


def _resumes(run: Timeline, curve: Curve, comparison: Comparison | None) -> Iterator[dict[str, Any]]:
    """Yields, for each resume, how much the loss rises at the first step. The `spike` is the rise of the loss at a
    resume minus the fault-free run's rise at the same step."""
    mine = dict(zip(curve.step.tolist(), curve.loss.tolist(), strict=True))
    told = zip(comparison.step.tolist(), comparison.fault_free.loss.tolist(), strict=True) if comparison else ()
    usual: dict[int, float] = dict(told)
    for step in (epoch.first for epoch in run.epochs if epoch.kept >= epoch.first):
        if {step, step - 1} <= mine.keys():
            rise = mine[step] - mine[step - 1]
            spike = rise - (usual.get(step, np.nan) - usual.get(step - 1, np.nan))
            told_rise, told_spike = (each if np.isfinite(each) else None for each in (rise, spike))
            yield {"step": step, "rise": told_rise, "spike": told_spike}


SCORES = (Score("loss_continuity", 30, loss_continuity, explained_by=("restart.whole_state", "saves.one_writer")),)
