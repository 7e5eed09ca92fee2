"""Computes the tolerance limits of mode `envelope`: how far a run may differ from a fault-free run.

The judged run and further fault-free runs (*repeats*) are compared with one fault-free run, in stretches of steps.
Three limits (`single`, `lasting` and `soon`) apply to the differences from the fault-free run.

The limit `single` for one step is 3 times the largest difference of any repeated fault-free run so far, but at most 5
times the largest difference in this stretch of steps and in the two stretches next to it.

The limit `lasting` for the mean difference in a stretch of steps is 5 times the largest such mean of any repeated
fault-free run so far. The limit `lasting` finds a lasting deviation long before `single` does, as means are smaller.

The limit `soon` for the n-th step after a run diverges is 10 times the largest difference of any repeated fault-free
run in its first n steps after diverging. Runs that differ by rounding alone stay close for long. A difference above the
limit `soon` is inconclusive, because rounding errors grow faster in some phases of a training.

Each limit allows at least the possible rounding error (see `_rounding`). Limits from only two fault-free runs would
fail up to 1 in 10 healthy runs, because two runs can be alike by chance. If fewer than `ENOUGH` repeated fault-free
runs exist, no run fails, and the harness makes more fault-free runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.evidence.logs import Evidence
from harness.evidence.losses import CURVES, Comparison, Curve, compare, near_by, rounding, surviving, terms, ulps
from harness.evidence.made_as_asked import BEFORE, SAME, asked_of, resize
from harness.judge import thresholds as limits
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Bools, Floats, Ints, Timeline
from harness.units import counted

DRIFTS = ("loss", "grad_norm")  # the learning rate depends on the step alone: it may differ by rounding only


class Sight(NamedTuple):
    """The smallest loss deviation, in percent, that exceeds the limits if it lasts from step `first` to step `last`."""

    first: int
    last: int
    percent: float


class Lasts(NamedTuple):
    """A lasting deviation from the fault-free run: the mean difference `apart` of a value (`curve`) in steps `first` to
    `last` exceeds the limit `most`."""

    curve: str
    first: int
    last: int
    apart: float
    most: float


@dataclass(frozen=True)
class Envelope:
    fault_free: Curve
    source: str  # the runs that the band comes from, in words
    edges: Ints  # the first row of each stretch
    single: Mapping[str, Floats]  # limits by curve and row
    lasting: Mapping[str, Floats]  # limits by curve and stretch
    soon: Mapping[str, Floats]  # limits by curve and number of rows since two runs first differed
    runs: int  # number of independent runs: see `_distinct`
    sizes: frozenset[int]  # numbers of ranks in these runs

    def outside(self, found: Comparison) -> dict[str, Bools]:
        return {name: found.apart(name) > self.single[name][self._rows(found)] for name in CURVES}

    def lasts(self, found: Comparison) -> Lasts | None:
        for name in DRIFTS:
            means = self._means(found, name)
            for row in np.flatnonzero(means > self.lasting[name])[:1].tolist():
                return Lasts(name, *self._steps(row), float(means[row]), float(self.lasting[name][row]))
        return None

    def too_soon(self, found: Comparison) -> dict[str, Bools]:
        """Marks the steps with a difference above `soon`, the limit for the time shortly after two runs diverge."""
        parted = _parted(found)
        if parted is None:
            return {}
        rows = self._rows(found)
        ages = np.maximum(rows - rows[parted], 0)
        return {name: found.apart(name) > self.soon[name][ages] for name in DRIFTS}

    def spans(self, found: Comparison, too_soon: bool = False) -> Iterator[tuple[int, int]]:
        """Yields the first step that exceeds the limit `single`, and the first stretch of steps that exceeds the limit
        `lasting`. If `too_soon` is True, each step is compared with the limit `soon`, too."""
        early = self.too_soon(found).values() if too_soon else ()
        rows, lasts = np.logical_or.reduce([*self.outside(found).values(), *early]), self.lasts(found)
        if rows.any():
            yield int(found.step[rows.argmax()]), int(found.step[rows.argmax()])
        if lasts:
            yield lasts.first, lasts.last

    def sees(self, found: Comparison) -> list[Sight]:
        """Returns, for each stretch of steps since the runs diverged, the smallest lasting loss deviation that the
        limits surely detect."""
        parted = _parted(found)
        if parted is None:
            return []
        first, last = np.searchsorted(self.edges, self._rows(found)[[parted, -1]], side="right").tolist()
        needed = self.lasting["loss"] + self._means(found, "loss")
        percent = 100 * needed / np.abs(self._level())
        told = (each for each in range(first - 1, last) if np.isfinite(percent[each]))
        return [Sight(*self._steps(each), float(percent[each])) for each in told]

    def changes_by(self, since: Sight) -> float:
        """Returns by how many percent the fault-free loss changes from stretch `since` to the last stretch of steps."""
        level = self._level()
        first = level[int(np.searchsorted(self.fault_free.step[self.edges], since.first))]
        return float(100 * abs((level[-1] - first) / level[-1]))

    @property
    def blind(self) -> bool:
        """Returns True if the limits detect nothing, because they allow one step to differ by the whole range of the
        loss."""
        finite = self.fault_free.loss[np.isfinite(self.fault_free.loss)]
        wide = self.single["loss"] > ulps(self.fault_free.loss)
        return bool(wide.any() and len(finite) and self.single["loss"].max() >= np.ptp(finite))

    def blind_from(self, step: int) -> bool:
        """Returns True if the limit `soon` hides small errors at `step`, because the limit exceeds the loss's change
        per step."""
        first = int(np.searchsorted(self.edges, np.searchsorted(self.fault_free.step, step), side="right")) - 1
        level, rows = self._level(), len(self.fault_free) - self.edges[first]
        return bool(self.soon["loss"][:2].max() >= abs(level[-1] - level[first]) / rows)

    def _rows(self, found: Comparison) -> Ints:
        return np.searchsorted(self.fault_free.step, found.step)

    def _means(self, found: Comparison, name: str) -> Floats:
        return _mean(_spread(found, self.fault_free, name), self.edges)

    def _level(self) -> Floats:
        return _mean(self.fault_free.loss, self.edges)

    def _steps(self, stretch: int) -> tuple[int, int]:
        step, ends = self.fault_free.step, [*self.edges[1:], len(self.fault_free)]
        return int(step[self.edges[stretch]]), int(step[ends[stretch] - 1])


def left_early(run: Timeline, band: Envelope | str, comparison: Comparison | None) -> str:
    """Returns a text that says that the run exceeds the tolerance limits before any fault was injected, or an empty
    text. Limits that a run exceeds before any fault are too narrow for the run."""
    struck = first_strike(run.faults)
    if isinstance(band, str) or comparison is None or struck == NEVER or run.beside.earlier:
        return ""
    done = run.steps.step[run.steps.end >= struck - limits.BEFORE_NS].min(initial=NEVER)
    for first, last in (span for span in band.spans(comparison) if span[1] < done):
        steps = f"step {first} is" if first == last else f"steps {first} to {last} are"
        return f"{steps} outside the band before any fault struck"
    return ""


def calibrated(evidence: Evidence, fault_free: Curve | None, of_all: bool = False) -> Envelope | str:
    """Returns the tolerance interval from repeats of the fault-free run, or the reason why these give no interval. With
    `of_all`, all losses are means over all ranks."""
    flaws = [evidence.flaw(each) for each in evidence.calibration]
    others = [each for each, flaw in zip(evidence.calibration, flaws, strict=True) if not flaw]
    if any(flaws) and not others:
        return f"the fault-free runs give no band: {'; '.join(dict.fromkeys(flaws))}"
    if not fault_free or not others:
        return "mode envelope needs fault-free runs to calibrate its band, but there are none"
    runs = f"{counted(len(others), 'other fault-free run')} (ranks: {_ranks(others)})"
    curves, sizes = [surviving(each.steps, of_all) for each in others], _sizes(evidence.fault_free_runs)
    return _drawn(fault_free, curves, runs, sizes, terms(evidence.run))


@dataclass(frozen=True)
class Resumed:
    """Fault-free runs that stop at a checkpoint (`before`) or resume from a checkpoint (`same`, `others`). The run
    `same` resumes with as many ranks as saved the checkpoint, and the runs `others` with more or fewer ranks."""

    before: Curve
    same: Curve
    others: Sequence[Curve]
    runs: str
    sizes: frozenset[int]
    terms: int

    def around(self, centre: Curve) -> Envelope | str:
        return _drawn(centre, self.others, self.runs, self.sizes, self.terms)


def resume_alone(resumed: Resumed | None, band: Envelope | str, alone: Curve | None) -> tuple[str, str]:
    """Returns two texts on how a fault-free resume changes the computed values: on the same number of ranks, and on
    another number. A text is empty if no change of the computed values was found."""
    if resumed is None or alone is None:
        return "", ""
    # Each run of a pair is compared with a band around the other, because all resumed runs may differ by as much.
    sides = [(resumed.same, alone)] * compare(resumed.before, alone).identical + [(alone, resumed.same)]
    for centre, other in sides:
        if where := _apart(resumed.around(centre) if len(sides) > 1 else band, other, centre):
            what = "a run that goes on from a save with as many ranks, without any fault, differs"
            return f"the resume by itself changes what is computed: {what} {where}", ""
    # The band shows how runs of two sizes differ from the first step on. A sound change of size differs no more.
    for other in resumed.others:
        if where := _apart(band, other, resumed.same, too_soon=True):
            what = f"fault-free runs that change their size as this one did differ {where}"
            return "", f"{what} by more than runs of two sizes: the change of size changes what is computed"
    return "", ""


def _apart(band: Envelope | str, other: Curve, centre: Curve, too_soon: bool = False) -> str:
    if isinstance(band, str):
        return ""
    first, last = next(iter(band.spans(compare(other, centre), too_soon)), (0, 0))
    return f"{'at' if first == last else 'from'} step {first}{' on' * (first != last)}" if first else ""


def resumed(evidence: Evidence, of_all: bool) -> Resumed | None:
    """Returns the fault-free runs that stop at or resume from a save, or `None` if these give no tolerance interval.
    With `of_all`, all losses are means over all ranks."""
    before, same = (evidence.resumed.get(name) for name in (BEFORE, SAME))
    others = [each for name, each in evidence.resumed.items() if name not in (BEFORE, SAME)]
    at = resize(evidence.run, evidence.fault_free)
    if before is None or same is None or not others or at is None or evidence.resumed_elsewhere:
        return None
    whole = {name: each for name, each in evidence.resumed.items() if name != BEFORE}
    flawed = (evidence.flaw(each, asked_of(name, evidence.run, at)) for name, each in whole.items())
    if any(flawed) or not all(len(each.steps) for each in whole.values()):
        return None
    stopped = surviving(before.steps, of_all)
    alone = surviving(evidence.fault_free.steps, of_all) if evidence.fault_free else None
    came = [int(each.steps.step.min()) - 1 for each in (same, *others)]
    # Runs from a later save exist only if repeats are bit-identical. Then the fault-free run has their earlier steps.
    until = [alone if alone is not None and step > came[0] else stopped for step in came]
    curves = [part.until(surviving(each.steps, of_all)) for part, each in zip(until, (same, *others), strict=True)]
    steps = ", ".join(map(str, dict.fromkeys(came[1:])))
    runs = f"{counted(len(others), 'fault-free run')} that went on from step {steps} (ranks: {_ranks(others)})"
    sizes = _sizes([*evidence.fault_free_runs, *whole.values()])
    before_it = stopped.at(np.flatnonzero(stopped.step <= came[0]))
    return Resumed(before_it, curves[0], curves[1:], runs, sizes, terms(evidence.run))


def _sizes(runs: Sequence[Timeline]) -> frozenset[int]:
    return frozenset(int(epoch.size) for run in runs for epoch in run.epochs)


def _ranks(runs: Sequence[Timeline]) -> str:
    return ", ".join(map(str, sorted(_sizes(runs))))


def _drawn(fault_free: Curve, others: Sequence[Curve], runs: str, sizes: frozenset[int], terms: int) -> Envelope | str:
    told = np.flatnonzero(np.isfinite(fault_free.loss))
    count = min(max(len(told) // limits.STRETCH_STEPS, 1), limits.STRETCHES)
    edges = np.asarray([0, *told[np.arange(1, count) * len(told) // count]], np.int64)
    rows = np.arange(len(fault_free))
    stretch = np.searchsorted(edges, rows, side="right") - 1
    lasting, soon = dict[str, Floats](), dict[str, Floats]()
    found = [compare(other, fault_free) for other in others]
    single = {name: _rounding(name, found, fault_free, terms) for name in CURVES}
    for name in DRIFTS:
        spreads = [_spread(each, fault_free, name) for each in found]
        near = near_by(np.max([np.maximum.reduceat(np.nan_to_num(each), edges) for each in spreads], axis=0))
        most = np.minimum(limits.BAND_NEAR_BY * near, limits.BAND_SINGLE * np.maximum.accumulate(near))
        mean = np.maximum.accumulate(near_by(np.max([_mean(each, edges) for each in spreads], axis=0)))
        ages = np.max([_by_age(*each) for each in zip(spreads, found, strict=True)], axis=0)
        lasting[name] = np.maximum(limits.BAND_LASTING * mean, _mean(single[name], edges))
        soon[name] = np.maximum(limits.BAND_SOONER * ages, single[name].max(initial=0.0))
        single[name] = np.maximum(most[stretch], single[name])
    source = f"{limits.BAND_SINGLE:g} × the spread of {runs}"
    band = Envelope(fault_free, source, edges, single, lasting, soon, _distinct(found), sizes)
    return "fault-free runs differ by as much as the loss changes, so they give no band" if band.blind else band


def _rounding(name: str, found: Sequence[Comparison], fault_free: Curve, terms: int) -> Floats:
    """Returns for each step how far rounding alone can change the value `name`. The result is 3 times the largest
    difference soon after two runs diverge. The result is at most the rounding error of a sum of `terms` terms, and at
    least one unit in the last place. If all repeated runs (at least `ENOUGH`) equal the fault-free run bit for bit, the
    result is 0."""
    values = getattr(fault_free, name)
    last_place, parted = ulps(values), [each for each in found if not each.identical]
    if not parted and len(found) >= limits.ENOUGH:
        return np.zeros(len(last_place))
    first = (each.apart(name)[row : row + 1 + limits.SOON] for each in parted if (row := _parted(each)) is not None)
    most = max((float(np.nanmax(each, initial=0.0)) for each in first), default=0.0) if name in DRIFTS else 0.0
    return np.asarray(np.maximum(last_place, np.minimum(limits.BAND_SINGLE * most, rounding(values, terms))))


def _distinct(found: Sequence[Comparison]) -> int:
    """Counts independent runs. Runs that differ from the fault-free run in exactly the same way count as one run."""
    parted = {tuple(each.apart(name).tobytes() for name in DRIFTS) for each in found if not each.identical}
    return len(parted) + sum(each.identical for each in found)


def _spread(found: Comparison, fault_free: Curve, name: str) -> Floats:
    spread = np.full(len(fault_free), np.nan)
    apart = found.apart(name)
    spread[np.searchsorted(fault_free.step, found.step)] = np.where(np.isfinite(apart), apart, np.nan)
    return spread


def _by_age(spread: Floats, found: Comparison) -> Floats:
    parted = found.first_divergent_step
    first = 0 if parted is None else int(np.searchsorted(found.fault_free.step, parted))
    grown = np.maximum.accumulate(np.nan_to_num(spread[first:]))
    return np.asarray(grown[np.minimum(np.arange(len(spread)) + limits.SOON, len(grown) - 1)])


def _parted(found: Comparison) -> int | None:
    rows = np.flatnonzero(np.logical_or.reduce([found.differs[name] for name in DRIFTS]))
    return int(rows[0]) if len(rows) else None


def _mean(values: Floats, edges: Ints) -> Floats:
    told = np.isfinite(values)
    count = np.add.reduceat(told.astype(np.int64), edges)
    return np.asarray(np.add.reduceat(np.where(told, values, 0.0), edges) / np.maximum(count, 1))
