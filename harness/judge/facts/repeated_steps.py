"""A job as its own yardstick: steps that it did again after a restart, beside the first time that it did them.

A resume that is right does the same samples, at the same learning rate, with the same losses. Jobs that do not repeat
themselves bit for bit are held against how far earlier repetitions in the same log were off. An error in both
executions is not seen, and neither is one in steps that are never done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.judge.facts import losses
from harness.judge.facts.losses import WORDS
from harness.log.reading import is_told
from harness.timeline.timeline import Bools, Floats, Ints, Timeline
from harness.units import counted

TOLERANCE = 10  # times as far as the earlier repetitions of the same job were off
CALIBRATING_STEPS = 5  # so many must have been the same bit for bit before another one has to be
COMPUTED = ("loss", "grad_norm")
_SAMPLES = {"samples": "samples", "digest": "inputs", "first": "position in the data", "count": "number of samples"}
_UNTOLD = {"samples": -1, "digest": 0, "first": -1, "count": -1}


@dataclass(frozen=True)
class Executed:
    """What a job told of its steps, in the order in which it did them: one row for each step and rank. `life` grows
    with each restart. `places`: what it told of its samples, by name; `same`: whether two rows consumed the same.
    `size`: the ranks of each row's world. `saved`: by life, the newest step that was saved before it began."""

    rank: Ints
    step: Ints
    life: Ints
    figures: Mapping[str, Floats]
    places: Mapping[str, Ints] = field(default_factory=dict)
    same: Callable[[Ints, Ints], Bools] | None = None
    size: Ints | None = None
    saved: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Again:
    """The steps that were done again in one life. `first_odd`: by figure, the first step in which it is another, and in
    words; `apart`: by how much of their size losses and gradient norms are off at the most; `compared`: how many of
    these are told both times. `anew`: it began where the job began; `saved`: a step that was saved by then, or 0."""

    life: int
    first: int
    last: int
    steps: int
    first_odd: Mapping[str, tuple[int, str]]
    apart: float
    compared: int
    anew: bool = False
    saved: int = 0


def executed(run: Timeline) -> Executed:
    steps = run.steps
    places = {name: getattr(steps, name) for name in _SAMPLES}

    def same(rows: Ints, others: Ints) -> Bools:
        equal = run.samples.equal(steps.samples[rows], run.samples, steps.samples[others])
        return np.asarray(equal, np.bool_)

    figures = {name: getattr(steps, name) for name in WORDS}
    size = np.array([epoch.size for epoch in run.epochs], np.int64)[steps.epoch] if run.epochs else None
    return Executed(steps.rank, steps.step, steps.epoch, figures, places, same, size)


def done_again(told: Executed) -> list[Again]:
    """By life, in order. A step that was done three times is held against the time before."""
    order = np.lexsort((told.life, told.rank, told.step))
    rank, step, life = told.rank[order], told.step[order], told.life[order]
    pair = np.flatnonzero((step[1:] == step[:-1]) & (rank[1:] == rank[:-1]) & (life[1:] > life[:-1]))
    before, again = order[pair], order[pair + 1]
    by_life = np.argsort(told.life[again], kind="stable")
    lives, begins = np.unique(told.life[again][by_life], return_index=True)
    parts = zip(lives.tolist(), np.split(by_life, begins[1:]) if len(lives) else (), strict=True)
    return [_again(told, life, before[part], again[part]) for life, part in parts]


def _again(told: Executed, life: int, before: Ints, again: Ints) -> Again:
    number = np.unique(told.step[again])
    if told.size is not None:  # another number of ranks shares the samples in another way
        alike = told.size[before] == told.size[again]
        before, again = before[alike], again[alike]
    first_odd: dict[str, tuple[int, str]] = {}
    for name in told.places:
        both = (told.places[name][before] != _UNTOLD[name]) & (told.places[name][again] != _UNTOLD[name])
        rows, others = before[both], again[both]
        equal = told.places[name][rows] == told.places[name][others]
        if name == "samples" and told.same is not None:
            equal = told.same(rows, others)
        if len(odd := others[~equal]):
            row = odd[int(np.argmin(told.step[odd]))]
            first_odd.setdefault("samples", (int(told.step[row]), f"rank {told.rank[row]} had other {_SAMPLES[name]}"))
    apart, compared = 0.0, 0
    for name, words in WORDS.items():
        one, two = told.figures[name][before], told.figures[name][again]
        odd = np.flatnonzero(losses.unlike(one, two))
        if len(odd):
            at = odd[int(np.argmin(told.step[again[odd]]))]
            was = f"the {words} of rank {told.rank[again[at]]} was {one[at]:.9g}, and {two[at]:.9g} the second time"
            first_odd[name] = int(told.step[again[at]]), was
        if name in COMPUTED:
            compared += int((is_told(one) & is_told(two)).sum())
            apart = max(apart, _apart(one[odd], two[odd]))
    first, last = int(number[0]), int(number[-1])
    anew, saved = first <= int(told.step.min()), told.saved.get(life, 0)
    return Again(life, first, last, len(number), first_odd, apart, compared, anew, saved)


def _apart(one: Floats, two: Floats) -> float:
    """Infinite where one is no number."""
    size = np.maximum(np.abs(one), np.abs(two))
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.nan_to_num(losses.distance(one, two) / size, nan=np.inf).max(initial=0.0))


def judged(found: Sequence[Again]) -> Iterator[tuple[bool | None, str]]:
    """Of each restart after which steps were done again: whether it did the same; `None`: that is left open."""
    band, calibrated = 0.0, 0  # by so many steps
    for each in found:
        where = f"restart {each.life}: {counted(each.steps, 'step')} done again ({each.first} to {each.last})"
        sure = [each.first_odd[name] for name in ("samples", "lr") if name in each.first_odd]
        computed = [each.first_odd[name] for name in COMPUTED if name in each.first_odd]
        odd = min(sure or computed, default=None)
        text = f"{where}: at step {odd[0]} {odd[1]}" if odd else f"{where}: the same"
        exact = not band and calibrated >= CALIBRATING_STEPS
        if each.anew and each.saved:
            yield False, f"{where}: it began anew, though step {each.saved} was saved"
        elif sure or (computed and (exact or (band and each.apart > TOLERANCE * band))):
            yield False, text
        elif each.anew:
            yield None, f"{text}; but it began anew, and nothing tells whether there was a save"
        elif computed and not band:
            yield None, f"{text}; too little in this log says how far a repetition may be off"
        elif computed:
            yield True, f"{where}: off by {each.apart:.2g} of a figure's size, as repetitions before it were"
        elif not each.compared:
            yield None, f"{where}: no loss or gradient norm is told both times"
        else:
            yield True, text
        if not sure and each.compared:
            band, calibrated = max(band, each.apart), calibrated + each.steps


def values(found: Sequence[Again]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {"restart": each.life, "first": each.first, "last": each.last, "steps": each.steps, "apart": each.apart}
        for each in found
    ]
