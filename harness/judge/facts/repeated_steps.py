"""Compares each step that a job repeated after a restart with the execution of this step before the restart.

After a correct restart, a repeated step has the same samples, learning rate and loss as before the restart. If a job
does not repeat losses bit for bit, a repeated loss may differ by about as much as repeated losses did after earlier
restarts. The comparison misses errors that both executions of a step share, and errors in steps that were done once.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from harness.evidence import losses
from harness.evidence.losses import WORDS
from harness.judge.facts import tellers
from harness.judge.facts.known import By
from harness.judge.thresholds import CALIBRATING_STEPS, NOISE_STEPS, REPEAT_FACTOR, REPEATED_SHARE
from harness.log.reading import is_told
from harness.timeline.timeline import Bools, Floats, Ints, Timeline
from harness.units import counted

DIGITS_MAX = 16  # a figure with as many digits after the point counts as a full float
COMPUTED = ("loss", "grad_norm")
_SAMPLES = {"samples": "samples", "digest": "inputs", "first": "position in the data", "count": "number of samples"}
_UNTOLD = {"samples": -1, "digest": 0, "first": -1, "count": -1}


@dataclass(frozen=True)
class Executed:
    """The steps of a job in the order of execution, as columns with one row for each executed step and rank."""

    rank: Ints
    step: Ints
    life: Ints  # grows with each restart
    figures: Mapping[str, Floats]
    places: Mapping[str, Ints] = field(default_factory=dict)  # what each row reports of its samples, by column
    same: Callable[[Ints, Ints], Bools] | None = None  # marks pairs of rows with the same samples
    size: Ints | None = None  # ranks in the world of each row
    saved: Mapping[int, int] = field(default_factory=dict)  # by life: the newest step saved before that life began


class Off(NamedTuple):
    """The differences of one quantity, such as the loss, between two executions of the same steps, by step and rank."""

    after: Ints  # repeated steps of the same restart before this step
    apart: Floats  # difference, as a share of the figure's size
    digit: Floats  # one unit of the last reported digit, as a share of the same size
    moves: int  # number of values that differ from the row before; a constant figure shows nothing
    words: Callable[[int], tuple[int, str]]  # return a row's step, and both values in words


@dataclass(frozen=True)
class Again:
    """The steps that were repeated after one restart, compared with their execution before the restart."""

    life: int
    first: int
    last: int
    steps: int
    differ: Sequence[tuple[int, str]]  # differences that a correct restart never makes, each with its first step
    off: Mapping[str, Off]  # differences of losses and gradient norms
    compared: int  # steps with a loss or gradient norm in both executions
    anew: bool = False  # the restart began at the first step of the job
    saved: int = 0  # the newest step saved before; 0: none
    resized: bool = False  # this life had another number of ranks, so nothing is compared

    @property
    def apart(self) -> float:
        """Returns the largest relative difference of a loss or gradient norm between the two executions of a step."""
        return max((float(off.apart.max(initial=0.0)) for off in self.off.values()), default=0.0)


def executed(run: Timeline) -> Executed:
    steps = run.steps
    figures, places = ({name: getattr(steps, name) for name in names} for names in (WORDS, _SAMPLES))
    size = np.array([epoch.size for epoch in run.epochs], np.int64)[steps.epoch] if run.epochs else None

    def same(rows: Ints, others: Ints) -> Bools:
        return run.samples.equal(steps.samples[rows], run.samples, steps.samples[others])

    return Executed(steps.rank, steps.step, steps.epoch, figures, places, same, size)


def done_again(told: Executed) -> list[Again]:
    """Returns for each restart, in order, how repeated steps differ from their last execution before the restart."""
    order = np.lexsort((told.life, told.rank, told.step))
    rank, step, life = told.rank[order], told.step[order], told.life[order]
    pair = np.flatnonzero((step[1:] == step[:-1]) & (rank[1:] == rank[:-1]) & (life[1:] > life[:-1]))
    before, again = order[pair], order[pair + 1]
    by_life = np.lexsort((told.life[again],))
    lives, begins = np.unique(told.life[again][by_life], return_index=True)
    parts = zip(lives.tolist(), np.split(by_life, begins[1:]) if len(lives) else (), strict=True)
    computed = [_Figure.of(told, name, before, again, _means(told)) for name in COMPUTED]
    begin = int(told.step.min(initial=np.iinfo(np.int64).max))
    return [_again(told, life, before[part], again[part], computed, begin) for life, part in parts]


def _means(told: Executed) -> Bools:
    """Marks rows that may be means over several steps: each rank's first row after a restart, if ranks log only some
    steps."""
    order = np.lexsort((told.step, told.life, told.rank))
    same = (np.diff(told.rank[order]) == 0) & (np.diff(told.life[order]) == 0)
    firsts = np.ones(len(order), np.bool_)
    firsts[order[1:]] = ~same
    strides = np.diff(told.step[order])[same]
    return firsts & bool(len(strides) and np.median(strides) > 1)


@dataclass(frozen=True)
class _Figure:
    name: str
    digit: float  # one unit of the last reported digit; 0: a full float
    scale: float  # median size
    means: Bools  # marks rows that may be means over steps from before and after a restart, and show nothing

    @classmethod
    def of(cls, told: Executed, name: str, before: Ints, again: Ints, means: Bools) -> Self:
        column = told.figures[name]
        values = np.concatenate([column[before], column[again]])
        values = values[is_told(values) & np.isfinite(values)]
        with np.errstate(all="ignore"):
            digits = next((d for d in range(DIGITS_MAX) if (np.round(values, d) == values).all()), None)
            scale = float(np.median(np.abs(values))) if len(values) else 0.0
        return cls(name, 0.0 if digits is None else 10.0**-digits, scale, means)

    def off(self, told: Executed, before: Ints, again: Ints) -> Off:
        column = told.figures[self.name]
        both = is_told(column[before]) & is_told(column[again])
        both &= ~(self.means[again] & losses.unlike(column[before], column[again]))
        before, again = before[both], again[both]
        in_order = np.lexsort((told.rank[again], told.step[again]))
        before, again = before[in_order], again[in_order]
        one, two = column[before], column[again]
        distance = losses.distance(one, two)
        with np.errstate(all="ignore"):
            size = np.maximum(np.maximum(np.abs(one), np.abs(two)), self.scale)
            apart = np.where(losses.unlike(one, two), np.nan_to_num(distance / size, nan=np.inf), 0.0)
        after = np.unique(told.step[again], return_inverse=True)[1]
        moves = int((np.diff(one[np.isfinite(one)]) != 0).sum())
        digit = np.broadcast_to(self.digit / np.where(size > 0, size, 1), apart.shape)
        words = functools.partial(_differ, told, self.name, before, again)
        return Off(after, apart, digit, moves + bool(moves), words)


def _differ(told: Executed, name: str, before: Ints, again: Ints, row: int) -> tuple[int, str]:
    values = told.figures[name][[before[row], again[row]]]
    was, now = (f"{value:.9g}" for value in values)
    was, now = (was, now) if was != now else (f"{value:.17g}" for value in values)
    of = f"the {WORDS[name]} of rank {told.rank[again[row]]}"
    return int(told.step[again[row]]), f"{of} was {was}, and {now} the second time"


def _again(told: Executed, life: int, before: Ints, again: Ints, computed: Sequence[_Figure], begin: int) -> Again:
    number = np.unique(told.step[again])
    if told.size is not None:  # another number of ranks splits samples differently
        alike = told.size[before] == told.size[again]
        before, again = before[alike], again[alike]
    differ = list[tuple[int, str]]()
    for name in told.places:
        both = (told.places[name][before] != _UNTOLD[name]) & (told.places[name][again] != _UNTOLD[name])
        rows, others = before[both], again[both]
        equal = told.places[name][rows] == told.places[name][others]
        if name == "samples" and told.same is not None:
            equal = told.same(rows, others)
        if len(odd := others[~equal]) and not differ:
            row = odd[int(np.argmin(told.step[odd]))]
            differ.append((int(told.step[row]), f"rank {told.rank[row]} had other {_SAMPLES[name]}"))
    if len(odd := np.flatnonzero(losses.unlike(told.figures["lr"][before], told.figures["lr"][again]))):
        differ.append(_differ(told, "lr", before, again, odd[int(np.argmin(told.step[again[odd]]))]))
    off = {figure.name: figure.off(told, before, again) for figure in computed}
    compared = max((len(np.unique(each.after)) for each in off.values()), default=0)
    first, last = int(number[0]), int(number[-1])
    anew, saved = first <= begin, told.saved.get(life, 0)
    return Again(life, first, last, len(number), differ, off, compared, anew, saved, resized=not len(again))


class _Band:
    """Holds the largest difference between repeated values after earlier restarts, by steps since the restart."""

    def __init__(self) -> None:
        self._most, self._told = np.zeros(0), np.zeros(0, np.int64)

    def judge(self, off: Off) -> tuple[int | None, int | None]:
        reach = min(int(off.after.max(initial=-1)) + 1, len(self._most))
        most, told = np.maximum.accumulate(self._most[:reach]), np.cumsum(self._told[:reach])
        known = off.after < reach
        place = np.where(known, off.after, 0)
        band = most[place] if reach else np.zeros(len(place))
        counts = np.where(band > 0, told[place], self._told.sum()) if reach else np.zeros(len(place), np.int64)
        evidence = np.where(known, counts, 0)
        needed = np.where(band > 0, np.maximum(NOISE_STEPS, np.arange(1, len(place) + 1)), CALIBRATING_STEPS)
        beyond, sure = off.apart > REPEAT_FACTOR * np.maximum(band, off.digit), evidence >= needed
        near = (off.apart > 0) & (band == 0) & ~beyond  # noise that rounding may have hidden so far
        wrong, unsure = np.flatnonzero(beyond & sure), np.flatnonzero((beyond & ~sure) | near)
        return next(iter(wrong.tolist()), None), next(iter(unsure.tolist()), None)

    def learn(self, off: Off) -> None:
        if not len(off.after) or not off.moves:
            return
        before, end = len(self._most), int(off.after.max()) + 1
        more = max(end, 2 * before) - before if end > before else 0
        self._most, self._told = np.pad(self._most, (0, more)), np.pad(self._told, (0, more))
        known = np.maximum.accumulate(self._most[:end])[off.after]
        finite = np.isfinite(off.apart)
        apart = np.where((off.after < before) & (known > 0), np.minimum(off.apart, 2 * known), off.apart)
        np.maximum.at(self._most, off.after[finite], apart[finite])
        np.add.at(self._told, off.after[finite], 1)


class Compared(NamedTuple):
    """The comparison of steps before and after one restart. `same` is True if the steps differ by rounding at most."""

    same: bool
    words: str
    by: By = tellers.SEEN


def compared(found: Sequence[Again]) -> Iterator[Compared]:
    """Yields one comparison for each restart after which the job repeated steps."""
    bands = {name: _Band() for name in COMPUTED}
    shown = sum(max((off.moves for off in each.off.values()), default=0) for each in found if not each.differ)
    for each in found:
        where = f"restart {each.life}: {counted(each.steps, 'step')} done again ({each.first} to {each.last})"
        wrong, unsure = list[tuple[int, str]](), list[tuple[int, str]]()
        for name, figure in each.off.items():
            for row, places in zip(bands[name].judge(figure), (wrong, unsure), strict=True):
                places += [] if row is None else [figure.words(row)]
        few = f"; {each.compared} of them tell a figure both times" if each.compared < each.steps else ""
        step, odd = min(each.differ or wrong or unsure, default=(0, ""))
        text = f"{where}: at step {step} {odd}" if odd else f"{where}: the same{few}"
        seldom = each.compared < REPEATED_SHARE * each.steps
        untold = (
            (each.anew, f"{text}; but it began anew, and nothing tells whether there was a save"),
            (unsure, f"{text}; too little in this log says how far a repetition may be off"),
            (each.resized, f"{where}: on another number of ranks"),
            (seldom, f"{where}: {each.compared} of them tell a loss or a gradient norm both times"),
            (shown < CALIBRATING_STEPS, f"{text}; too few figures that move are told both times"),
        )
        if each.anew and each.saved:
            yield Compared(False, f"{where}: it began anew, though step {each.saved} was saved")
        elif each.differ or wrong:
            yield Compared(False, text)
        elif words := next((words for holds, words in untold if holds), ""):
            yield Compared(not unsure, words, tellers.UNTOLD)
        else:
            off = f"{where}: off by {each.apart:.2g} of its size, as repetitions before it were{few}"
            yield Compared(True, off if each.apart else text)
        for name, figure in each.off.items() if not each.differ else ():
            bands[name].learn(figure)


def values(found: Sequence[Again]) -> list[dict[str, Any]]:
    """Returns, for report.json, which steps the job repeated after each restart and how much their values differed."""
    return [
        {"restart": each.life, "first": each.first, "last": each.last, "steps": each.steps, "apart": each.apart}
        for each in found
    ]
