"""Loss continuity: is the surviving history the one that no fault would have left?

Two questions. The curve: does every surviving step have the loss, gradient norm and learning rate of the
fault-free twin (bit for bit, or within a calibrated band)? The samples: does the surviving lineage consume
every sample exactly once, in order?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from harness.judge import deaths, fault_free, ranks
from harness.judge.ranks import bits as _bits
from harness.judge.score import Bounds, Evidence, Expectation, Percent, Score, ScoreResult, Verdict, at_most
from harness.timeline.lineage import cells
from harness.timeline.timeline import Bools, Floats, Ints, Process, Steps, Timeline

BAND_FACTOR = 3.0  # the band is so many times the largest difference seen among fault-free runs up to that step
FLOOR_ULPS = 4.0  # ... and never narrower than so many units in the last place of a 32-bit float
FINAL_SHARE = 0.2  # of the steps that both runs have: the mean loss of the last ones is compared
NAMED_STEPS = 5
CURVES = ("loss", "grad_norm", "lr")
_EVERY_RANK = ("exact", "ulp")  # modes in which each rank's own loss is compared, if ranks tell their own


class ContinuityBounds(Bounds):
    """`mode`: `exact` bit for bit · `ulp` within `max_ulp` · `envelope` within the calibrated band · `final`: where a
    fault changes what is computed, the mean loss of the last fifth of the steps, within `max_final_gap`."""

    mode: Literal["exact", "ulp", "envelope", "final"] = "exact"
    max_ulp: float = 16.0
    max_final_gap: Percent = 1.0
    max_nonfinite_steps: int = 0
    max_samples_repeated: int = 0
    max_samples_skipped: int = 0
    max_spike: float | None = None


@dataclass(frozen=True)
class Curve:
    """One row per surviving step: the values of the lowest rank that tells a loss, the same rank in every run."""

    step: Ints
    loss: Floats
    grad_norm: Floats
    lr: Floats
    digest: Ints
    first: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.step)

    def at(self, rows: Ints) -> Curve:
        return Curve(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


class LossContinuity(Score):
    name = "loss_continuity"
    order = 30
    Bounds = ContinuityBounds

    def score(self, evidence: Evidence, bounds: ContinuityBounds | None) -> ScoreResult:
        run, twin = evidence.run, evidence.twin
        mode = bounds.mode if bounds else "exact"
        curve, usual = surviving(run.steps), surviving(twin.steps) if twin else None
        comparison = compare(curve, usual) if usual else None
        samples = sample_ledger(curve, usual.step if usual else None)
        values: dict[str, Any] = {
            "mode": mode,
            "max_abs_diff": comparison.max_abs_diff if comparison else None,
            "first_divergent_step": comparison.first_divergent_step if comparison else None,
            "final_gap_percent": comparison.final_gap_percent if comparison else None,
            "nonfinite_steps": _nonfinite(curve, comparison),
            "steps_compared": len(comparison.step) if comparison else 0,
            "samples_repeated": samples.repeated,
            "samples_skipped": samples.skipped,
            "steps_missing": len(samples.missing),
            "resumes": list(_resumes(run, curve, comparison)),
        }
        values["spike_max"] = max((r["spike"] for r in values["resumes"] if r["spike"] is not None), default=None)
        if bounds is None:
            return ScoreResult(values)
        line, reach = _curve_line(evidence, bounds, comparison)
        line = _unless_constant(line, comparison)
        values |= reach
        lines = [line, *_sample_lines(run, bounds, samples, line.verdict)]
        if bounds.mode == "final":
            lines.append(
                at_most(
                    "loss_continuity.max_nonfinite_steps", values["nonfinite_steps"], bounds.max_nonfinite_steps, str
                )
            )
        if bounds.max_spike is not None:
            spike = values["spike_max"]
            lines.append(at_most("loss_continuity.max_spike", spike, bounds.max_spike, lambda x: f"{x:.4g}"))
        reasons = [*_disagreements(run, twin), *_false_restores(run, twin), *_other_samples(comparison, bounds)]
        reasons += _strays(run, twin, bounds) if line.verdict is Verdict.PASS else ()
        summary = {
            "exact": "losses identical bit for bit",
            "final": f"final loss {_percent(values['final_gap_percent'])} off the twin's",
        }.get(mode, f"losses within the {mode} band")
        return ScoreResult(values, lines, reasons, summary + _whose(run, twin, bounds))


def surviving(steps: Steps) -> Curve:
    """The surviving history, one row per step. A step that not all ranks did counts only if it was built upon."""
    rows = np.flatnonzero(steps.survives & (steps.complete | ~_tail(steps)))
    chosen = _one_row_per_step(steps, rows)
    columns = {name: getattr(steps, name)[chosen] for name in Curve.__dataclass_fields__}
    return Curve(**columns)


def _one_row_per_step(steps: Steps, rows: Ints) -> Ints:
    """Of these rows one of each step, in order of step: of the lowest rank that tells a loss at all (the only one in
    many trainers, and where each tells its own, the one to compare with), else of the lowest rank there is."""
    rank = steps.rank[rows]
    telling = rank[np.isfinite(steps.loss[rows])]
    speaker = int(telling.min(initial=np.iinfo(np.int64).max))
    small = np.int16 if not len(rank) or rank.max() < 2**15 else np.int64  # numpy sorts short integers in linear time
    order = np.argsort(np.where(rank == speaker, -1, rank).astype(small), kind="stable")[::-1]
    cell, count = cells(steps.step[rows])
    first = np.full(count, -1)
    first[cell[order]] = rows[order]  # the last one to write wins
    return first[first >= 0]


def _tail(steps: Steps) -> Bools:
    """Rows after the last complete step: whether they would have been kept is not known."""
    last = int(steps.step[steps.complete & steps.survives].max(initial=0))
    return np.asarray(steps.step > last, np.bool_)


@dataclass(frozen=True)
class Comparison:
    """Surviving steps that both runs have, side by side."""

    step: Ints
    run: Curve
    twin: Curve
    differs: dict[str, Bools]  # per curve, bit for bit
    twin_last: int
    run_steps: int  # with those that the twin does not have

    @property
    def max_abs_diff(self) -> float | None:
        if not len(self.step):
            return None
        return float(np.max(_distance(self.run.loss, self.twin.loss), initial=0.0))

    @property
    def final_gap_percent(self) -> float | None:
        """How far the mean loss of the last steps is off the twin's, in percent of that; `None`: not comparable."""
        last = max(1, round(FINAL_SHARE * len(self.step)))
        mine, other = self.run.loss[-last:], self.twin.loss[-last:]
        if not len(self.step) or not np.isfinite(other).all() or not np.mean(other):
            return None
        return float(100 * np.mean(mine - other) / np.mean(other))

    @property
    def first_divergent_step(self) -> int | None:
        rows = np.flatnonzero(np.logical_or.reduce(list(self.differs.values())))
        return int(self.step[rows[0]]) if len(rows) else None


def compare(run: Curve, twin: Curve) -> Comparison:
    step, mine, other = np.intersect1d(run.step, twin.step, assume_unique=True, return_indices=True)
    left, right = run.at(mine), twin.at(other)
    differs = {name: _differ(getattr(left, name), getattr(right, name)) for name in CURVES}
    return Comparison(step, left, right, differs, int(twin.step[-1]) if len(twin) else 0, len(run))


def _differ(mine: Floats, twin: Floats) -> Bools:
    """Bit for bit. One hole in what the twin tells is no difference; it hides none either, as other steps are told."""
    unlike = _bits(mine) != _bits(twin)
    hole = np.isnan(twin) & np.isfinite(mine)
    return np.asarray(unlike & ~hole if int(hole.sum()) <= fault_free.HOLES_MAX else unlike, np.bool_)


def _distance(a: Floats, b: Floats) -> Floats:
    """|a - b|, where equal infinities and two NaNs are no distance, and one NaN is an infinite one."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
    return np.asarray(np.where(_bits(a) == _bits(b), 0.0, np.where(np.isnan(distance), np.inf, distance)))


@dataclass(frozen=True)
class Samples:
    """Positions consumed twice or never in the surviving lineage; `None` where the trainer does not tell."""

    repeated: int | None
    skipped: int | None
    missing: Ints  # steps that no surviving epoch did, of those that the twin tells (not all trainers tell each step)
    where: str  # the first place in words


def sample_ledger(curve: Curve, told: Ints | None = None) -> Samples:
    """Follows the surviving steps in order: each must begin where the one before ended. `told`: the twin's steps."""
    expected = np.arange(1, int(curve.step[-1]) + 1) if len(curve) and curve.step[-1] < 1 << 40 else curve.step
    missing = np.setdiff1d(expected, curve.step, assume_unique=True)
    missing = missing if told is None else np.intersect1d(missing, told, assume_unique=True)
    if not len(curve) or (curve.first < 0).any() or (curve.count < 0).any():
        return Samples(None, None, missing, "")
    jump = curve.first[1:] - (curve.first + curve.count)[:-1]
    jump[np.diff(curve.step) != 1] = 0  # what lies between steps that are missing is not known; they are named instead
    rows = np.flatnonzero(jump)
    where = f"at step {curve.step[rows[0] + 1]}" if len(rows) else ""
    return Samples(int(np.maximum(-jump, 0).sum()), int(np.maximum(jump, 0).sum()), missing, where)


def _curve_line(
    evidence: Evidence, bounds: ContinuityBounds, comparison: Comparison | None
) -> tuple[Expectation, dict[str, Any]]:
    """The expectation on the curve itself, and what more it brings into the values."""
    name = "loss_continuity.mode"
    problem = _no_comparison(evidence, comparison)
    if comparison is None or problem:
        return Expectation(name, bounds.mode, "—", Verdict.INCONCLUSIVE, problem), {}
    if bounds.mode == "exact":
        return _judged(name, "exact", comparison, comparison.differs), {}
    if bounds.mode == "final":
        return _final(name, bounds, comparison), {}
    band, source = _band(evidence, bounds, comparison)
    if band is None:
        return Expectation(name, bounds.mode, "—", Verdict.INCONCLUSIVE, source), {}
    outside = {c: _distance(getattr(comparison.run, c), getattr(comparison.twin, c)) > band[c] for c in CURVES}
    return _judged(name, f"{bounds.mode}, {source}", comparison, outside), {"band": source}


def _final(name: str, bounds: ContinuityBounds, comparison: Comparison) -> Expectation:
    """The learning rate is a pure function of the step, whatever happens to the loss."""
    bound, gap = f"final, within {bounds.max_final_gap:g} %", None
    if comparison.differs["lr"].any():
        return _judged(name, bound, comparison, {"lr": comparison.differs["lr"]})
    if int(comparison.step[-1]) == comparison.twin_last:
        gap = comparison.final_gap_percent
    if gap is None:
        return Expectation(name, bound, "—", Verdict.INCONCLUSIVE, "the last steps cannot be compared with the twin's")
    if abs(gap) <= bounds.max_final_gap:  # never true of a gap that is not a number
        return Expectation(name, bound, _percent(gap), Verdict.PASS)
    return Expectation(name, bound, _percent(gap), Verdict.FAIL, f"the final loss is {_percent(gap)} off the twin's")


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:+.2g} %"


def _nonfinite(curve: Curve, comparison: Comparison | None) -> int | None:
    """Surviving steps whose loss is no number; `None` for a trainer that reports no loss."""
    reported = comparison is not None and np.isfinite(comparison.twin.loss).any()
    return int((~np.isfinite(curve.loss)).sum()) if reported else None


def _no_comparison(evidence: Evidence, comparison: Comparison | None) -> str:
    run, twin = evidence.run, evidence.twin
    if comparison is None or twin is None:
        return "there is no fault-free twin to compare with"
    if twin.faults or not twin.finished or twin.outcome != "completed" or any(deaths.unexplained(twin)):
        return "the twin is not an undisturbed, finished run"
    if _shape(run) != _shape(twin):
        return "the twin is of another seed or another number of ranks"
    if not len(comparison.step):
        return "no step survived that could be compared with the twin"
    if len(comparison.step) < comparison.run_steps:
        return f"{comparison.run_steps - len(comparison.step)} steps are not in the twin"
    if not np.isfinite(comparison.twin.loss).any():
        return "the trainer reports no loss"
    told = np.flatnonzero(np.isfinite(comparison.twin.loss))
    gap = int(np.diff(told, prepend=-1).max())  # a trainer may report its loss now and then
    if len(comparison.step) - 1 - int(told[-1]) > gap:
        return f"the twin itself tells no finite loss after step {comparison.step[told[-1]]}"
    return ""


def _shape(run: Timeline) -> tuple[Any, ...]:
    """What a run shares with its twin, even with one by another version of its trainer."""
    workload = run.plan.get("workload") or {}
    return run.plan.get("seed"), workload.get("nodes"), workload.get("ranks_per_node")


def _judged(name: str, bound: str, comparison: Comparison, outside: dict[str, Bools]) -> Expectation:
    """Names the first step and the curves that left the band."""
    found = {curve: np.flatnonzero(rows) for curve, rows in outside.items() if rows.any()}
    if not found:
        return Expectation(name, bound, f"{len(comparison.step)} steps agree with the twin", Verdict.PASS)
    curve, rows = min(found.items(), key=lambda item: int(item[1][0]))
    row = int(rows[0])
    mine, other = getattr(comparison.run, curve)[row], getattr(comparison.twin, curve)[row]
    names = ", ".join(_WORDS[c] for c in found)
    reason = (
        f"{names} differ{'s' if len(found) == 1 else ''} from the twin's: at step {comparison.step[row]} "
        f"{_WORDS[curve]} {_apart(mine, other)}"
    )
    observed = f"{int(np.logical_or.reduce(list(outside.values())).sum())} of {len(comparison.step)} steps differ"
    return Expectation(name, bound, observed, Verdict.FAIL, reason)


def _apart(mine: float, other: float) -> str:
    """Both, with as many digits as tell them apart."""
    short = f"{mine:.9g} instead of {other:.9g}"
    return short if f"{mine:.9g}" != f"{other:.9g}" else f"{mine:.17g} instead of {other:.17g}"


_WORDS = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate"}


def _band(evidence: Evidence, bounds: ContinuityBounds, comparison: Comparison) -> tuple[dict[str, Floats] | None, str]:
    """Half-width of the band per curve and step, and where it comes from. The learning rate is a pure function
    of the step: it gets rounding and no more."""
    twin = comparison.twin
    ulp = {c: _ulp(getattr(twin, c)) for c in CURVES}
    if bounds.mode == "ulp":
        return {c: bounds.max_ulp * ulp[c] for c in CURVES}, f"{bounds.max_ulp:g} units in the last place"
    flaws = [fault_free.flaw(evidence.run, t) for t in evidence.calibration]
    repeats = [t for t, flaw in zip(evidence.calibration, flaws, strict=True) if not flaw]
    if not repeats:
        if flaws:
            return None, f"no band can be drawn from the fault-free runs there are: {'; '.join(dict.fromkeys(flaws))}"
        return None, "the envelope needs fault-free runs to calibrate the band, and there are none"
    band = {c: FLOOR_ULPS * ulp[c] for c in CURVES}
    for repeat in repeats:
        spread = compare(surviving(repeat.steps), twin)
        rows = np.searchsorted(twin.step, spread.step)
        for c in ("loss", "grad_norm"):
            seen = np.zeros(len(twin))
            mine, other = getattr(spread.run, c), getattr(spread.twin, c)
            both = np.isfinite(mine) & np.isfinite(other)  # a hole tells nothing of the spread
            seen[rows] = np.where(both, _distance(mine, other), 0.0)
            if c == "loss" and seen.max(initial=0) and BAND_FACTOR * seen.max() >= _moves(twin):
                return None, "fault-free runs differ by as much as the loss moves: no band can be drawn from them"
            # Runs that once differ drift apart further: the band never narrows again.
            band[c] = np.maximum(band[c], BAND_FACTOR * np.maximum.accumulate(seen))
    sizes = sorted({int(e.size) for t in repeats for e in t.epochs})
    runs = f"{len(repeats)} fault-free run{'' if len(repeats) == 1 else 's'} besides the twin"
    source = f"{BAND_FACTOR:g} × the spread of {runs} (ranks: {', '.join(map(str, sizes))})"
    return band, source


def _ulp(values: Floats) -> Floats:
    """One unit in the last place of a 32-bit float, at each value."""
    return np.asarray(np.nan_to_num(np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)))


def _moves(twin: Curve) -> float:
    """From the lowest loss to the highest one; a band that is as wide lets everything pass."""
    finite = twin.loss[np.isfinite(twin.loss)]
    return float(finite.max() - finite.min())


def _sample_lines(run: Timeline, bounds: ContinuityBounds, samples: Samples, curve: Verdict) -> Iterator[Expectation]:
    missing = _missing(run, samples)
    repeated = ("repeated", samples.repeated, bounds.max_samples_repeated)
    skipped = ("skipped", samples.skipped, bounds.max_samples_skipped)
    for what, observed, bound in (repeated, skipped):
        name = f"loss_continuity.max_samples_{what}"
        if observed is None and bounds.mode == "exact" and curve is Verdict.PASS:
            text = "the losses are the twin's, bit for bit"
            yield Expectation(name, f"≤ {bound}", text, Verdict.PASS)
        elif observed is None:
            reason = "the trainer does not report which samples a step consumed"
            yield Expectation(name, f"≤ {bound}", "—", Verdict.INCONCLUSIVE, reason)
        else:
            reason = f"{observed} samples were {what}, first {samples.where}"
            yield at_most(name, observed, bound, str, reason)
    if missing is not None:
        verdict, reason = missing
        yield Expectation(
            "loss_continuity.steps", "every step once", f"{len(samples.missing)} missing", verdict, reason
        )


def _missing(run: Timeline, samples: Samples) -> tuple[Verdict, str] | None:
    """Steps that no surviving epoch did. One step at the seam of a kill may only have lost its last event."""
    if not len(samples.missing):
        return None
    text = f"{_steps(samples.missing)} are in no surviving history: progress was claimed, not made"
    seams = {int(epoch.first) - 1 for epoch in run.epochs if epoch.kept >= 0}
    if run.dropped:
        return Verdict.INCONCLUSIVE, f"{_steps(samples.missing)} left no event; {run.dropped} were lost to a full disk"
    if all(step in seams and step - 1 not in samples.missing for step in samples.missing.tolist()):
        return Verdict.INCONCLUSIVE, f"{_steps(samples.missing)}: its event was lost when its workers died"
    return Verdict.FAIL, text


def _steps(numbers: Ints) -> str:
    shown = ", ".join(str(n) for n in numbers[:NAMED_STEPS].tolist())
    return (
        f"steps {shown}{', …' if len(numbers) > NAMED_STEPS else ''} ({len(numbers)})"
        if len(numbers) > 1
        else (f"step {shown}")
    )


def _disagreements(run: Timeline, twin: Timeline | None) -> Iterator[tuple[Verdict, str]]:
    """Ranks that did the same step must agree: replicas that drift apart are broken, whatever rank 0 says."""
    for name, step, pair in ranks.disagreements(run.steps, twin.steps if twin is not None else None):
        yield Verdict.FAIL, f"loss_continuity: at step {step} ranks {pair} disagree on the {name}"


def _strays(run: Timeline, twin: Timeline | None, bounds: ContinuityBounds) -> Iterator[tuple[Verdict, str]]:
    """Where each rank tells a loss of its own, every one of them must be the twin's, not only the lowest rank's."""
    if twin is None or bounds.mode not in _EVERY_RANK:
        return
    ulps = bounds.max_ulp if bounds.mode == "ulp" else 0.0
    for name, step, rank in ranks.strays(run.steps, twin.steps, lambda usual: ulps * _ulp(usual)):
        yield Verdict.FAIL, f"loss_continuity: at step {step} the {name} of rank {rank} is not the twin's"


def _whose(run: Timeline, twin: Timeline | None, bounds: ContinuityBounds) -> str:
    """Of which rank the losses were compared, where each tells its own and not all were."""
    if twin is None or bounds.mode in _EVERY_RANK or not ranks.is_local(twin.steps, "loss"):
        return ""
    told = run.steps.rank[np.isfinite(run.steps.loss)]
    return f" (of rank {int(told.min())}; each rank tells its own)" if len(told) else ""


def _unless_constant(line: Expectation, comparison: Comparison | None) -> Expectation:
    """That figures are the same proves nothing where they never change."""
    if line.verdict is not Verdict.PASS or comparison is None or len(comparison.step) < 2:
        return line
    told = [values[np.isfinite(values)] for values in (comparison.twin.loss, comparison.twin.grad_norm)]
    if any(len(values) and values.min() < values.max() for values in told):
        return line
    reason = "the loss of the fault-free run never changes: that this one is the same proves nothing"
    return Expectation(line.name, line.bound, "—", Verdict.INCONCLUSIVE, reason)


def _false_restores(run: Timeline, twin: Timeline | None) -> Iterator[tuple[Verdict, str]]:
    """A process must go on from the step that it said it restored (unless it does not tell each step, as the twin then
    does neither), and all of a world from the same."""
    sparse = twin is not None and any(_skips(process) for process in twin.processes)
    for process in () if sparse else run.processes:
        if _skips(process):
            text = f"rank {process.rank} said it restored step {process.restored_step}"
            yield Verdict.FAIL, f"loss_continuity: {text}, but went on with step {process.first_step}"
            return
    for epoch in run.epochs:
        restored = {run.processes[index].restored_step for index in epoch.processes} - {None}
        if len(restored) > 1:
            shown = ", ".join(str(step) for step in sorted(s for s in restored if s is not None))
            yield Verdict.FAIL, f"loss_continuity: ranks of one world restored different steps: {shown}"
            return


def _skips(process: Process) -> bool:
    restored, first = process.restored_step, process.first_step
    return restored is not None and first is not None and first != restored + 1


def _other_samples(comparison: Comparison | None, bounds: ContinuityBounds) -> Iterator[tuple[Verdict, str]]:
    if comparison is None:
        return
    mine, other = comparison.run, comparison.twin
    differ = (mine.digest != other.digest) & (mine.digest != 0) & (other.digest != 0)
    if not bounds.max_samples_repeated and not bounds.max_samples_skipped:  # else positions may well be others
        told = (mine.first >= 0) & (other.first >= 0) & (mine.count >= 0) & (other.count >= 0)
        differ |= told & ((mine.first != other.first) | (mine.count != other.count))
    bad = np.flatnonzero(differ)
    if len(bad):
        first = comparison.step[bad[0]]
        text = f"{len(bad)} steps consumed other samples than the twin's, the first is step {first}"
        yield Verdict.FAIL, f"loss_continuity: {text}"


def _resumes(run: Timeline, curve: Curve, comparison: Comparison | None) -> Iterator[dict[str, Any]]:
    """The loss on both sides of every resume that survived: the spike is what the twin does not show there."""
    steps: Sequence[int] = curve.step.tolist()
    place = {step: row for row, step in enumerate(steps)}
    twin = {int(s): float(x) for s, x in zip(comparison.step, comparison.twin.loss, strict=True)} if comparison else {}
    for epoch in run.epochs:
        before, after = place.get(epoch.first - 1), place.get(epoch.first)
        if epoch.kept < epoch.first or before is None or after is None:
            continue
        rise = float(curve.loss[after] - curve.loss[before])
        usual = twin.get(epoch.first, np.nan) - twin.get(epoch.first - 1, np.nan)
        spike = rise - usual if np.isfinite(usual) and np.isfinite(rise) else None
        yield {"step": epoch.first, "rise": rise if np.isfinite(rise) else None, "spike": spike}


SCORE = LossContinuity()
