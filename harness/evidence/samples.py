"""Finds which samples a run repeated, skipped or consumed in another step than the fault-free run did.

A rank that the harness observes logs for each step the indices of its samples (`samples`), or a digest of its inputs.
The samples of all ranks together are compared with those in the fault-free run, for each pass over the data set,
without rolled-back steps. A run may repeat a sample as often as the fault-free run does, for example as padding. If run
and fault-free run consume equally many samples in each step, their common steps are compared; if not, as after a change
of the number of ranks, whole passes over the data set are compared. If the order of samples differs between fault-free
runs, the run's own passes must not repeat more samples than those of the fault-free run.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from harness.evidence.by_time import Window
from harness.evidence.logs import Evidence
from harness.evidence.losses import Curve, by_rank
from harness.judge.thresholds import DRAWN_TWICE, SEEN_AGAIN
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Bools, Ints, Timeline
from harness.units import counted

NAMED_RUNS = 6
EXPANDED_MAX = 2**27  # most samples compared one by one: a gigabyte
_ROWS_AT_ONCE = 2**14
Kind = Literal["samples", "digests", "places"]


@dataclass(frozen=True)
class LeftOut:
    """The samples that a trainer was allowed to leave out, as sorted ranges of positions in the shuffled order."""

    accepted: Sequence[Window] = ()

    def within(self, begin: int, end: int) -> int:
        """Counts the sample positions from `begin` to `end` that the trainer was allowed to leave out."""
        return sum(max(0, min(end, until) - max(begin, first)) for first, until in self.accepted)

    def moved(self, first: Ints) -> Ints:
        """Shifts each batch's first sample position by the number of samples left out before this batch."""
        for begin, end in self.accepted:
            first = np.where(first >= begin, first + end - begin, first)
        return first


NOTHING_LEFT_OUT = LeftOut()


@dataclass(frozen=True)
class Consumed:
    """The result of comparing the samples that a run consumed with those of the fault-free run."""

    kind: Kind = "samples"
    repeated: int | None = None  # number of samples (or inputs of steps); `None`: not known, see `why`
    skipped: int | None = None  # the same
    others: int = 0  # samples consumed once, that the fault-free run did not consume in the same pass
    repeated_where: str = ""
    skipped_where: str = ""
    moved: int = 0  # steps with other samples than in the fault-free run
    first_moved: int | None = None  # the first of these steps
    why: str = ""
    comparable: bool = True
    unproven: bool = False  # nothing shows that the order of samples is the same in every run
    where: str = ""  # the first odd place, in words


def told_kind(run: Timeline, fault_free: Timeline | None) -> Kind | None:
    """Returns `samples` if a log has sample indices, `digests` if the logs have digests of inputs but no sample
    positions, or else `None`."""
    timelines = [each for each in (run, fault_free) if each is not None]
    if any((each.steps.samples >= 0).any() for each in timelines):
        return "samples"
    if any((each.steps.first >= 0).any() for each in timelines):
        return None
    return "digests" if any((each.steps.digest != 0).any() for each in timelines) else None


def consumed(evidence: Evidence) -> Consumed | None:
    """Compares the samples of the run and the fault-free run, or returns `None` if no indices or digests are logged."""
    run, fault_free = evidence.run, evidence.fault_free
    kind = told_kind(run, fault_free)
    if kind is None:
        return None
    flaw = "there is none" if fault_free is None else evidence.flaw(fault_free)
    if fault_free is None or flaw:
        return Consumed(kind, why=f"the samples cannot be compared with a fault-free run: {flaw}")
    mine, theirs = (_History(each, kind, run.step_before(run.work_changed_at)) for each in (run, fault_free))
    step, sides = _differing(mine, theirs)
    untold = mine.untold or theirs.untold
    not_told = Consumed(kind, why=f"{counted(untold, 'step')} of a rank without a report of its samples")
    if not len(step):
        return not_told if untold else Consumed(kind, why="the two runs have no step that can be compared")
    struck = min(first_strike(run.faults), run.end)
    later = int(run.steps.step[run.steps.end >= struck].min(initial=NEVER))  # lowest step of any rank
    why, unproven = _order(evidence, step, sides, later)
    if sum(int(history.counts(rows).sum()) for history, rows in sides) > EXPANDED_MAX:
        return Consumed(kind, why="too many samples differ from the fault-free run to be compared", comparable=not why)
    places = ((np.searchsorted(step, history.steps.step[rows]), history.counts(rows)) for history, rows in sides)
    totals = [np.bincount(place, weights=counts, minlength=len(step)) for place, counts in places]
    as_much = (totals[0] == totals[1]).all()
    if why:
        found = _again(mine, theirs, step, later) if as_much and not untold else not_told
        return replace(found, why=f"sample order: not comparable; {why}", comparable=False)
    found = _by_steps(step, sides) if as_much else not_told if untold else _by_passes(mine, theirs)
    if untold:  # numbers of samples are not known, but moved steps are
        found = replace(not_told, moved=found.moved, first_moved=found.first_moved)
    return replace(found, unproven=unproven)


def by_places(curve: Curve, left_out: LeftOut = NOTHING_LEFT_OUT) -> Consumed:
    """Finds repeated and skipped samples: each step's samples must begin where the previous step's samples, or samples
    left out after them, ended."""
    if not len(curve) or (curve.first < 0).any() or (curve.count < 0).any():
        return Consumed("places", why="the trainer does not report which samples a step consumed")
    jump = curve.first[1:] - (curve.first + curve.count)[:-1]
    jump[np.diff(curve.step) != 1] = 0  # other checks report gaps at missing steps
    for row in np.flatnonzero(jump > 0) if left_out.accepted else ():
        jump[row] -= left_out.within(int(curve.first[row] + curve.count[row]), int(curve.first[row + 1]))
    rows = np.flatnonzero(jump)
    jumps: list[int] = jump[rows].tolist()  # a sum of forged positions may need more than 64 bits
    where = f"at step {curve.step[rows[0] + 1]}" if jumps else ""
    repeated, skipped = sum(-each for each in jumps if each < 0), sum(each for each in jumps if each > 0)
    return Consumed("places", repeated, skipped, where=where)


class _History:
    """The rows of a run whose samples can be compared: rows of steps that were not rolled back, and whose samples all
    ranks logged."""

    def __init__(self, run: Timeline, kind: Kind, last: int = NEVER):
        self.run, self.kind, self.steps = run, kind, run.steps
        found = by_rank(run.steps)
        whole = run.steps.complete[found.row] & (run.steps.step[found.row] <= last)
        key, row = found.key[whole], found.row[whole]
        untold = run.steps.samples[row] == -1 if kind == "samples" else run.steps.digest[row] == 0
        self.untold = int(untold.sum())  # rows without reported samples
        told_by_all = ~np.isin(run.steps.step[row], run.steps.step[row[untold]])
        self.key, self.row = key[told_by_all], row[told_by_all]
        self.step, self.data_pass = run.steps.step[self.row], run.steps.data_pass[self.row]

    def expanded(self, rows: Ints) -> Ints:
        if self.kind == "digests":
            return self.steps.digest[rows]
        return self.run.samples.expanded(self.steps.samples[rows])

    def counts(self, rows: Ints) -> Ints:
        """Returns the number of samples in each of the rows `rows`. A digest of inputs counts as one sample."""
        if self.kind == "digests":
            return np.ones(len(rows), np.int64)
        return self.run.samples.counts(self.steps.samples[rows])


Sides = tuple[tuple[_History, Ints], tuple[_History, Ints]]
"""The rows of steps to compare: first those of the run, then those of the fault-free run."""


def _differing(mine: _History, theirs: _History) -> tuple[Ints, Sides]:
    step = np.intersect1d(mine.step, theirs.step)
    _, left, right = np.intersect1d(mine.key, theirs.key, assume_unique=True, return_indices=True)
    ours, other = mine.row[left], theirs.row[right]
    if mine.kind == "digests":
        same = mine.steps.digest[ours] == theirs.steps.digest[other]
    else:
        same = mine.run.samples.equal(mine.steps.samples[ours], theirs.run.samples, theirs.steps.samples[other])
    rest = np.isin(mine.step, step), np.isin(theirs.step, step)
    rest[0][left[same]] = rest[1][right[same]] = False
    return step, ((mine, mine.row[rest[0]]), (theirs, theirs.row[rest[1]]))


def _order(evidence: Evidence, step: Ints, sides: Sides, later: int) -> tuple[str, bool]:
    """Returns why runs may consume samples in different orders (empty if nothing shows this), and True if nothing shows
    a fixed order."""
    if len(_moved(sides, later)):
        return "it differed from the fault-free run before any fault struck", False
    theirs = sides[1][0]
    sound = [other for other in evidence.calibration if not evidence.flaw(other)]
    repeats = [other for other in sound if other.epochs[0].size == theirs.run.epochs[0].size]
    for other in repeats:
        history = _History(other, theirs.kind)
        if not history.untold and len(_moved(_differing(history, theirs)[1])):
            return "it differs between fault-free runs", False
    return "", not ((step < later).any() or repeats)


def _moved(sides: Sides, later: int = NEVER) -> Ints:
    early = ((history, rows[history.steps.step[rows] < later]) for history, rows in sides)
    beyond, missing = _difference(*(_Bag.of(history, rows, history.steps.step[rows]) for history, rows in early))
    return np.union1d(beyond.part, missing.part)


def _by_steps(step: Ints, sides: Sides) -> Consumed:
    (mine, _), (theirs, _) = sides
    pass_of = _passes(theirs, step)
    bags = (_Bag.of(each, rows, pass_of[np.searchsorted(step, each.steps.step[rows])]) for each, rows in sides)
    beyond, skipped = _difference(*bags)
    again, moved = _consumed_again(beyond, mine, step, pass_of), _moved(sides)
    found, first_moved = _found(mine, beyond.at(again), skipped), next(iter(moved.tolist()), None)
    return replace(found, others=int((~again).sum()), moved=len(moved), first_moved=first_moved)


def _passes(theirs: _History, step: Ints) -> Ints:
    """Returns the pass over the data set to which each step belongs. The pass numbers come from the fault-free run,
    because a restarted trainer can count passes from 0 again."""
    if not (theirs.data_pass >= 0).any():
        return np.searchsorted(pass_ends(theirs.run, theirs.kind) or [], step)
    number, first = np.unique(theirs.step, return_index=True)
    return theirs.data_pass[first[np.searchsorted(number, step)]]


def _again(mine: _History, theirs: _History, step: Ints, later: int) -> Consumed:
    pass_of = np.unique(_passes(theirs, step), return_inverse=True)[1]
    (ours, at, restarted, size), (usual, *_) = (_repeats(each, step, pass_of) for each in (mine, theirs))
    allowed = np.bincount(usual.part, minlength=len(step))
    beyond = _beyond(ours.part, allowed)
    bag, least = ours.at(beyond & restarted), max(size, DRAWN_TWICE if mine.kind == "samples" else 0)
    drawn = allowed.max() >= size or (beyond & (at < later)).any() or 0 < len(bag.item) < least
    return Consumed(mine.kind, None if drawn else len(bag.item), repeated_where=_in_words(bag, mine))


def _repeats(history: _History, step: Ints, pass_of: Ints) -> tuple["_Bag", Ints, Bools, float]:
    """Returns the samples that a step of the same pass had already consumed, the step of each sample, True for each
    sample that was consumed again after a restart, and the mean number of samples per step."""
    rows = history.row[np.isin(history.step, step)]
    counts = history.counts(rows)
    at, epoch = (np.repeat(each[rows], counts) for each in (history.steps.step, history.steps.epoch))
    bag = _Bag.of(history, rows, pass_of[np.searchsorted(step, history.steps.step[rows])])
    cells, first = np.unique(np.stack([bag.part, bag.item, at]), axis=1, return_index=True)  # ranks may share samples
    again = np.flatnonzero((np.diff(cells[:2]) == 0).all(axis=0)) + 1
    again = again[np.argsort(cells[2, again], kind="stable")]
    restarted = epoch[first[again]] != epoch[first[again - 1]]
    return bag.at(first[again]), cells[2, again], restarted, len(first) / len(step)


def _found(mine: _History, repeated: "_Bag", skipped: "_Bag") -> Consumed:
    again, never = _in_words(repeated, mine), _in_words(skipped, mine)
    return Consumed(mine.kind, len(repeated.item), len(skipped.item), repeated_where=again, skipped_where=never)


def _consumed_again(beyond: "_Bag", mine: _History, step: Ints, pass_of: Ints) -> Bools:
    cells, of = np.unique(np.stack([beyond.part, beyond.item]), axis=1, return_inverse=True)
    times = np.zeros(cells.shape[1], np.int64)
    rows = mine.row[np.isin(mine.step, step)]
    for at in range(0, len(rows) if len(of) else 0, _ROWS_AT_ONCE):
        some = rows[at : at + _ROWS_AT_ONCE]
        own = _Bag.of(mine, some, pass_of[np.searchsorted(step, mine.steps.step[some])])
        own = own.at(np.isin(own.item, cells[1]))
        both = np.concatenate([cells, np.stack([own.part, own.item])], axis=1)
        names, number = np.unique(both, axis=1, return_inverse=True)
        counts = np.bincount(number.reshape(-1), minlength=names.shape[1])
        times += counts[number.reshape(-1)[: len(times)]] - 1
    return np.asarray(times[of.reshape(-1)] > 1, np.bool_)


@dataclass(frozen=True)
class _Bag:
    """Consumed samples, each with its rank, and with the step or pass within which the sample is compared."""

    part: Ints
    item: Ints
    rank: Ints

    @classmethod
    def of(cls, history: _History, rows: Ints, part: Ints) -> Self:
        counts = history.counts(rows)
        return cls(np.repeat(part, counts), history.expanded(rows), np.repeat(history.steps.rank[rows], counts))

    def at(self, rows: Ints | Bools) -> Self:
        return type(self)(self.part[rows], self.item[rows], self.rank[rows])


def _difference(ours: _Bag, others: _Bag) -> tuple[_Bag, _Bag]:
    """Returns the surplus samples of `ours` and the surplus samples of `others`. If one bag holds a sample n times more
    often than the other bag, the last n copies are surplus."""
    keys = np.stack([np.concatenate([ours.part, others.part]), np.concatenate([ours.item, others.item])])
    cells, of = np.unique(keys, axis=1, return_inverse=True)
    here, there = np.split(of.reshape(-1), [len(ours.item)])
    sums = (np.bincount(each, minlength=cells.shape[1]) for each in (there, here))
    return ours.at(_beyond(here, next(sums))), others.at(_beyond(there, next(sums)))


def _beyond(cell: Ints, allowed: Ints) -> Bools:
    order = np.argsort(cell, kind="stable")
    begin = np.searchsorted(cell[order], cell[order])
    late = np.zeros(len(cell), np.bool_)
    late[order] = np.arange(len(cell)) - begin >= allowed[cell[order]]
    return late


def _by_passes(mine: _History, theirs: _History) -> Consumed:
    passes, usual = (np.unique(each.data_pass[each.data_pass >= 0])[:-1] for each in (mine, theirs))
    both = np.intersect1d(passes, usual)
    if not len(both):
        why = "steps consume another number of samples than in the fault-free run"
        if not any((history.data_pass >= 0).any() for history in (mine, theirs)):  # the sampler's epoch is never set
            untold = "the trainer does not report where a pass over the data begins"
            return Consumed(mine.kind, why=f"sample order: not comparable; {why}, and {untold}", comparable=False)
        return Consumed(mine.kind, why=f"{why}, and no complete pass over the data can be compared")
    inside = ((history, np.isin(history.data_pass, both)) for history in (mine, theirs))
    bags = (_Bag.of(history, history.row[rows], history.data_pass[rows]) for history, rows in inside)
    ranks = max(history.run.largest_world for history in (mine, theirs))
    return _found(mine, *(_beyond_padding(bag, ranks) for bag in _difference(*bags)))


def _beyond_padding(bag: _Bag, ranks: int) -> _Bag:
    """Drops the differing samples of a pass over the data set if they are fewer than the ranks, because they can be
    padding."""
    _, of, count = np.unique(bag.part, return_inverse=True, return_counts=True)
    return bag.at(count[of] >= ranks) if len(count) else bag


def pass_ends(run: Timeline, kind: Kind | None) -> list[int] | None:
    """Returns the last step of each pass over the data set except the last pass, or `None` if passes are unknown. A
    step begins the next pass if most of the step's samples already occurred in the current pass."""
    if kind is None:
        return _told_ends(run)
    history = _History(run, kind)
    counts = history.counts(history.row)
    if int(counts.sum()) > EXPANDED_MAX:
        return None
    step, item = np.repeat(history.step, counts), history.expanded(history.row)
    numbers, begins = np.unique(step, return_index=True)
    items = np.unique(item, return_inverse=True)[1]
    last_seen = np.full(int(items.max(initial=-1)) + 1, -1)  # pass in which each item was last seen
    ends: list[int] = []
    for number, part in zip(numbers.tolist(), np.split(items, begins[1:]), strict=True):
        if len(part) and (last_seen[part] == len(ends)).mean() > SEEN_AGAIN:
            ends.append(number - 1)
        last_seen[part] = len(ends)
    # A new shuffle makes new batches, whose digests need not repeat.
    return ends if ends or kind == "samples" else _told_ends(run)


def _told_ends(run: Timeline) -> list[int] | None:
    steps, size = run.steps, run.data_samples
    rows = np.flatnonzero(steps.data_pass >= 0)
    data_pass = steps.data_pass
    if not len(rows) and size:
        rows = np.flatnonzero((steps.first >= 0) & (steps.count > 0))
        data_pass = (steps.first + steps.count - 1) // size
    if not len(rows):
        return None
    step, first = np.unique(steps.step[rows], return_index=True)
    return [int(each) - 1 for each in step[1:][np.diff(data_pass[rows][first]) > 0]]


def _in_words(bag: _Bag, history: _History) -> str:
    if not len(bag.item) or history.kind == "digests":
        return ""
    per_rank = np.bincount(np.unique(bag.rank, return_inverse=True)[1])
    ranks = history.run.largest_world
    each = f" ({per_rank[0]} per rank)" if len(per_rank) == ranks > 1 and np.ptp(per_rank) == 0 else ""
    share, passes = "", len(np.unique(bag.part))
    if passes > 1:
        consumed = int(history.counts(history.row).sum())
        share = f" in {passes} passes over the data, {100 * len(bag.item) / consumed:.0f} % of the {consumed} consumed"
    return f"{each}{share}: {named(bag.item)}"


def named(items: Ints) -> str:
    """Formats sample indices as sorted ranges, such as `128–143, 200, …`."""
    values = np.unique(items)
    cuts = [0, *(np.flatnonzero(np.diff(values) != 1) + 1).tolist(), len(values)]
    runs = [values[begin:end] for begin, end in itertools.pairwise(cuts)]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:NAMED_RUNS]]
    return ", ".join([*shown, "…"] if len(runs) > NAMED_RUNS else shown)
