"""A job that was started again from a save, held against the run that made the save: does it do the same from there?

What a later difference follows from comes first: what was restored, the samples, the learning rate, what was computed
from them, and what the next save holds.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.judge.facts import losses, samples
from harness.judge.facts.losses import WORDS
from harness.log.reading import is_told
from harness.timeline.timeline import Ints, Timeline
from harness.units import counted

COMPUTED = ("loss", "grad_norm")
TOLERANCE = 10  # times what a repeat of the run differs by, where that is not zero


class Kind(enum.StrEnum):
    """What is other than in the run."""

    RESTORED = "another save restored"
    SAMPLES = "other samples"
    SCHEDULE = "another learning rate"
    COMPUTED = "other figures computed"
    SAVED = "other tensors saved"


CHANCE = (Kind.COMPUTED, Kind.SAVED)  # differ between two runs of a job that does not repeat itself bit for bit


@dataclass(frozen=True)
class Finding:
    kind: Kind
    words: str


@dataclass(frozen=True)
class Usual:
    """The run without a stop. `apart`: by how much of its size a figure of a repeat differs from it at the most."""

    run: Timeline
    ends: Sequence[int]  # of passes over the data
    apart: float = 0.0


def differences(usual: Usual, again: Timeline, step: int) -> list[Finding]:
    """What the job did in another way after it was started from the save of `step`, on as many ranks."""
    found = [*_restored(again, step), *_samples(usual, again, step)]
    found += _figure(usual, again, "lr", Kind.SCHEDULE, 0.0)
    for name in COMPUTED:
        found += _figure(usual, again, name, Kind.COMPUTED, TOLERANCE * usual.apart)
    if not usual.apart:
        found += _weights(usual.run, again)
        found += _saved(usual.run, again, step)
    return found


def on_other_ranks(usual: Usual, again: Timeline, step: int) -> list[Finding]:
    """The same on another number of ranks: a step may hold more or fewer samples then, and rounds in another way. So
    only the samples are compared, each of which is due once in a pass."""
    return [*_restored(again, step), *_once_in_the_pass(usual, again, step)]


def apart(usual: Timeline, repeat: Timeline) -> float:
    """By how much of their size losses and gradient norms of a repeat differ at the most; 0: they are the same bits."""
    found = [0.0]
    for name in COMPUTED:
        both = _told_by_both(usual, repeat, name)
        size = np.maximum(np.abs(both.mine), np.abs(both.other))
        found += (losses.distance(both.mine, both.other)[size > 0] / size[size > 0]).tolist()
    return float(max(found))


def same_tensors(run: Timeline) -> list[Finding]:
    """Saves of different steps that hold the same tensors, as the harness saw them."""
    held: dict[str, list[int]] = {}
    for step, event in published(run).items():
        if event.get("tensors"):
            held.setdefault(str(event["tensors"]), []).append(step)
    alike = [steps for steps in held.values() if len(steps) > 1]
    return [
        Finding(Kind.SAVED, f"the saves of steps {', '.join(map(str, steps))} hold the same tensors") for steps in alike
    ]


def _restored(again: Timeline, step: int) -> Iterator[Finding]:
    """By the word of its workers, or by their first step."""
    told = {each.restored_step for each in again.processes} - {None}
    first = int(again.steps.step.min()) if len(again.steps) else None
    if 0 in told or (not told and first is not None and first <= again.stride):
        yield Finding(Kind.RESTORED, f"it started from scratch, though the save of step {step} was there")
    elif told - {step}:
        yield Finding(Kind.RESTORED, f"it restored {sorted(filter(None, told))} and not the save of step {step}")
    elif first is not None and not step < first <= step + again.stride:
        yield Finding(Kind.RESTORED, f"after the save of step {step} its first step was {first}")


def _samples(usual: Usual, again: Timeline, step: int) -> Iterator[Finding]:
    kind = samples.told_kind(again, usual.run)
    if kind is None:
        yield from _places(usual.run, again)
        return
    mine, theirs = _Consumed(again, kind), _Consumed(usual.run, kind)
    noun = "sample" if kind == "samples" else "batch"
    common = np.intersect1d(mine.step, theirs.step)
    odd = [at for at in common.tolist() if mine.of(at) != theirs.of(at)]
    if not odd:
        return
    by_pass: dict[int, list[int]] = {}
    for at in odd:
        by_pass.setdefault(int(np.searchsorted(usual.ends, at)), []).append(at)
    parts = []
    for number, steps in by_pass.items():
        begin = [0, *usual.ends][number]
        came, due = mine.together(steps), theirs.together(steps)
        before = theirs.together(range(begin + 1, step + 1)) + mine.together(
            at for at in common.tolist() if begin < at < steps[0]
        )
        more, less = came - due, due - came
        repeated = sum(count for item, count in more.items() if before[item] or due[item])
        where = f" in pass {number + 1}" if usual.ends else ""
        text = f"{_many(repeated, noun)} repeated, {_many(less.total(), noun)} not seen{where}"
        strange = more.total() - repeated
        parts.append(text + (f", {_many(strange, noun)} too early" if strange else ""))
    text = f"{len(odd)} of {counted(len(common), 'step')} consumed other samples than without the stop, first at step "
    yield Finding(Kind.SAMPLES, f"{text}{odd[0]}: {'; '.join(parts)}")


def _once_in_the_pass(usual: Usual, again: Timeline, step: int) -> Iterator[Finding]:
    """With those of the run before its save. What a sampler fills the last step of a pass up with may come twice."""
    kind = samples.told_kind(again, usual.run)
    if kind is None:
        yield from _next_to_each_other(usual.run, again, step)
        return
    mine, theirs = _Consumed(again, kind), _Consumed(usual.run, kind)
    number = int(np.searchsorted(usual.ends, step, "right"))
    before = theirs.together(range([0, *usual.ends][number] + 1, step + 1))
    due = set(theirs.together(range(1, usual.ends[0] + 1))) if usual.ends else None
    came, last = Counter[int](), Counter[int]()
    for at in np.unique(mine.step).tolist():
        last = mine.of(at)
        if due is not None and before.total() + came.total() + last.total() > len(due):
            break  # it belongs to the next pass, or to both
        came, last = came + last, Counter()
    repeated = sum(count if before[item] else count - 1 for item, count in came.items())
    full = due is not None and before.total() + came.total() == len(due)  # then the last step is of the next pass alone
    excused = before.keys() | came.keys() | (set() if full else last.keys())
    skipped = len(due - excused) if due and last else 0
    if max(repeated, skipped) >= max(again.largest_world, usual.run.largest_world):
        noun = "sample" if kind == "samples" else "batch"
        many = f"{_many(repeated, noun)} repeated, {_many(skipped, noun)} not seen in pass {number + 1}"
        yield Finding(Kind.SAMPLES, f"on {counted(again.largest_world, 'rank')}: {many}")


def _next_to_each_other(usual: Timeline, again: Timeline, step: int) -> Iterator[Finding]:
    """Where only the position in the data is told, each step begins where the one before it ended."""
    before, after = losses.surviving(usual.steps), losses.surviving(again.steps)
    rows = np.flatnonzero(before.step == step)
    joined = [(int(before.first[row] + before.count[row]), int(after.first[0])) for row in rows if len(after)]
    if any(min(pair) >= 0 and pair[0] != pair[1] for pair in joined):
        (was, now) = joined[0]
        yield Finding(Kind.SAMPLES, f"it went on with sample {now} of the data, and sample {was} was next")
    found = samples.by_places(after)
    if found.repeated or found.skipped:
        many = f"{counted(found.repeated or 0, 'sample')} repeated and {counted(found.skipped or 0, 'sample')} not seen"
        yield Finding(Kind.SAMPLES, f"{many}, first {found.where}")


def _many(number: int, noun: str) -> str:
    return counted(number, noun) if noun == "sample" or number == 1 else f"{number} batches"


class _Consumed:
    """What the ranks of a run consumed together, by step."""

    def __init__(self, run: Timeline, kind: samples.Kind):
        self._run, self._kind = run, kind
        rows = losses.by_rank(run.steps).row
        told = run.steps.samples[rows] >= 0 if kind == "samples" else run.steps.digest[rows] != 0
        self._rows = rows[told]  # in the order of steps
        self.step: Ints = run.steps.step[self._rows]

    def of(self, step: int) -> Counter[int]:
        begin, end = np.searchsorted(self.step, [step, step + 1])
        rows = self._rows[begin:end]
        if self._kind == "digests":
            return Counter(self._run.steps.digest[rows].tolist())
        return Counter(self._run.samples.expanded(self._run.steps.samples[rows]).tolist())

    def together(self, steps: Any) -> Counter[int]:
        total: Counter[int] = Counter()
        for step in steps:
            total.update(self.of(step))
        return total


def _places(usual: Timeline, again: Timeline) -> Iterator[Finding]:
    """Where only the position in the data is told."""
    for name, words in (("first", "position in the data"), ("count", "number of samples")):
        both = _told_by_both(usual, again, name, untold=-1)
        for step in both.step[both.mine != both.other][:1]:
            yield Finding(Kind.SAMPLES, f"at step {step} its {words} is another than without the stop")


def _figure(usual: Usual, again: Timeline, name: str, kind: Kind, tolerance: float) -> Iterator[Finding]:
    both = _told_by_both(usual.run, again, name)
    odd = losses.unlike(both.mine, both.other)
    if tolerance:
        odd &= losses.distance(both.mine, both.other) > tolerance * np.maximum(np.abs(both.mine), np.abs(both.other))
    for place in np.flatnonzero(odd)[:1]:
        step, mine, other = int(both.step[place]), both.mine[place], both.other[place]
        whose = sorted(set(both.rank[odd & (both.step == step)].tolist()))
        of = f" of rank{'s' * (len(whose) > 1)} {', '.join(map(str, whose))}"
        of = of if len(whose) < len(set(both.rank.tolist())) else ""
        yield Finding(kind, f"at step {step} the {WORDS[name]}{of} is {mine:.9g}, and {other:.9g} without the stop")


def _weights(usual: Timeline, again: Timeline) -> Iterator[Finding]:
    both = _told_by_both(usual, again, "weights", untold=0)
    for place in np.flatnonzero(both.mine != both.other)[:1]:
        who = f"at step {both.step[place]} rank {both.rank[place]}"
        yield Finding(Kind.COMPUTED, f"{who} has other weights than without the stop")


class _Both(NamedTuple):
    """What both runs tell of the same step and rank, in the order of steps."""

    step: Ints
    rank: Ints
    mine: Any
    other: Any


def _told_by_both(usual: Timeline, again: Timeline, name: str, untold: int | None = None) -> _Both:
    """`untold`: stands for a count that is not told; a figure is no number then."""
    ours, theirs = losses.by_rank(again.steps), losses.by_rank(usual.steps)
    _, left, right = np.intersect1d(ours.key, theirs.key, assume_unique=True, return_indices=True)
    rows = ours.row[left]
    mine, other = getattr(again.steps, name)[rows], getattr(usual.steps, name)[theirs.row[right]]
    told = is_told(mine) & is_told(other) if untold is None else (mine != untold) & (other != untold)
    return _Both(again.steps.step[rows][told], again.steps.rank[rows][told], mine[told], other[told])


def _saved(usual: Timeline, again: Timeline, step: int) -> Iterator[Finding]:
    """The first save that both made."""
    mine, other = published(again), published(usual)
    both = sorted(at for at in mine.keys() & other.keys() if at > step)
    for at in both[:1]:
        one, two = mine[at], other[at]
        if not one.get("tensors") or one["tensors"] == two.get("tensors") or not two.get("tensors"):
            continue
        text = f"its save of step {at} holds other tensors than without the stop"
        ours, theirs = (Counter(map(str, each.get("tensor_digests") or ())) for each in (one, two))
        if differ := ours - theirs:
            sizes = sorted({each.partition(" ")[0] for each in differ}, key=len)
            text += f": {differ.total()} of {ours.total()}, of {' or '.join(sizes[:3])} bytes"
        yield Finding(Kind.SAVED, text)


def published(run: Timeline) -> dict[int, Mapping[str, Any]]:
    """By step: what the harness saw of its save, the last time."""
    return {event["step"]: event for event in run.published if type(event.get("step")) is int}
