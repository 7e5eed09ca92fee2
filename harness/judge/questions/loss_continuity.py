"""Loss continuity: is the surviving history the one that no fault would have left?

Two questions. The curve: does every surviving step have the loss, gradient norm and learning rate of the
fault-free run (bit for bit, or within a calibrated band)? The samples: does the surviving lineage consume
every sample exactly once, in order?
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.judge.bounds import SAMPLE_BOUNDS, ContinuityBounds
from harness.judge.facts import by_time, ranks, repeated_steps, samples
from harness.judge.facts.alarms import LeftOut
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.envelope import Envelope, Sight
from harness.judge.facts.losses import CURVES, WORDS, Comparison, Curve, by_scale, compare, ulps
from harness.judge.facts.samples import Consumed
from harness.judge.score import Bound, Expectation, Score, ScoreResult, left_open, line
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, Verdict, failed, unknown
from harness.log.reading import is_told
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Bools, Timeline
from harness.units import counted

NOTHING_LEFT_OUT = LeftOut()
COMPUTED, ORDER = Ground(Kind.LOSSES), Ground(Kind.ORDER)
IN_BAND = COMPUTED, Ground(Kind.BAND)
SAMPLES = {"digest": "samples", "first": "sample position", "count": "batch size"}  # in words
SOONER = "fault-free runs are alike for longer, but how fast rounding grows depends on where training is"

ANSWERS = {True: Verdict.PASS, False: Verdict.FAIL, None: Verdict.INCONCLUSIVE}
SAME_STEPS = 10  # in a row
LAST_STEPS = 20  # of a rank that tells its own loss
NO_BOUND = "the scenario sets no bound on it"


class LossContinuity(Score):
    name = "loss_continuity"
    order = 30
    explained_by = ("restart.whole_state", "saves.one_writer")

    def score(self, evidence: Analysis, bounds: ContinuityBounds | None) -> ScoreResult:
        mode = bounds.mode if bounds else "exact"
        comparison = evidence.comparison
        consumed = evidence.consumed or samples.by_places(evidence.curve, evidence.left_out)
        values = _values(evidence, mode, consumed)
        values["spike_max"] = max((r["spike"] for r in values["resumes"] if r["spike"] is not None), default=None)
        if bounds is None:
            return ScoreResult(values, not_judged=_in_passing(consumed))
        if bounds.against == "itself":
            return _against_itself(evidence, values)
        line, reach = _curve_line(evidence, bounds)
        values |= reach
        if line.verdict is Verdict.PASS and (why := _untold(evidence)):
            line = replace(line, observed="—", verdict=Verdict.INCONCLUSIVE, reason=why, doubt=Doubt.NOT_COMPARABLE)
        asked, judged = not bounds.model_fields_set.isdisjoint(SAMPLE_BOUNDS), bounds.samples == "judged"
        lines = [line]
        if judged and (consumed.comparable or asked):
            lines += _sample_lines(bounds, consumed, line.verdict)
        if bounds.mode == "final":
            odd, most = values["nonfinite_steps"], bounds.max_nonfinite_steps
            lines.append(Bound("loss_continuity.max_nonfinite_steps", unit="steps").line(most, odd))
        if bounds.max_spike is not None:
            spike = values["spike_max"]
            lines.append(Bound("loss_continuity.max_spike", lambda x: f"{x:.4g}").line(bounds.max_spike, spike))
        moved = bool(bounds.max_samples_repeated or bounds.max_samples_skipped)  # then positions may be others
        followed = evidence.consumed is not None or not judged
        reasons = [*_ranks_agree(evidence, bounds, moved, followed), *_never_changes(comparison)]
        whose = _whose(evidence, bounds)
        reasons += _far_off(evidence, bounds.max_final_gap) if whose and bounds.mode == "final" else ()
        if judged and evidence.consumed is None:
            reasons += _other_samples(comparison, bounds, evidence.left_out)
        elif judged and evidence.consumed is not None:  # the cause of other losses, so they are named first
            reasons = [*_moved(evidence.consumed, moved), *reasons]
        summary = {
            "exact": "losses identical bit for bit",
            "final": f"final loss {_percent(values['final_gap_percent'])} off the fault-free run",
        }.get(mode, f"losses within the {mode} band")
        if mode == "envelope":
            summary += _worst(reach.get("sees", []))
        unseen = not consumed.comparable or (evidence.consumed is not None and consumed.repeated is None)
        untold = [("sample order", consumed.why)] if unseen else []
        untold = [*untold, *(_unseen(evidence) if mode == "envelope" else ())]
        untold = untold if judged else _in_passing(consumed) or [("sample order", NO_BOUND)]
        lines = [line if line.rests_on else replace(line, rests_on=(COMPUTED,)) for line in lines]
        return ScoreResult(values, lines, reasons, summary + whose, untold)


def _against_itself(evidence: Analysis, values: dict[str, Any]) -> ScoreResult:
    """What is done once alone stays unseen, and so is an error in both executions."""
    found = repeated_steps.done_again(repeated_steps.executed(evidence.run))
    values["done_again"] = repeated_steps.values(found)
    name, bound = "loss_continuity.against", "steps done again are the same"
    answers = list(repeated_steps.judged(found))
    if not answers:
        why = "no step was done again after a restart"
        return ScoreResult(values, [left_open(name, bound, why, Doubt.NOT_COMPARABLE)])
    lines = [
        left_open(name, bound, text, Doubt.NO_BAND)
        if same is None
        else line(name, bound, text, "" if same else text, COMPUTED)
        for same, text in answers
    ]
    steps = counted(sum(each.steps for each in found), "step")
    unseen = [("steps that were done once", "with nothing to compare them with")]
    return ScoreResult(values, lines, summary=f"{steps} done again, as the first time", not_judged=unseen)


def _values(evidence: Analysis, mode: str, consumed: Consumed) -> dict[str, Any]:
    """As in report.json."""
    curve, comparison = evidence.curve, evidence.comparison
    return {
        "mode": mode,
        "max_abs_diff": comparison.max_abs_diff if comparison else None,
        "first_divergent_step": comparison.first_divergent_step if comparison else None,
        "final_gap_percent": comparison.final_gap_percent if comparison else None,
        "nonfinite_steps": _nonfinite(curve, comparison),
        "steps_compared": len(comparison.step) if comparison else 0,
        "samples_repeated": consumed.repeated,
        "samples_skipped": consumed.skipped,
        "steps_missing": len(evidence.missing),
        "resumes": list(_resumes(evidence.run, curve, comparison)),
    }


def _whose(evidence: Analysis, bounds: ContinuityBounds) -> str:
    """Of which rank the losses were compared, where each tells its own without a fault, and not all were."""
    usual = evidence.fault_free.steps if evidence.fault_free else None
    if bounds.mode in ("exact", "ulp") or usual is None:
        return ""
    if not ranks.is_local(usual, "loss", ranks.telling(usual, "loss")):
        return ""
    told = evidence.run.steps.rank[np.isfinite(evidence.run.steps.loss)]
    return f" (of rank {int(told.min())}; each rank reports its own)" if len(told) else ""


def _in_passing(consumed: Consumed) -> list[tuple[str, str]]:
    """What a scenario that expects nothing of it is told all the same."""
    odd = [text for text in _amounts(consumed) if text]
    return [("sample order", f"{NO_BOUND}, but {'; '.join(odd)}")] if odd else []


def _amounts(consumed: Consumed) -> tuple[str, str]:
    """How many were repeated and how many never seen, and which; an empty text for none."""
    of = " inputs of steps" if consumed.kind == "digests" else ""
    repeated = f"{consumed.repeated}{of} repeated{consumed.repeated_where}" if consumed.repeated else ""
    return repeated, f"{consumed.skipped}{of} never seen{consumed.skipped_where}" if consumed.skipped else ""


def _moved(found: Consumed, allowed: bool) -> Iterator[Claim]:
    """Other samples in these steps than in the fault-free run's; how many in all were repeated is counted elsewhere."""
    if found.moved and not allowed:
        what = f"{counted(found.moved, 'step')} consumed other samples than the fault-free run"
        text = f"loss_continuity: {what}, first at step {found.first_moved}"
        yield failed(Code.SAMPLES_MOVED, text, COMPUTED, ORDER)


def _curve_line(evidence: Analysis, bounds: ContinuityBounds) -> tuple[Expectation, dict[str, Any]]:
    """The expectation on the curve itself, and what more it brings into the values."""
    name, comparison = "loss_continuity.mode", evidence.comparison
    if comparison is None or evidence.incomparable:
        return left_open(name, bounds.mode, evidence.incomparable, Doubt.NOT_COMPARABLE), {}
    if bounds.mode == "exact":
        line = _judged(name, "exact", comparison, comparison.differs)
        return replace(line, rests_on=(COMPUTED, Ground(Kind.BITS))), {}
    if bounds.mode == "final":
        return _final(name, bounds, comparison), {}
    if bounds.mode == "envelope":
        line, reach = _envelope(name, evidence, comparison)
        by_step_alone = comparison.differs["lr"].any()  # no other run is needed to see that
        return replace(line, rests_on=(COMPUTED,) if by_step_alone else IN_BAND), reach
    outside = {c: comparison.apart(c) > bounds.max_ulp * ulps(getattr(comparison.fault_free, c)) for c in CURVES}
    source = f"{bounds.max_ulp:g} units in the last place"
    return _judged(name, f"ulp, {source}", comparison, outside), {"band": source}


def _final(name: str, bounds: ContinuityBounds, comparison: Comparison) -> Expectation:
    """The learning rate is a pure function of the step, whatever happens to the loss."""
    bound, gap = f"final, within {bounds.max_final_gap:g} %", None
    if comparison.differs["lr"].any():
        return _judged(name, bound, comparison, {"lr": comparison.differs["lr"]})
    if int(comparison.step[-1]) == comparison.fault_free_last:
        gap = comparison.final_gap_percent
    if comparison.near_zero:
        return left_open(name, bound, "the final loss is too close to zero for a gap in percent", Doubt.NEAR_ZERO)
    if gap is None:
        reason = "the last steps cannot be compared with the fault-free run"
        return left_open(name, bound, reason, Doubt.NOT_COMPARABLE)
    numbers: dict[str, Any] = {"bound_value": bounds.max_final_gap, "observed_value": abs(gap), "unit": "%"}
    if abs(gap) <= bounds.max_final_gap:  # never true of a gap that is not a number
        return Expectation(name, bound, _percent(gap), Verdict.PASS, **numbers)
    told = f"the final loss is {_percent(gap)} off the fault-free run"
    reason = "one of the last losses is no number" if np.isnan(gap) else told
    grounds = COMPUTED, Ground(Kind.GAP, bound=bounds.max_final_gap)
    return Expectation(name, bound, _percent(gap), Verdict.FAIL, reason, rests_on=grounds, **numbers)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:+.2g} %"


def _nonfinite(curve: Curve, comparison: Comparison | None) -> int | None:
    """Surviving steps whose loss or gradient norm is no number; `None` for a trainer that reports no loss."""
    reported = comparison is not None and np.isfinite(comparison.fault_free.loss).any()
    odd = is_told(curve.loss) & ~np.isfinite(curve.loss)
    if comparison is not None and np.isfinite(comparison.fault_free.grad_norm).any():
        odd |= is_told(curve.grad_norm) & ~np.isfinite(curve.grad_norm)
    counts = odd & ~by_scale(odd & (curve.applied == 0))  # of an update that was skipped nothing came
    return int(counts.sum()) if reported else None


def _judged(name: str, bound: str, comparison: Comparison, outside: dict[str, Bools]) -> Expectation:
    """Names the first step and the curves that left the band."""
    found = {curve: np.flatnonzero(rows) for curve, rows in outside.items() if rows.any()}
    if not found:
        agree = "agrees" if len(comparison.step) == 1 else "agree"
        text = f"{counted(len(comparison.step), 'step')} {agree} with the fault-free run"
        return Expectation(name, bound, text, Verdict.PASS)
    curve, rows = min(found.items(), key=lambda item: int(item[1][0]))
    row = int(rows[0])
    mine, other = getattr(comparison.run, curve)[row], getattr(comparison.fault_free, curve)[row]
    names = ", ".join(WORDS[c] for c in found)
    differ = f"{names} differ{'s' if len(found) == 1 else ''} from the fault-free run"
    digits = 9 if f"{mine:.9g}" != f"{other:.9g}" else 17  # as many as tell them apart
    apart = f"{WORDS[curve]} {mine:.{digits}g} instead of {other:.{digits}g}"
    reason = f"{differ}: at step {comparison.step[row]} {apart}"
    observed = f"{int(np.logical_or.reduce(list(outside.values())).sum())} of {len(comparison.step)} steps differ"
    return Expectation(name, bound, observed, Verdict.FAIL, reason)


def _envelope(name: str, evidence: Analysis, comparison: Comparison) -> tuple[Expectation, dict[str, Any]]:
    """Outside the band it fails. What only differs sooner than fault-free runs do, nobody can tell from rounding."""
    band = evidence.envelope
    if isinstance(band, str):
        return left_open(name, "envelope", band, Doubt.NO_BAND), {}
    bound, sees = f"envelope, {band.source}", band.sees(comparison)
    values = {"band": band.source, "sees": [each._asdict() for each in sees]}
    if why := _resume_alone(evidence):
        return Expectation(name, bound, "the resume by itself", Verdict.FAIL, why), values
    if why := _size_alone(evidence):
        return left_open(name, bound, why, Doubt.SIZE_CHANGES), values
    outside = band.outside(comparison)
    odd = np.flatnonzero(np.logical_or.reduce(list(outside.values())))
    if (lasts := band.lasts(comparison)) and not (len(odd) and comparison.step[odd[0]] < lasts.first):
        where = f"in steps {lasts.first} to {lasts.last} by {lasts.apart:.2g} on average"
        reason = f"{WORDS[lasts.curve]} differs from the fault-free run: {where}, at most {lasts.most:.2g} is usual"
        return Expectation(name, bound, where, Verdict.FAIL, reason), values
    line = _judged(name, bound, comparison, outside)
    early = band.too_soon(comparison)
    if line.verdict is Verdict.PASS and any(rows.any() for rows in early.values()):
        why = f"{_judged(name, bound, comparison, early).reason}; {SOONER}"
        return left_open(name, bound, why, Doubt.NO_BAND), values
    return replace(line, observed="; ".join(filter(None, (line.observed, _in_figures(band, sees))))), values


def _resume_alone(evidence: Analysis) -> str:
    """Whether a fault-free run that resumes with as many ranks is another one than the one that does not."""
    resumed, alone = evidence.resumed_runs, evidence.fault_free_curve
    if resumed is None or alone is None:
        return ""
    # Each of the two is held against a band around the other: all that resume may be off by as much.
    sides = [(alone, resumed.same)] if not resumed.repeats(alone) else [(resumed.same, alone), (alone, resumed.same)]
    for centre, other in sides:
        band = resumed.around(centre) if len(sides) > 1 else evidence.calibrated
        if isinstance(band, str):
            continue
        found = compare(other, centre)
        rows, lasts = np.logical_or.reduce(list(band.outside(found).values())), band.lasts(found)
        if rows.any() or lasts is not None:
            where = f"at step {found.step[rows.argmax()]}" if rows.any() or not lasts else f"from step {lasts.first} on"
            what = "goes on from a save with as many ranks, without any fault,"
            return f"the resume by itself changes what is computed: a run that {what} differs {where}"
    return ""


def _size_alone(evidence: Analysis) -> str:
    """Whether fault-free runs that change their size at a save compute something else than the one that does not: they
    are further apart, or sooner, than runs of two sizes that parted at their first step. A band drawn from them would
    hide it."""
    resumed, band = evidence.resumed_runs, evidence.calibrated
    for other in resumed.others if resumed is not None and not isinstance(band, str) else ():
        assert resumed is not None and not isinstance(band, str)
        found = compare(other, resumed.same)
        rows = np.logical_or.reduce([*band.outside(found).values(), *band.too_soon(found).values()])
        if rows.any() or band.lasts(found) is not None:
            where = f"at step {found.step[rows.argmax()]}" if rows.any() else "for long"
            what = "fault-free runs that change their size as this one did differ"
            return f"{what} {where} by more than runs of two sizes: the change of size changes what is computed"
    return ""


def _unseen(evidence: Analysis) -> Iterator[tuple[str, str]]:
    """What the envelope could not have told from a run that trains on."""
    comparison = evidence.comparison
    if comparison is None or evidence.incomparable or isinstance(band := evidence.envelope, str):
        return
    if not (sees := band.sees(comparison)):
        return
    least, changes = sees[-1].percent, band.changes_by(sees[0])
    if least >= changes:
        why = f"only {least:.2g} % or more shows, and training changes the loss by {changes:.2g} % from there on"
        yield "a loss that is off for good", why
    resumed, alone = evidence.resumed_runs, evidence.calibrated
    if resumed is None and len({epoch.size for epoch in evidence.run.epochs}) > 1:
        yield "the resume by itself", "no fault-free run resumes with as many ranks"
    elif resumed is not None and not isinstance(alone, str) and alone.blind_from(int(resumed.before.step[-1])):
        why = "runs of two sizes differ from their first steps on, and those that the band is drawn from change it, too"
        yield "the change of size by itself", why


def _worst(sees: Sequence[Mapping[str, float]]) -> str:
    return f" (off for good by {max(each['percent'] for each in sees):.2g} % would show)" if sees else ""


def _in_figures(band: Envelope, sees: Sequence[Sight]) -> str:
    """What would not have passed, beside what did."""
    if not sees:
        return ""
    least, most = (pick(sees, key=operator.attrgetter("percent")) for pick in (min, max))
    told = [f"{each.percent:.2g} % over steps {each.first} to {each.last}" for each in dict.fromkeys((least, most))]
    shows = f"a loss that is off for good would show from {' and '.join(told)}"
    return f"{shows}; training changes it by {band.changes_by(sees[0]):.2g} % from there on"


def _sample_lines(bounds: ContinuityBounds, consumed: Consumed, curve: Verdict) -> Iterator[Expectation]:
    amounts = ("", "") if consumed.kind == "places" else _amounts(consumed)
    repeated = ("repeated", consumed.repeated, bounds.max_samples_repeated, amounts[0])
    skipped = ("skipped", consumed.skipped, bounds.max_samples_skipped, amounts[1])
    for what, observed, bound, which in (repeated, skipped):
        name = f"loss_continuity.max_samples_{what}"
        if observed is None and bounds.mode == "exact" and curve is Verdict.PASS:
            text = "the losses equal the fault-free run's, bit for bit"
            yield Expectation(name, f"≤ {bound}", text, Verdict.PASS, bound_value=bound, unit="samples")
        elif observed is None:
            numbers: dict[str, Any] = {"bound_value": bound, "unit": "samples"}
            yield left_open(name, f"≤ {bound}", consumed.why, Doubt.UNMEASURED, **numbers)
        else:
            were = "was" if observed == 1 else "were"
            reason = which or f"{counted(observed, 'sample')} {were} {what}, first {consumed.where}"
            yield Bound(name, unit="samples").line(bound, observed, reason, ORDER)


def _ranks_agree(evidence: Analysis, bounds: ContinuityBounds, moved: bool, followed: bool) -> Iterator[Claim]:
    """Replicas that drift apart are broken, whatever rank 0 says. `moved`: samples may be others than in the fault-free
    run; `followed`: what each rank consumed is judged elsewhere. Whether ranks tell values of their own, the fault-free
    run shows; without one the run itself does, before its first fault."""
    run, fault_free = evidence.run, evidence.fault_free
    before = run.steps.survives & (run.steps.end < first_strike(run.faults))
    usual = fault_free.steps if fault_free else replace(run.steps, survives=before)
    closely = {"exact": 0.0, "ulp": bounds.max_ulp}.get(bounds.mode) if not evidence.never_the_same else None
    for name, words in (*WORDS.items(), *({} if followed else SAMPLES).items()):
        telling = ranks.telling(fault_free.steps if fault_free else run.steps, name)
        local = ranks.is_local(usual, name, telling)
        if local and fault_free is not None:
            allowed = closely if name in CURVES else None if moved else 0.0
            row = None if allowed is None else ranks.off_the_fault_free_run(run.steps, fault_free.steps, name, allowed)
            if row is not None:
                whose = f"the {words} of rank {run.steps.rank[row]}"
                text = f"at step {run.steps.step[row]} {whose} differs from the same rank of the fault-free run"
                yield failed(Code.LOSS_RANK_DIFFERS, f"loss_continuity: {text}", COMPUTED)
        elif bad := ranks.split(run.steps, name, telling):
            text = f"loss_continuity: at step {bad[0]} ranks {bad[1]} disagree on the {words}"
            if local:
                yield unknown(Code.RANKS_DISAGREE, f"{text}, and no fault-free run shows whether they always do")
            else:
                yield failed(Code.RANKS_DISAGREE, text, COMPUTED)


def _far_off(evidence: Analysis, gap_percent: float) -> Iterator[Claim]:
    """Of the ranks that are not compared, as each tells its own loss: one whose last losses are mostly higher than
    nearly all of the fault-free run's, or all the same. Its replica may have diverged, or be dead."""
    run, comparison = evidence.run.steps, evidence.comparison
    if evidence.fault_free is None or comparison is None or len(comparison.step) < 2 * LAST_STEPS:
        return
    usual, first = evidence.fault_free.steps, int(comparison.step[-LAST_STEPS])
    without = usual.loss[usual.survives & (usual.step >= first) & np.isfinite(usual.loss)]
    most = float(np.quantile(without, 0.95)) if len(without) >= LAST_STEPS else np.inf
    for rank in np.unique(run.rank[np.isfinite(run.loss)]).tolist()[1:]:
        losses = run.loss[run.survives & (run.step >= first) & (run.rank == rank) & np.isfinite(run.loss)]
        text = f"from step {first} on the loss of rank {rank} is"
        if len(losses) and np.median(losses) > most + gap_percent / 100 * abs(most):
            text = f"{text} {np.median(losses):.4g} in the median, and below {most:.4g} mostly without a fault"
            yield unknown(Code.LOSS_RANK_DIFFERS, text)
        elif len(losses) == LAST_STEPS and np.ptp(losses) == 0 < np.ptp(without):
            yield unknown(Code.LOSS_NEVER_CHANGES, f"{text} {losses[0]:g} in each step, and changes without a fault")


def _untold(evidence: Analysis) -> str:
    """What only one of the two runs tells, so that it cannot be compared; an empty text: nothing."""
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None:
        return ""
    for name, rows in ranks.holes(run.steps, fault_free.steps):
        if len(rows):
            text = f"rank {run.steps.rank[rows[0]]} does not tell its {WORDS[name]} at step {run.steps.step[rows[0]]}"
            return f"{text}, where it does in the fault-free run ({counted(len(rows), 'such value')})"
        if len(steps := comparison.alone(name)):
            text = f"the {WORDS[name]} of {counted(len(steps), 'step')} is told by one of the two runs only"
            return f"{text}, first at step {steps[0]}"
    return ""


def _never_changes(comparison: Comparison | None) -> Iterator[Claim]:
    """A figure that is the same in so many steps, and in no two of them without a fault, is not measured."""
    if comparison is None:
        return
    for name in ("loss", "grad_norm"):
        mine, usual = getattr(comparison.run, name), getattr(comparison.fault_free, name)
        for part in by_time.stretches(mine[1:] == mine[:-1]):
            if part.stop - part.start >= SAME_STEPS and not (usual[1:] == usual[:-1])[part].any():
                first, last = comparison.step[part.start], comparison.step[part.stop]
                text = f"the {WORDS[name]} is {mine[part.start]:g} in all steps {first} to {last}"
                yield unknown(Code.LOSS_NEVER_CHANGES, f"{text}, and changes at each of them without a fault")
                return


def _other_samples(
    comparison: Comparison | None, bounds: ContinuityBounds, left_out: LeftOut = NOTHING_LEFT_OUT
) -> Iterator[Claim]:
    if comparison is None:
        return
    mine, other = comparison.run, _moved_on(comparison.fault_free, left_out)
    differ = (mine.digest != other.digest) & (mine.digest != 0) & (other.digest != 0)
    if not bounds.max_samples_repeated and not bounds.max_samples_skipped:  # else positions may well be others
        told = (mine.first >= 0) & (other.first >= 0) & (mine.count >= 0) & (other.count >= 0)
        differ |= told & ((mine.first != other.first) | (mine.count != other.count))
    bad = np.flatnonzero(differ)
    untold = int(((other.digest != 0) & (mine.digest == 0)).sum())
    if untold and bounds.mode != "exact" and (mine.first >= 0).all():  # else the losses' bits speak, or another line
        text = f"{counted(untold, 'step')} without their samples in the log, but the fault-free run tells them"
        yield unknown(Code.SAMPLES_UNTOLD, f"loss_continuity: {text}")
    if len(bad):
        first = comparison.step[bad[0]]
        text = f"{counted(len(bad), 'step')} consumed other samples than the fault-free run, first at step {first}"
        yield failed(Code.SAMPLES_OTHER, f"loss_continuity: {text}", COMPUTED)


def _moved_on(fault_free: Curve, left_out: LeftOut) -> Curve:
    """The fault-free run as it would have gone with these samples left out. What it never came to has no digest."""
    if not left_out.accepted or not len(fault_free) or (fault_free.first < 0).any():
        return fault_free
    first, order = left_out.moved(fault_free.first), np.argsort(fault_free.first)
    place = order[np.searchsorted(fault_free.first, first, sorter=order).clip(max=len(order) - 1)]
    known = fault_free.first[place] == first
    return replace(fault_free, first=first, digest=np.where(known, fault_free.digest[place], 0))


def _resumes(run: Timeline, curve: Curve, comparison: Comparison | None) -> Iterator[dict[str, Any]]:
    """The loss on both sides of every resume that survived; a spike is what the fault-free run does not show there."""
    steps: Sequence[int] = curve.step.tolist()
    place = {step: row for row, step in enumerate(steps)}
    told = zip(comparison.step, comparison.fault_free.loss, strict=True) if comparison else ()
    loss = {int(step): float(value) for step, value in told}
    for epoch in run.epochs:
        before, after = place.get(epoch.first - 1), place.get(epoch.first)
        if epoch.kept < epoch.first or before is None or after is None:
            continue
        rise = float(curve.loss[after] - curve.loss[before])
        usual = loss.get(epoch.first, np.nan) - loss.get(epoch.first - 1, np.nan)
        spike = rise - usual if np.isfinite(usual) and np.isfinite(rise) else None
        yield {"step": epoch.first, "rise": rise if np.isfinite(rise) else None, "spike": spike}


SCORES = (LossContinuity(),)
