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
from harness.judge.score import Verdict
from harness.log.reading import is_told
from harness.timeline.timeline import Bools, Floats, Ints, Timeline
from harness.units import counted

TOLERANCE = 10  # times as far as the earlier repetitions of the same job were off
COMPUTED = ("loss", "grad_norm")
_SAMPLES = {"samples": "samples", "digest": "inputs", "first": "position in the data", "count": "number of samples"}
_UNTOLD = {"samples": -1, "digest": 0, "first": -1, "count": -1}


@dataclass(frozen=True)
class Executed:
    """What a job told of its steps, in the order in which it did them: one row for each step and rank. `life` grows
    with each restart. `places`: what it told of its samples, by name; `same`: whether two rows consumed the same."""

    rank: Ints
    step: Ints
    life: Ints
    figures: Mapping[str, Floats]
    places: Mapping[str, Ints] = field(default_factory=dict)
    same: Callable[[Ints, Ints], Bools] | None = None


@dataclass(frozen=True)
class Again:
    """The steps that were done again in one life. `first_odd`: by figure, the first step in which it is another, and in
    words; `apart`: by how much of their size losses and gradient norms are off at the most."""

    life: int
    first: int
    last: int
    steps: int
    first_odd: Mapping[str, tuple[int, str]]
    apart: float


def executed(run: Timeline) -> Executed:
    steps = run.steps
    places = {name: getattr(steps, name) for name in _SAMPLES}

    def same(rows: Ints, others: Ints) -> Bools:
        equal = run.samples.equal(steps.samples[rows], run.samples, steps.samples[others])
        return np.asarray(equal, np.bool_)

    figures = {name: getattr(steps, name) for name in WORDS}
    return Executed(steps.rank, steps.step, steps.epoch, figures, places, same)


def done_again(told: Executed) -> list[Again]:
    """By life, in order. A step that was done three times is held against the time before."""
    order = np.lexsort((told.life, told.rank, told.step))
    rank, step, life = told.rank[order], told.step[order], told.life[order]
    pair = np.flatnonzero((step[1:] == step[:-1]) & (rank[1:] == rank[:-1]) & (life[1:] > life[:-1]))
    before, again = order[pair], order[pair + 1]
    return [
        _again(told, int(each), before[told.life[again] == each], again[told.life[again] == each])
        for each in np.unique(told.life[again])
    ]


def _again(told: Executed, life: int, before: Ints, again: Ints) -> Again:
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
    apart = 0.0
    for name, words in WORDS.items():
        one, two = told.figures[name][before], told.figures[name][again]
        odd = np.flatnonzero(losses.unlike(one, two))
        if len(odd):
            at = odd[int(np.argmin(told.step[again[odd]]))]
            was = f"the {words} of rank {told.rank[again[at]]} was {one[at]:.9g}, and {two[at]:.9g} the second time"
            first_odd[name] = int(told.step[again[at]]), was
        if name in COMPUTED and len(odd):
            size = np.maximum(np.abs(one[odd]), np.abs(two[odd]))
            with np.errstate(invalid="ignore", divide="ignore"):
                apart = max(apart, float(np.nan_to_num(losses.distance(one, two)[odd] / size, nan=np.inf).max()))
    number = np.unique(told.step[again])
    return Again(life, int(number[0]), int(number[-1]), len(number), first_odd, apart)


def tells_losses(told: Executed) -> bool:
    return bool(is_told(told.figures["loss"]).any())


def judged(found: Sequence[Again]) -> Iterator[tuple[Verdict, str]]:
    """Of each restart after which steps were done again."""
    band: float | None = None
    for each in found:
        where = f"restart {each.life}: {counted(each.steps, 'step')} done again ({each.first} to {each.last})"
        sure = [each.first_odd[name] for name in ("samples", "lr") if name in each.first_odd]
        computed = [each.first_odd[name] for name in COMPUTED if name in each.first_odd]
        odd = min(sure or computed, default=None)
        text = f"{where}: at step {odd[0]} {odd[1]}" if odd else f"{where}: the same"
        if sure or (computed and band is not None and each.apart > TOLERANCE * band):
            yield Verdict.FAIL, text
        elif computed and band is None:
            yield Verdict.INCONCLUSIVE, f"{text}; nothing in this log says how far a repetition may be off"
        elif computed:
            yield Verdict.PASS, f"{where}: off by {each.apart:.2g} of a figure's size, as repetitions before it were"
        else:
            yield Verdict.PASS, text
        if not sure:
            band = max(band or 0.0, each.apart)


def values(found: Sequence[Again]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {"restart": each.life, "first": each.first, "last": each.last, "steps": each.steps, "apart": each.apart}
        for each in found
    ]
