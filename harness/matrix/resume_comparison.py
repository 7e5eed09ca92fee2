"""Compares a job that was restarted from a save with the uninterrupted run that made the save.

Findings are listed from cause to consequence: the restored save, the samples, the learning rate, losses and gradients,
the next save. After a save in the middle of a gradient accumulation, the restarted job may do the whole step again, or
only the remaining micro-batches of the step."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from harness.evidence import losses, samples
from harness.evidence.losses import WORDS
from harness.log.reading import is_told
from harness.matrix.moments import Moment
from harness.matrix.told_saves import ToldSaves, told_saves
from harness.timeline.lookups import NEVER
from harness.timeline.timeline import Bools, Ints, Process, Timeline
from harness.units import counted

COMPUTED = ("loss", "grad_norm")
TOLERANCE = 10  # factor of the difference of repeats, if that is not zero
REPEATS = 3  # repeats that show the scatter of a job that does not repeat itself bit for bit
TOO_WIDE = 0.5  # relative tolerance from which a comparison shows nothing
HOLES_MAX = 1  # values that a restart may leave out by chance
RANKS_NAMED = 5


class Kind(enum.StrEnum):
    RESTORED = "another save restored"
    SAMPLES = "other samples"
    SCHEDULE = "another learning rate"
    COMPUTED = "other figures computed"
    SAVED = "other tensors saved"
    FILES = "files not written"


# Differences that may be chance in a job that does not repeat itself bit for bit.
CHANCE = (Kind.SCHEDULE, Kind.COMPUTED, Kind.SAVED)


@dataclass(frozen=True)
class Finding:
    kind: Kind
    words: str


@dataclass(frozen=True)
class Usual:
    """The uninterrupted run, and how much repeats of this run differ from it. `exact` is True if all repeats are equal
    to the run, bit for bit. `apart` holds the largest relative difference between run and repeats, by logged quantity
    such as `loss`."""

    run: Timeline
    ends: Sequence[int]  # last steps of the passes over the data
    exact: bool = True
    apart: Mapping[str, float] = field(default_factory=dict)
    saves: ToldSaves = field(default_factory=ToldSaves)
    repeats: int = 0

    def tolerance(self, figure: str) -> float | None:
        """Returns the relative difference between run and restart that is allowed in the quantity `figure`, or `None`
        if repeats of the run differ too much to tell an error from chance."""
        most = 0.0 if self.exact else TOLERANCE * self.apart.get(figure, np.inf)
        return most if most < TOO_WIDE else None

    def same_in_repeats(self, figure: str) -> bool:
        """Returns True if all repeats logged the same values of the quantity `figure` as the uninterrupted run.
        Learning rates may differ between repeats if they depend on the loss."""
        return self.exact or not self.apart.get(figure)

    @property
    def too_few(self) -> str:
        if self.repeats >= (1 if self.exact else REPEATS):
            return ""
        made = f"{counted(self.repeats, 'repeat')} of the run" if self.repeats else "no repeat of the run"
        return f"{made} shows how far two runs of this job are apart, and it takes {REPEATS}"


@dataclass
class Compared:
    found: list[Finding]
    values: dict[str, int]


def differences(usual: Usual, again: Timeline, moment: Moment) -> Compared:
    compared = Compared([*_restored(usual, again, moment.step)], {})
    _samples(usual, again, moment, compared)
    _figure(usual, again, moment, "lr", Kind.SCHEDULE, 0.0 if usual.same_in_repeats("lr") else None, compared)
    if usual.same_in_repeats("applied"):
        _updates(usual.run, again, compared)
    for name in COMPUTED:
        _figure(usual, again, moment, name, Kind.COMPUTED, usual.tolerance(name), compared)
    if usual.exact:
        _weights(usual.run, again, compared)
    _saved(usual, again, moment, compared)
    return compared


def on_other_ranks(usual: Usual, again: Timeline, moment: Moment) -> Compared:
    """Finds the differences between the uninterrupted run and a restart on more or fewer ranks. Only the restored save
    and the samples are compared: each sample must come once in a pass over the data set. Losses are not compared,
    because a step of the restart may hold more or fewer samples."""
    compared = Compared([*_restored(usual, again, moment.step)], {})
    _once_in_the_pass(usual, again, moment.step, compared)
    return compared


def apart(usual: Timeline, repeat: Timeline) -> tuple[bool, dict[str, float]]:
    """Returns True if a repeat has the losses, weights and saves of the uninterrupted run, bit for bit, and False if
    any of these differs or none can be compared. Also returns the largest relative difference between run and repeat,
    by logged quantity."""
    found, told = dict[str, float](), 0
    for name in (*COMPUTED, "lr", "applied"):
        both = _told_by_both(usual, repeat, name, untold=-1 if name == "applied" else None)
        told += len(both.step) * (name in COMPUTED)
        if len(both.step):
            size, distance = np.maximum(np.abs(both.mine), np.abs(both.other)), losses.distance(both.mine, both.other)
            most = np.max(np.where(distance > 0, distance / np.where(size > 0, size, 1), 0.0), initial=0.0)
            found |= {name: float(most)} if most or name in COMPUTED else {}
    weights, mine, other = _told_by_both(usual, repeat, "weights", untold=0), published(usual), published(repeat)
    saves = [step for step in mine.keys() & other.keys() if mine[step].get("tensors") and other[step].get("tensors")]
    same = all(mine[step]["tensors"] == other[step]["tensors"] for step in saves)
    same &= bool((weights.mine == weights.other).all()) and not any(found.values())
    return same and told + len(weights.step) + len(saves) > 0, found


def same_tensors(run: Timeline) -> list[Finding]:
    """Finds saves of different steps of one run that hold equal tensors, by the harness's digests of the tensors."""
    held, at = dict[str, list[int]](), told_saves(run).at
    for step, event in published(run).items():
        if event.get("tensors") and event.get("tensor_count"):
            held.setdefault(str(event["tensors"]), []).append(step)
    alike = [steps for saves in held.values() if len(steps := sorted({*map(at, saves)})) > 1]
    return [Finding(Kind.SAVED, f"the saves of steps {_listed(steps)} hold the same tensors") for steps in alike]


def published(run: Timeline) -> dict[int, Mapping[str, Any]]:
    """Returns the newest event `checkpoint.published` of each save, by the number in the save's name."""
    return {event["step"]: event for event in run.published if type(event.get("step")) is int}


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - RANKS_NAMED} more" if len(numbers) > RANKS_NAMED else ""
    return ", ".join(map(str, numbers[:RANKS_NAMED])) + more


def _restored(usual: Usual, again: Timeline, step: int) -> Iterator[Finding]:
    told = {each.restored_step for each in first_processes(again)} - {None}
    first = int(again.steps.step.min()) if len(again.steps) else None
    stride = max(usual.run.stride, again.stride)
    as_due = first is None or step < first <= step + stride
    if 0 in told - {step} or (not told and not as_due and first is not None and first <= stride):
        yield Finding(Kind.RESTORED, f"it started from scratch, though the save of step {step} was there")
    elif told - {step}:
        yield Finding(Kind.RESTORED, f"it restored {sorted(filter(None, told))} and not the save of step {step}")
    elif not as_due:
        yield Finding(Kind.RESTORED, f"after the save of step {step} its first step was {first}")


def first_processes(run: Timeline) -> list[Process]:
    """Returns, for each rank of a run, the first process that restored a save or did a step."""
    found: dict[int, Process] = {}
    for each in sorted(run.processes, key=lambda process: process.started):
        if each.restored_step is not None or each.first_step is not None:
            found.setdefault(each.rank, each)
    return list(found.values())


# Samples


def _samples(usual: Usual, again: Timeline, moment: Moment, compared: Compared) -> None:
    kind, amid = samples.told_kind(again, usual.run), moment.step + 1 if moment.micro_batches else -1
    if kind is None:
        _places(usual.run, again, amid, compared)
        return
    mine, theirs = _Consumed(again, kind), _Consumed(usual.run, kind)
    common = np.intersect1d(mine.steps, theirs.steps)
    due = np.intersect1d(np.unique(again.steps.step), theirs.steps)
    if kind == "digests":  # the digest of a partial step matches no digest of the run
        common, due = common[common != amid], due[due != amid]
    compared.values[Kind.SAMPLES.name] = len(common)
    if len(due) - len(common) > HOLES_MAX:
        words = f"it does not tell its samples in {counted(len(due) - len(common), 'step')}, as the run did"
        compared.found.append(Finding(Kind.SAMPLES, words))
    odd = [at for at in common.tolist() if mine.of(at) != theirs.of(at)]
    a_step = max(usual.saves.a_step or 0, moment.micro_batches + 1)
    if amid in odd and mine.of(amid) == theirs.left(amid, moment.micro_batches, a_step):
        odd.remove(amid)
    if odd:
        parts = [_in_pass(usual, mine, theirs, moment.step, part) for part in _by_pass(usual, odd)]
        words = f"{len(odd)} of {counted(len(common), 'step')} consumed other samples than without the stop"
        compared.found.append(Finding(Kind.SAMPLES, f"{words}, first at step {odd[0]}: {'; '.join(parts)}"))


def _by_pass(usual: Usual, steps: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for step in steps:
        found.setdefault(int(np.searchsorted(usual.ends, step)), []).append(step)
    return list(found.values())


def _in_pass(usual: Usual, mine: _Consumed, theirs: _Consumed, step: int, odd: Sequence[int]) -> str:
    number = int(np.searchsorted(usual.ends, odd[0]))
    begin = [0, *usual.ends][number]
    came, due = mine.together(odd), theirs.together(odd)
    before = theirs.between(begin + 1, step) + mine.between(begin + 1, odd[0] - 1)
    more, less = came - due, due - came
    repeated = sum(count for item, count in more.items() if before[item] or due[item])
    where = f" in pass {number + 1}" if usual.ends else ""
    early = more.total() - repeated
    text = f"{mine.many(repeated)} repeated, {mine.many(less.total())} not seen{where}"
    return text + (f", {mine.many(early)} too early" if early else "")


def _once_in_the_pass(usual: Usual, again: Timeline, step: int, compared: Compared) -> None:
    """Checks only the first pass over the data, because a later pass may begin within a step, and may hold samples that
    the first pass dropped. A step that reaches into the second pass is skipped, because it may repeat samples of the
    first pass."""
    kind = samples.told_kind(again, usual.run)
    if kind is None:
        _position_gaps(usual.run, again, step, compared)
        return
    mine, theirs = _Consumed(again, kind), _Consumed(usual.run, kind)
    if usual.ends and step >= usual.ends[0]:
        return
    before = theirs.between(1, step)
    due = set(theirs.between(1, usual.ends[0])) if usual.ends else None
    came, last, total = Counter[int](), Counter[int](), before.total()
    for at in mine.steps.tolist():
        last = mine.of(at)
        if due is not None and total + last.total() > len(due):
            break  # this step belongs to the next pass, or to both
        came.update(last)
        total, last = total + last.total(), Counter()
        compared.values[Kind.SAMPLES.name] = compared.values.get(Kind.SAMPLES.name, 0) + 1
    repeated = sum(count if before[item] else count - 1 for item, count in came.items())
    full = due is not None and total == len(due)  # the last step belongs to the next pass alone
    excused = before.keys() | came.keys() | (set() if full else last.keys())
    skipped = len(due - excused) if due and last else 0
    if max(repeated, skipped) >= max(again.largest_world, usual.run.largest_world):
        many = f"{mine.many(repeated)} repeated, {mine.many(skipped)} not seen in pass 1"
        compared.found.append(Finding(Kind.SAMPLES, f"on {counted(again.largest_world, 'rank')}: {many}"))


class _Consumed:
    """The samples that a run consumed in each step, on all ranks together."""

    def __init__(self, run: Timeline, kind: samples.Kind):
        self._run, self._kind = run, kind
        rows = losses.by_rank(run.steps).row
        told = run.steps.samples[rows] >= 0 if kind == "samples" else run.steps.digest[rows] != 0
        self._rows = rows[told]  # in the order of steps
        self._step: Ints = run.steps.step[self._rows]
        self.steps: Ints = np.unique(self._step)

    def of(self, step: int) -> Counter[int]:
        return self.between(step, step)

    def between(self, first: int, last: int) -> Counter[int]:
        begin, end = np.searchsorted(self._step, [first, last + 1])
        return self._items(self._rows[begin:end])

    def left(self, step: int, done: int, a_step: int) -> Counter[int]:
        """Returns the samples of `step` that remain after each rank did `done` of the step's `a_step` micro-batches."""
        rows = self._rows[self._step == step].tolist()
        items = [self._run.samples.expanded(self._run.steps.samples[row : row + 1]).tolist() for row in rows]
        return Counter(item for each in items for item in each[len(each) * done // a_step :])

    def together(self, steps: Sequence[int]) -> Counter[int]:
        return self._items(self._rows[np.isin(self._step, np.asarray(steps, np.int64))])

    def _items(self, rows: Ints) -> Counter[int]:
        if self._kind == "digests":
            return Counter(self._run.steps.digest[rows].tolist())
        return Counter(self._run.samples.expanded(self._run.steps.samples[rows]).tolist())

    def many(self, number: int) -> str:
        return counted(number, "sample") if self._kind == "samples" else counted(number, "batch", "batches")


def _places(usual: Timeline, again: Timeline, amid: int, compared: Compared) -> None:
    for name, words in (("first", "position in the data"), ("count", "number of samples")):
        both = _told_by_both(usual, again, name, untold=-1)
        both = both.at(both.step != amid)
        compared.values[Kind.SAMPLES.name] = max(compared.values.get(Kind.SAMPLES.name, 0), len(both.step))
        for step in both.step[both.mine != both.other][:1]:
            text = f"at step {step} its {words} is another than without the stop"
            compared.found.append(Finding(Kind.SAMPLES, text))


def _position_gaps(usual: Timeline, again: Timeline, step: int, compared: Compared) -> None:
    before, after = losses.surviving(usual.steps), losses.surviving(again.steps)
    found = samples.by_places(after)
    compared.values[Kind.SAMPLES.name] = 0 if found.why else len(after)
    for row in np.flatnonzero(before.step == step) if len(after) and after.step[0] == step + 1 else ():
        was, now = int(before.first[row] + before.count[row]), int(after.first[0])
        if before.first[row] >= 0 and now >= 0 and was != now:
            text = f"it went on with sample {now} of the data, and sample {was} was next"
            compared.found.append(Finding(Kind.SAMPLES, text))
    if found.repeated or found.skipped:
        many = f"{counted(found.repeated or 0, 'sample')} repeated, {counted(found.skipped or 0, 'sample')} not seen"
        compared.found.append(Finding(Kind.SAMPLES, f"{many}, first {found.where}"))


# Figures


def _figure(
    usual: Usual, again: Timeline, moment: Moment, name: str, kind: Kind, tolerance: float | None, compared: Compared
) -> None:
    """Compares one logged quantity in run and restart. `tolerance` is the allowed relative difference, or `None` if
    values are not compared. If the save lies between two logged steps, the restart's first value is skipped, because it
    may be a mean over fewer steps. If the save was made within a step, the restart's first loss is skipped, because it
    may be a sum over fewer micro-batches."""
    both = _told_by_both(usual.run, again, name)
    stride = max(usual.run.stride, again.stride)
    between = (kind is Kind.COMPUTED and moment.step % stride) or (name == "loss" and moment.micro_batches)
    if between and len(both.step):
        both = both.at(both.step > both.step[0])
    if both.alone > HOLES_MAX:
        words = f"it does not tell the {WORDS[name]} of {counted(both.alone, 'step')} of a rank, as the run did"
        compared.found.append(Finding(kind, words))
    if tolerance is None:
        return
    compared.values[kind.name] = compared.values.get(kind.name, 0) + len(both.step)
    size = np.maximum(np.abs(both.mine), np.abs(both.other))
    with np.errstate(invalid="ignore"):
        near = losses.distance(both.mine, both.other) <= tolerance * size
    odd = losses.unlike(both.mine, both.other) & ~(near & np.isfinite(both.mine) & np.isfinite(both.other))
    for place in np.flatnonzero(odd)[:1]:
        at, mine, other = int(both.step[place]), both.mine[place], both.other[place]
        whose = sorted(set(both.rank[odd & (both.step == at)].tolist()))
        of = f" of rank{'s' * (len(whose) > 1)} {_listed(whose)}" if len(whose) < len(set(both.rank.tolist())) else ""
        text = f"at step {at} the {WORDS[name]}{of} is {mine:.9g}, and {other:.9g} without the stop"
        compared.found.append(Finding(kind, text))


def _updates(usual: Timeline, again: Timeline, compared: Compared) -> None:
    both = _told_by_both(usual, again, "applied", untold=-1)
    odd = both.mine != both.other
    for words, mine in (("skipped the update", 0), ("applied the update", 1)):
        steps = np.unique(both.step[odd & (both.mine == mine)]).tolist()
        if steps:
            usual_words = "not without the stop" if not mine else "which was skipped without the stop"
            text = f"it {words} of {counted(len(steps), 'step')}, {usual_words}: {_listed(steps)}"
            compared.found.append(Finding(Kind.COMPUTED, text))


def _weights(usual: Timeline, again: Timeline, compared: Compared) -> None:
    both = _told_by_both(usual, again, "weights", untold=0)
    compared.values[Kind.COMPUTED.name] = compared.values.get(Kind.COMPUTED.name, 0) + len(both.step)
    for place in np.flatnonzero(both.mine != both.other)[:1]:
        who = f"at step {both.step[place]} rank {both.rank[place]}"
        compared.found.append(Finding(Kind.COMPUTED, f"{who} has other weights than without the stop"))


class _Both(NamedTuple):
    """The values of one quantity that run and restart logged for the same step and rank. `alone` counts the values that
    only the uninterrupted run logged."""

    step: Ints
    rank: Ints
    mine: Any
    other: Any
    alone: int

    def at(self, rows: Bools) -> _Both:
        return _Both(self.step[rows], self.rank[rows], self.mine[rows], self.other[rows], self.alone)


def _told_by_both(usual: Timeline, again: Timeline, name: str, untold: int | None = None) -> _Both:
    """Pairs the values of the quantity `name` in the logs of run and restart. `untold` is the number that marks a
    missing value, or `None` if NaN marks a missing value."""
    ours, theirs = losses.by_rank(again.steps), losses.by_rank(usual.steps)
    _, left, right = np.intersect1d(ours.key, theirs.key, assume_unique=True, return_indices=True)
    rows = ours.row[left]
    mine, other = getattr(again.steps, name)[rows], getattr(usual.steps, name)[theirs.row[right]]
    both = _is_told(mine, untold) & _is_told(other, untold)
    alone = int((_is_told(other, untold) & ~both).sum())
    return _Both(again.steps.step[rows][both], again.steps.rank[rows][both], mine[both], other[both], alone)


def _is_told(values: Any, untold: int | None) -> Bools:
    return np.asarray(is_told(values) if untold is None else values != untold, np.bool_)


# Saves


def _saved(usual: Usual, again: Timeline, moment: Moment, compared: Compared) -> None:
    """Compares the next save of the restart with the same save of the uninterrupted run. The next save may come later
    than in the uninterrupted run if the job saves by time."""
    mine, other, save = published(again), published(usual.run), moment.save or 0
    due = sorted(at for at in other if at > save and usual.saves.at(at) < again.reached_step)
    until = due[0] if due and save in other and usual.run.saves_every_s is None else NEVER
    # The harness may never see a short-lived save, so saves that the log reports count, too.
    seen = {*mine, *told_saves(again).steps} if any(at > save for at in mine) else {*mine}
    if due and not any(save < at <= until for at in seen):
        words = f"it made no save of step {usual.saves.at(due[0])}, as the run did"
        compared.found.append(Finding(Kind.SAVED, words))
    both = sorted(at for at in mine.keys() & other.keys() if at > save)
    told = [at for at in both if mine[at].get("tensors") and other[at].get("tensors")] if usual.exact else []
    if told:
        compared.values[Kind.SAVED.name] = len(told)
    if (first := first_other_save(usual, again, save)) is None:
        return
    text = f"its save of step {usual.saves.at(first)} holds other tensors than without the stop"
    ours, theirs = (Counter(map(str, each[first].get("tensor_digests") or ())) for each in (mine, other))
    if differ := ours - theirs:
        sizes = sorted({each.partition(" ")[0] for each in differ}, key=len)
        text += f": {differ.total()} of {ours.total()}, of {' or '.join(sizes[:3])} bytes"
    compared.found.append(Finding(Kind.SAVED, text))


def first_other_save(usual: Usual, again: Timeline, save: int) -> int | None:
    """Returns the number in the name of the first save whose tensors differ between the restart and the uninterrupted
    run, or `None` if no save differs."""
    mine, other = published(again), published(usual.run)
    both = sorted(at for at in mine.keys() & other.keys() if at > save)
    digests = ((at, mine[at].get("tensors"), other[at].get("tensors")) for at in both if usual.exact)
    return next((at for at, one, two in digests if one and two and one != two), None)
