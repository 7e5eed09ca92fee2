"""Loss continuity: is the surviving history the one that no fault would have left?

Two questions. The curve: does every surviving step have the loss, gradient norm and learning rate of the
fault-free run (bit for bit, or within a calibrated band)? The samples: does the surviving lineage consume
every sample exactly once, in order?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from harness.judge import ranks_agree
from harness.judge.codes import Code, Doubt
from harness.judge.facts import comparable, ends, skipped
from harness.judge.facts.abnormal import LeftOut
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.consumed import Consumed
from harness.judge.facts.curves import CURVES, WORDS, Comparison, Curve, compare, distance, surviving, ulps
from harness.judge.score import Bounds, Expectation, Finding, Percent, Score, ScoreResult, Verdict, at_most
from harness.timeline.timeline import Bools, Floats, Timeline
from harness.units import counted

NOTHING_LEFT_OUT = LeftOut()
BAND_FACTOR = 3.0  # the band is so many times the largest difference seen among fault-free runs up to that step
UNPROVEN = "nothing shows that the order is the same in every run"
LASTING = 0.9  # of the steps from the first one on that differs
BEFORE_NS = 100_000_000  # a fault is told a moment after it began to act
FLOOR_ULPS = 4.0  # ... and never narrower than so many units in the last place of a 32-bit float


NO_BOUND = "the scenario sets no bound on it"
_SAMPLE_BOUNDS = ("max_samples_repeated", "max_samples_skipped")


class ContinuityBounds(Bounds):
    """`mode`: `exact` bit for bit · `ulp` within `max_ulp` · `envelope` within the calibrated band · `final`: where a
    fault changes what is computed, the mean loss of the last fifth of the steps, within `max_final_gap`.

    `samples`: `judged` · `reported`: which were repeated or never seen is in the report, and not judged."""

    mode: Literal["exact", "ulp", "envelope", "final"] = "exact"
    max_ulp: float = 16.0
    max_final_gap: Percent = 1.0
    max_nonfinite_steps: int = 0
    samples: Literal["judged", "reported"] = "judged"
    max_samples_repeated: int = 0
    max_samples_skipped: int = 0
    max_spike: float | None = None

    @model_validator(mode="after")
    def _judged_where_bounded(self) -> ContinuityBounds:
        if self.samples == "reported" and not self.model_fields_set.isdisjoint(_SAMPLE_BOUNDS):
            raise ValueError("samples: reported sets no bound; leave out max_samples_repeated and max_samples_skipped")
        return self


class LossContinuity(Score):
    name = "loss_continuity"
    order = 30
    Bounds = ContinuityBounds

    def score(self, evidence: Analysis, bounds: ContinuityBounds | None) -> ScoreResult:
        run = evidence.run
        mode = bounds.mode if bounds else "exact"
        comparison = evidence.comparison
        samples = _samples(evidence)
        values = _values(evidence, mode, samples)
        values["spike_max"] = max((r["spike"] for r in values["resumes"] if r["spike"] is not None), default=None)
        if bounds is None:
            return ScoreResult(values, not_judged=_in_passing(samples))
        line, reach = _curve_line(evidence, bounds, comparison)
        values |= reach
        asked, judged = not bounds.model_fields_set.isdisjoint(_SAMPLE_BOUNDS), bounds.samples == "judged"
        lines = [line]
        if judged and (samples.comparable or asked):
            lines += _sample_lines(bounds, samples, line.verdict)
        if bounds.mode == "final":
            lines.append(
                at_most(
                    "loss_continuity.max_nonfinite_steps",
                    values["nonfinite_steps"],
                    bounds.max_nonfinite_steps,
                    str,
                    unit="steps",
                )
            )
        if bounds.max_spike is not None:
            spike = values["spike_max"]
            lines.append(at_most("loss_continuity.max_spike", spike, bounds.max_spike, lambda x: f"{x:.4g}"))
        moved = bool(bounds.max_samples_repeated or bounds.max_samples_skipped)  # then positions may be others
        same = comparison is None or not len(comparison.step) or not _never_the_same(run, comparison)
        by_rank = bounds.mode if same else "final"  # nothing is held against a rank's own losses then
        apart = ranks_agree.findings(
            evidence, by_rank, bounds.max_ulp, moved, evidence.consumed is not None or not judged
        )
        if not judged:
            reasons = [*apart]
        elif evidence.consumed is None:
            reasons = [*apart, *_other_samples(comparison, bounds, evidence.left_out)]
        else:  # other samples are the cause of other losses, so they are named first
            reasons = [*_moved(evidence.consumed, moved), *apart]
        summary = {
            "exact": "losses identical bit for bit",
            "final": f"final loss {_percent(values['final_gap_percent'])} off the fault-free run",
        }.get(mode, f"losses within the {mode} band")
        untold = [] if samples.comparable else [("sample order", samples.why)]
        untold = untold if judged else _in_passing(samples) or [("sample order", NO_BOUND)]
        if run.beside.other_losses:
            lines, reasons = _not_held_against(run.beside.other_losses, lines, reasons)
        return ScoreResult(values, lines, reasons, summary + _whose(evidence, bounds), untold)


def _not_held_against(
    other: str, lines: Sequence[Expectation], reasons: Sequence[Finding]
) -> tuple[list[Expectation], list[Finding]]:
    """Other losses and samples than the fault-free run's, after or beside a rehearsal that may change them. What is
    repeated or left out within the run itself is no such thing."""
    why = (
        f"rehearsal {other} changes what the job computes from there on: rehearse it on another day, or after this one"
    )
    found = [
        replace(line, verdict=Verdict.INCONCLUSIVE, reason=f"{line.reason}; {why}", doubt=Doubt.OTHER_REHEARSAL)
        if line.verdict is not Verdict.PASS and not line.name.startswith("loss_continuity.max_samples")
        else line
        for line in lines
    ]
    return found, [
        Finding(Verdict.INCONCLUSIVE, f"{each.text}; {why}", each.code, Doubt.OTHER_REHEARSAL) for each in reasons
    ]


def _values(evidence: Analysis, mode: str, samples: Samples) -> dict[str, Any]:
    """As in report.json."""
    curve, comparison = evidence.curve, evidence.comparison
    return {
        "mode": mode,
        "max_abs_diff": comparison.max_abs_diff if comparison else None,
        "first_divergent_step": comparison.first_divergent_step if comparison else None,
        "final_gap_percent": comparison.final_gap_percent if comparison else None,
        "nonfinite_steps": _nonfinite(curve, comparison),
        "steps_compared": len(comparison.step) if comparison else 0,
        "samples_repeated": samples.repeated,
        "samples_skipped": samples.skipped,
        "steps_missing": len(evidence.missing),
        "resumes": list(_resumes(evidence.run, curve, comparison)),
    }


def _whose(evidence: Analysis, bounds: ContinuityBounds) -> str:
    """Of which rank the losses were compared, where each tells its own and not all were."""
    if bounds.mode in ("exact", "ulp") or not ranks_agree.own_losses(evidence):
        return ""
    told = evidence.run.steps.rank[np.isfinite(evidence.run.steps.loss)]
    return f" (of rank {int(told.min())}; each rank reports its own)" if len(told) else ""


@dataclass(frozen=True)
class Samples:
    """Positions consumed twice or never in the surviving lineage; `None` where the trainer does not tell."""

    repeated: int | None
    skipped: int | None
    where: str  # the first place in words
    which: tuple[str, str] = ("", "")  # those repeated and those skipped, in words, where their indices are told
    why: str = "the trainer does not report which samples a step consumed"  # where it is not known
    comparable: bool = True
    unproven: bool = False  # whether the order is the same in every run is not known
    unit: str = "samples"


def _samples(evidence: Analysis) -> Samples:
    """By what each rank tells that it consumed, else by the places in the shuffled order."""
    found = evidence.consumed
    if found is None:
        return sample_ledger(evidence.curve, evidence.left_out)
    return Samples(
        found.repeated,
        found.skipped,
        "",
        (found.repeated_where, found.skipped_where),
        found.why,
        found.comparable,
        found.unproven,
        "samples" if found.kind == "samples" else "inputs of steps",
    )


def _in_passing(samples: Samples) -> list[tuple[str, str]]:
    """What a scenario that expects nothing of it is told all the same."""
    odd = [text for text in _amounts(samples) if text]
    return [("sample order", f"{NO_BOUND}, but {'; '.join(odd)}")] if odd else []


def _amounts(samples: Samples) -> tuple[str, str]:
    """How many were repeated and how many never seen, and which; an empty text for none."""
    of = "" if samples.unit == "samples" else f" {samples.unit}"
    found = (
        (samples.repeated, f"{of} repeated{samples.which[0]}"),
        (samples.skipped, f"{of} never seen{samples.which[1]}"),
    )
    repeated, skipped = (f"{amount}{text}" if amount else "" for amount, text in found)
    return repeated, skipped


def _moved(found: Consumed, allowed: bool) -> Iterator[Finding]:
    """Other samples in these steps than in the fault-free run's; how many in all were repeated is counted elsewhere."""
    if found.moved and not allowed:
        what = f"{counted(found.moved, 'step')} consumed other samples than the fault-free run"
        text = f"{what}, first at step {found.first_moved}"
        if found.unproven:
            yield Finding(
                Verdict.INCONCLUSIVE, f"loss_continuity: {text}; {UNPROVEN}", Code.SAMPLES_MOVED, Doubt.ORDER_UNPROVEN
            )
        else:
            yield Finding(Verdict.FAIL, f"loss_continuity: {text}", Code.SAMPLES_MOVED)


def sample_ledger(curve: Curve, left_out: LeftOut = NOTHING_LEFT_OUT) -> Samples:
    """Follows the surviving steps in order: each must begin where the one before ended, but for what was left out."""
    if not len(curve) or (curve.first < 0).any() or (curve.count < 0).any():
        return Samples(None, None, "")
    jump = curve.first[1:] - (curve.first + curve.count)[:-1]
    jump[np.diff(curve.step) != 1] = 0  # what lies between steps that are missing is not known; they are named instead
    for row in np.flatnonzero(jump > 0) if left_out.accepted else ():
        jump[row] -= left_out.within(int(curve.first[row] + curve.count[row]), int(curve.first[row + 1]))
    rows = np.flatnonzero(jump)
    jumps: list[int] = jump[rows].tolist()  # a sum of forged positions has more than 64 bits
    where = f"at step {curve.step[rows[0] + 1]}" if jumps else ""
    return Samples(sum(-each for each in jumps if each < 0), sum(each for each in jumps if each > 0), where)


def _curve_line(
    evidence: Analysis, bounds: ContinuityBounds, comparison: Comparison | None
) -> tuple[Expectation, dict[str, Any]]:
    """The expectation on the curve itself, and what more it brings into the values."""
    name = "loss_continuity.mode"
    problem = _no_comparison(evidence, comparison)
    if comparison is None or problem:
        return Expectation(name, bounds.mode, "—", Verdict.INCONCLUSIVE, problem, doubt=Doubt.NOT_COMPARABLE), {}
    if bounds.mode == "exact":
        if reason := _never_the_same(evidence.run, comparison):
            return Expectation(name, "exact", "—", Verdict.INCONCLUSIVE, reason, doubt=Doubt.NEVER_THE_SAME), {}
        return _judged(name, "exact", comparison, comparison.differs), {}
    if bounds.mode == "final":
        return _final(name, bounds, comparison), {}
    band, source = _band(evidence, bounds, comparison)
    if band is None:
        return Expectation(name, bounds.mode, "—", Verdict.INCONCLUSIVE, source, doubt=Doubt.NO_BAND), {}
    outside = {c: distance(getattr(comparison.run, c), getattr(comparison.fault_free, c)) > band[c] for c in CURVES}
    return _judged(name, f"{bounds.mode}, {source}", comparison, outside), {"band": source}


def _never_the_same(run: Timeline, comparison: Comparison) -> str:
    """Why a trainer that does not do the same in every run is not accused of it, or an empty text: a step differs that
    every rank had done well before a fault struck, and nearly all after it. Sums in another order are enough for that,
    from the second step on; steps that differ for a while and then no more are something else. Where no fault was
    planned, none struck before the end.
    """
    undisturbed = None if run.plan.get("faults") or len(run.epochs) > 1 else run.end + BEFORE_NS + 1
    struck = min((fault.injected for fault in run.faults if fault.injected is not None), default=undisturbed)
    differ = np.logical_or.reduce(list(comparison.differs.values()))
    odd = np.flatnonzero(differ)
    if struck is None or not len(odd) or (len(odd) < LASTING * len(differ[odd[0] :]) and odd[0] > 0):
        return ""
    first = comparison.step[odd[0]]
    if int(run.steps.end[run.steps.step == first].max()) >= struck - BEFORE_NS:
        return ""
    if run.beside.earlier:
        why = f"step {first} differs from the fault-free run before this rehearsal's fault struck"
        return why if run.beside.other_losses else f"{why}: see the rehearsals before it"
    why = f"step {first} differs from the fault-free run before any fault struck"
    return f"{why}: the trainer is not deterministic; fix its seeds, or use mode: envelope or final"


def _final(name: str, bounds: ContinuityBounds, comparison: Comparison) -> Expectation:
    """The learning rate is a pure function of the step, whatever happens to the loss."""
    bound, gap = f"final, within {bounds.max_final_gap:g} %", None
    if comparison.differs["lr"].any():
        return _judged(name, bound, comparison, {"lr": comparison.differs["lr"]})
    if int(comparison.step[-1]) == comparison.fault_free_last:
        gap = comparison.final_gap_percent
    if comparison.near_zero:
        reason = "the final loss is too close to zero for a gap in percent"
        return Expectation(name, bound, "—", Verdict.INCONCLUSIVE, reason, doubt=Doubt.NEAR_ZERO)
    if gap is None:
        reason = "the last steps cannot be compared with the fault-free run"
        return Expectation(name, bound, "—", Verdict.INCONCLUSIVE, reason, doubt=Doubt.NOT_COMPARABLE)
    numbers: dict[str, Any] = {"bound_value": bounds.max_final_gap, "observed_value": abs(gap), "unit": "%"}
    if abs(gap) <= bounds.max_final_gap:  # never true of a gap that is not a number
        return Expectation(name, bound, _percent(gap), Verdict.PASS, **numbers)
    reason = f"the final loss is {_percent(gap)} off the fault-free run"
    scatter = comparison.final_scatter_percent
    if abs(gap) - scatter <= bounds.max_final_gap:
        reason += f", but such gaps scatter by ± {scatter:.2g} % here: train longer, or allow a larger gap"
        return Expectation(name, bound, _percent(gap), Verdict.INCONCLUSIVE, reason, doubt=Doubt.SCATTER, **numbers)
    return Expectation(name, bound, _percent(gap), Verdict.FAIL, reason, **numbers)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:+.2g} %"


def _nonfinite(curve: Curve, comparison: Comparison | None) -> int | None:
    """Surviving steps whose loss is no number; `None` for a trainer that reports no loss."""
    reported = comparison is not None and np.isfinite(comparison.fault_free.loss).any()
    odd = ~np.isfinite(curve.loss)
    counts = odd & ~skipped.by_scale(odd & (curve.applied == 0))  # of an update that was skipped nothing came
    return int(counts.sum()) if reported else None


def _no_comparison(evidence: Analysis, comparison: Comparison | None) -> str:
    run, fault_free = evidence.run, evidence.fault_free
    if comparison is None or fault_free is None:
        return "there is no fault-free run to compare with"
    if (
        fault_free.faults
        or not fault_free.finished
        or fault_free.outcome != "completed"
        or any(ends.unexplained(fault_free))
    ):
        return "the fault-free run was disturbed or did not finish"
    if _shape(run) != _shape(fault_free):
        return "the fault-free run has another seed or another number of ranks"
    if not len(comparison.step):
        return "no surviving step can be compared with the fault-free run"
    if len(comparison.step) < comparison.run_steps:
        missing = comparison.run_steps - len(comparison.step)
        return f"{counted(missing, 'step')} {'is' if missing == 1 else 'are'} not in the fault-free run"
    if not np.isfinite(comparison.fault_free.loss).any():
        return "the trainer reports no loss"
    if _never_change(comparison):
        return "the losses of the fault-free run never change, so equal losses prove nothing"
    told = np.flatnonzero(np.isfinite(comparison.fault_free.loss))
    gap = int(np.diff(told, prepend=-1).max())  # a trainer may report its loss now and then
    if len(comparison.step) - 1 - int(told[-1]) > gap:
        return f"the fault-free run reports no finite loss after step {comparison.step[told[-1]]}"
    return ""


def _never_change(comparison: Comparison) -> bool:
    """Whether loss and gradient norm have one value only, so far as they are told."""
    told = [values[np.isfinite(values)] for values in (comparison.fault_free.loss, comparison.fault_free.grad_norm)]
    return all(not len(values) or (len(values) > 1 and np.ptp(values) == 0) for values in told)


def _shape(run: Timeline) -> tuple[Any, ...]:
    """What a run shares with its fault-free run, even with one by another version of its trainer."""
    return run.plan.get("seed"), run.planned_size.nodes, run.planned_size.ranks_per_node


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
    reason = (
        f"{names} differ{'s' if len(found) == 1 else ''} from the fault-free run: at step {comparison.step[row]} "
        f"{WORDS[curve]} {_apart(mine, other)}"
    )
    observed = f"{int(np.logical_or.reduce(list(outside.values())).sum())} of {len(comparison.step)} steps differ"
    return Expectation(name, bound, observed, Verdict.FAIL, reason)


def _apart(mine: float, other: float) -> str:
    """Both, with as many digits as tell them apart."""
    short = f"{mine:.9g} instead of {other:.9g}"
    return short if f"{mine:.9g}" != f"{other:.9g}" else f"{mine:.17g} instead of {other:.17g}"


def _band(evidence: Analysis, bounds: ContinuityBounds, comparison: Comparison) -> tuple[dict[str, Floats] | None, str]:
    """Half-width of the band per curve and step, and where it comes from. The learning rate is a pure function
    of the step: it gets rounding and no more."""
    fault_free = comparison.fault_free
    ulp = {c: ulps(getattr(fault_free, c)) for c in CURVES}
    if bounds.mode == "ulp":
        return {c: bounds.max_ulp * ulp[c] for c in CURVES}, f"{bounds.max_ulp:g} units in the last place"
    flaws = [comparable.flaw(evidence.run, t) for t in evidence.calibration]
    repeats = [t for t, flaw in zip(evidence.calibration, flaws, strict=True) if not flaw]
    if not repeats:
        if flaws:
            return None, f"the fault-free runs give no band: {'; '.join(dict.fromkeys(flaws))}"
        return None, "mode envelope needs fault-free runs to calibrate its band, but there are none"
    band = {c: FLOOR_ULPS * ulp[c] for c in CURVES}
    for repeat in repeats:
        spread = compare(surviving(repeat.steps), fault_free)
        rows = np.searchsorted(fault_free.step, spread.step)
        for c in ("loss", "grad_norm"):
            seen = np.zeros(len(fault_free))
            mine, other = getattr(spread.run, c), getattr(spread.fault_free, c)
            both = np.isfinite(mine) & np.isfinite(other)  # a hole tells nothing of the spread
            seen[rows] = np.where(both, distance(mine, other), 0.0)
            if c == "loss" and seen.max(initial=0) and BAND_FACTOR * seen.max() >= _moves(fault_free):
                return None, "fault-free runs differ by as much as the loss changes, so they give no band"
            # Runs that once differ drift apart further: the band never narrows again.
            band[c] = np.maximum(band[c], BAND_FACTOR * np.maximum.accumulate(seen))
    sizes = sorted({int(e.size) for t in repeats for e in t.epochs})
    runs = f"{len(repeats)} other fault-free run{'' if len(repeats) == 1 else 's'}"
    source = f"{BAND_FACTOR:g} × the spread of {runs} (ranks: {', '.join(map(str, sizes))})"
    return band, source


def _moves(fault_free: Curve) -> float:
    """From the lowest loss to the highest one; a band that is as wide lets everything pass."""
    finite = fault_free.loss[np.isfinite(fault_free.loss)]
    return float(np.ptp(finite))


def _sample_lines(bounds: ContinuityBounds, samples: Samples, curve: Verdict) -> Iterator[Expectation]:
    amounts = _amounts(samples) if samples.which != ("", "") or samples.unit != "samples" else ("", "")
    repeated = ("repeated", samples.repeated, bounds.max_samples_repeated, amounts[0])
    skipped = ("skipped", samples.skipped, bounds.max_samples_skipped, amounts[1])
    for what, observed, bound, which in (repeated, skipped):
        name = f"loss_continuity.max_samples_{what}"
        if observed is None and bounds.mode == "exact" and curve is Verdict.PASS:
            text = "the losses equal the fault-free run's, bit for bit"
            yield Expectation(name, f"≤ {bound}", text, Verdict.PASS, bound_value=bound, unit="samples")
        elif observed is None:
            numbers: dict[str, Any] = {"bound_value": bound, "unit": "samples"}
            doubt = Doubt.UNMEASURED
            yield Expectation(name, f"≤ {bound}", "—", Verdict.INCONCLUSIVE, samples.why, doubt=doubt, **numbers)
        elif observed > bound and samples.unproven:
            reason = f"{which}; {UNPROVEN}"
            yield Expectation(
                name, f"≤ {bound}", str(observed), Verdict.INCONCLUSIVE, reason, doubt=Doubt.ORDER_UNPROVEN
            )
        else:
            were = "was" if observed == 1 else "were"
            reason = which or f"{counted(observed, 'sample')} {were} {what}, first {samples.where}"
            yield at_most(name, observed, bound, str, reason, "samples")


def _other_samples(
    comparison: Comparison | None, bounds: ContinuityBounds, left_out: LeftOut = NOTHING_LEFT_OUT
) -> Iterator[Finding]:
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
        yield Finding(Verdict.INCONCLUSIVE, f"loss_continuity: {text}", Code.SAMPLES_UNTOLD)
    if len(bad):
        first = comparison.step[bad[0]]
        text = f"{counted(len(bad), 'step')} consumed other samples than the fault-free run, first at step {first}"
        yield Finding(Verdict.FAIL, f"loss_continuity: {text}", Code.SAMPLES_OTHER)


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
