"""Compares the values, weights and samples that different ranks logged for the same step.

A value on which ranks disagree in most steps of the fault-free run is not compared between ranks, but with the value of
the same rank in the fault-free run. A rank that logs a value in most steps, but not in all, is compared like a rank
that logs it in all steps.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.evidence.coordinates import replicas
from harness.evidence.deaths import listed
from harness.evidence.losses import CURVES, bits, by_rank, distance, paired, ulps, unlike
from harness.judge.thresholds import LOCAL_SHARE
from harness.log.reading import is_told
from harness.timeline.lineage import NEVER, cells
from harness.timeline.timeline import Bools, Ints, Steps, Timeline


@dataclass(frozen=True)
class Abnormal:
    """An abnormal event that a run's logged steps show, with a description (`words`)."""

    words: str
    step: int
    begin: int  # ns
    survives: bool  # no restart rolled its steps back
    may_be_named: tuple[int, int] | None  # first and last step that an alarm about it may name; `None`: any step
    ranks: tuple[int, ...]  # ranks that an alarm about it may name; empty: any rank


def of_ranks(ranks: Sequence[int], size: int) -> str:
    """Returns a text that names ranks, such as `ranks 0 and 2 (of 4)`."""
    return f"rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in ranks])} (of {size})"


def weights_apart(run: Timeline) -> tuple[int, list[Abnormal]]:
    """Returns how many steps have weight digests of several replicas, and the steps in which these digests differ."""
    steps = run.steps
    rows = np.flatnonzero(steps.weights != 0)
    if not len(rows):
        return 0, []
    cell, count = cells(steps.epoch[rows], steps.step[rows], replicas(run)[steps.process[rows]])
    several = int((np.bincount(cell, minlength=count) > 1).sum())
    differ = np.bincount(cell[_differing(steps, "weights", rows, cell, count)], minlength=count) > 0
    odd = np.flatnonzero(differ[cell])
    odd = odd[np.argsort(cell[odd], kind="stable")]
    groups = np.split(rows[odd], np.flatnonzero(np.diff(cell[odd])) + 1) if len(odd) else []
    return several, sorted((_apart(steps, group) for group in groups), key=lambda each: each.begin)


def _apart(steps: Steps, rows: Ints) -> Abnormal:
    digests = dict(zip(steps.rank[rows].tolist(), steps.weights[rows].tolist(), strict=True))
    usual, votes = Counter(digests.values()).most_common(1)[0]
    outvoted = votes > len(digests) / 2
    ranks = sorted(rank for rank, each in digests.items() if not outvoted or each != usual)
    step, who = int(steps.step[rows[0]]), f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
    how = "computed with other weights than the majority" if outvoted else "each computed with other weights"
    words, survives = f"at step {step} {who} {how}", bool(steps.survives[rows].any())
    return Abnormal(words, step, int(steps.begin[rows].min()), survives, None, tuple(ranks) if outvoted else ())


def beside(run: Steps, fault_free: Steps, name: str, last: int = NEVER) -> tuple[Ints, Bools]:
    """Returns the rows up to step `last` with `name` logged in both runs, and marks the rows whose values are equal in
    both runs."""
    rows, others = paired(run, fault_free)
    both = _told(run, name, rows) & _told(fault_free, name, others) & (run.step[rows] <= last)
    rows, others = rows[both], others[both]
    return rows, np.asarray(_exact(run, name)[rows] == _exact(fault_free, name)[others], np.bool_)


def weights_together(steps: Steps, of: Bools | None = None) -> Ints:
    """Returns the steps in which at least two ranks log digests of their weights."""
    told = (steps.weights != 0) & (True if of is None else of)
    step, count = np.unique(np.unique((steps.step[told] << 32) | steps.rank[told]) >> 32, return_counts=True)
    return np.asarray(step[count > 1], np.int64)


def weights_again(steps: Steps) -> tuple[int, int] | None:
    """Finds the first step, not rolled back, whose weights equal an earlier step's weights in spite of updates in
    between. Returns the numbers of both steps, or `None` if there is no such step. A step with a learning rate of 0
    does not count as an update."""
    if not steps.weights.any():
        return None
    rows = by_rank(steps).row
    updates = np.unique(steps.step[rows][(steps.applied[rows] != 0) & (steps.lr[rows] != 0)])
    rows = rows[steps.weights[rows] != 0]
    _, first, of = np.unique(steps.weights[rows], return_index=True, return_inverse=True)
    step = steps.step[rows]
    since = step[first][of.reshape(-1)]
    again = np.flatnonzero(np.searchsorted(updates, step) > np.searchsorted(updates, since))
    return (int(step[again[0]]), int(since[again[0]])) if len(again) else None


def digests_after(steps: Steps, rank: int, acted: Sequence[int]) -> list[int]:
    """Returns a list of at most one step: the first step after the fault, and before a restart, in which the rank logs
    a digest of its weights."""
    rows = np.flatnonzero((steps.rank == rank) & (steps.begin > acted[0])) if acted else np.zeros(0, np.int64)
    rows = rows[np.argsort(steps.begin[rows], kind="stable")]
    told = rows[(steps.weights[rows] != 0) & (steps.epoch[rows] == steps.epoch[rows[:1]])]
    return [int(step) for step in steps.step[told[:1]]]


def unusual_batches(run: Timeline, usual: Timeline, least: int) -> Iterator[str]:
    """Yields a text for each unusual way in which a rank shares samples with others for at least `least` kept steps in
    a row. A way of sharing is unusual if no rank of the fault-free run `usual` shows it."""
    (rows, mine), (_, theirs) = (_shared(each, usual.largest_world) for each in (run, usual))
    step, rank = run.steps.step[rows], run.steps.rank[rows]
    every = np.unique(step)
    for words, ago in mine.items():
        odd = ago < theirs[words].min(initial=NEVER)
        in_a_row = np.convolve([*np.isin(every, step[odd]), False], np.ones(least))[least - 1 : -1] == least
        for at in every[in_a_row][:1].tolist():
            row = np.flatnonzero(odd & (step == at))[0]
            yield f"at step {at} rank {rank[row]} processed {words.format(at - ago[row])}"


def _shared(run: Timeline, size: int) -> tuple[Ints, dict[str, Ints]]:
    """Returns the rows of steps on `size` ranks whose samples are logged. Maps each wrong way of sharing, such as "no
    samples", to one number for each row: how many steps ago the same samples were consumed (0: in this step), or
    `NEVER`."""
    steps, lists = run.steps, run.samples
    rows, sizes = by_rank(steps).row, np.array([epoch.size for epoch in run.epochs] + [0], np.int64)
    rows = rows[(steps.samples[rows] >= 0) & (sizes[steps.epoch[rows]] == size) & (steps.applied[rows] != 0)]
    rows = rows[steps.step[rows] <= run.step_before(run.work_changed_at)]
    step, rank, told = steps.step[rows], steps.rank[rows], steps.samples[rows]
    some = lists.counts(told) > 0
    begin = np.append(lists.runs[:, 0], -1)[lists.offsets[told]]  # equal lists begin with equal indices
    moved = [each.process for each in run.stretches if each.restored and each.before is not None]
    own = np.where(np.isin(steps.process[rows], moved), -1 - np.arange(len(rows)), steps.process[rows])
    found = {"no samples": np.where(some, NEVER, 0)}
    for words, whose in (("the samples of step {} again", own), ("another rank's samples of step {}", None)):
        whose, others = (np.zeros_like(own), True) if whose is None else (whose, False)
        order = np.lexsort((rank, step, begin, whose))
        same = lists.equal(told[order[1:]], lists, told[order[:-1]]) & some[order[1:]]
        same &= (np.diff(whose[order]) == 0) & ((np.diff(rank[order]) != 0) == others)
        found[words] = np.full(len(rows), NEVER)
        found[words][order[1:][same]] = np.diff(step[order])[same]
    return rows, found


def tells_samples(steps: Steps) -> Bools:
    return np.asarray((steps.rank_samples >= 0) & (steps.count >= 0), np.bool_)


def samples_counted(run: Timeline) -> Ints:
    """Returns the rows of steps, not rolled back, for which all ranks log their own and the batch's number of
    samples."""
    steps, sizes = run.steps, np.array([epoch.size for epoch in run.epochs] + [0], np.int64)
    rows = np.flatnonzero(steps.survives & steps.complete)
    told = tells_samples(steps)[rows]
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    told_by = np.bincount(cell[told], minlength=count)
    return rows[told_by[cell] >= sizes[steps.epoch[rows]]]


def samples_short(steps: Steps, rows: Ints) -> list[Abnormal]:
    """Returns the steps in which all ranks together consumed more or fewer samples than the batch has, in order."""
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    asked, got = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(asked, cell, steps.count[rows])
    np.add.at(got, cell, steps.rank_samples[rows])
    wrong = np.flatnonzero((asked != got)[cell])
    few = rows[wrong]
    order = np.lexsort((steps.rank[few], steps.rank_samples[few], steps.step[few]))
    number, first = np.unique(steps.step[few[order]], return_index=True)  # per step: the rank with the fewest
    found = []
    for step, place in zip(number.tolist(), wrong[order[first]].tolist(), strict=True):
        row, of = rows[place], cell[place]
        who = f"at step {step} rank {steps.rank[row]} computed with {steps.rank_samples[row]} different samples"
        words = f"{who}, and all ranks together with {got[of]} of the batch's {asked[of]}"
        found.append(Abnormal(words, step, int(steps.begin[row]), True, (step, step), ranks=()))
    return found


def parts(steps: Steps, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns for each step in `rows` its number of ranks, the row of the rank with the fewest samples, and the row of
    the rank with the most samples."""
    cell, count = cells(steps.step[rows])
    order = np.lexsort((steps.rank_samples[rows], cell))
    begin, end = (np.searchsorted(cell[order], np.arange(count), side=side) for side in ("left", "right"))
    begin, end = begin[end > begin], end[end > begin]
    return end - begin, rows[order[begin]], rows[order[end - 1]]


def _told(steps: Steps, name: str, rows: Ints) -> Bools:
    values = getattr(steps, name)[rows]
    if name in CURVES:
        return is_told(values)
    return np.asarray(values != 0 if name in ("digest", "weights") else values >= 0, np.bool_)


def _exact(steps: Steps, name: str) -> Ints:
    column = getattr(steps, name)
    return column if column.dtype == np.int64 else bits(column)


def telling(steps: Steps, name: str) -> Bools:
    """Marks the ranks that log the value `name` in more than half of their steps."""
    rows = np.flatnonzero(steps.survives & steps.complete)
    ranks = int(steps.rank.max(initial=-1)) + 1
    told = np.bincount(steps.rank[rows], weights=_told(steps, name, rows), minlength=ranks)
    return np.asarray(told > np.bincount(steps.rank[rows], minlength=ranks) / 2, np.bool_)


def is_local(steps: Steps, name: str, telling: Bools) -> bool:
    """Returns True if ranks mostly disagree on the value `name`. If no step has the value from two ranks, returns True
    if some rank logs the value in most steps, but the lowest rank with any such value does not."""
    rows = np.flatnonzero(_told(steps, name, np.arange(len(steps))))
    lowest = int(steps.rank[rows].min(initial=len(telling)))
    rows = np.intersect1d(rows, _rows_of(steps, telling), assume_unique=True)
    if not len(rows):
        return False
    cell, count = cells(steps.step[rows])
    several = np.bincount(cell, minlength=count) > 1
    different = np.bincount(cell[_differing(steps, name, rows, cell, count)], minlength=count) > 0
    if not several.any():
        return bool(telling.any() and not telling[lowest])
    return bool(different[several].mean() > LOCAL_SHARE)


def _rows_of(steps: Steps, telling: Bools) -> Ints:
    return np.flatnonzero(steps.survives & steps.complete & np.isin(steps.rank, np.flatnonzero(telling)))


def _differing(steps: Steps, name: str, rows: Ints, cell: Ints, count: int) -> Bools:
    first = np.full(count, -1)
    first[cell[::-1]] = rows[::-1]
    exact = _exact(steps, name)
    return np.asarray(exact[rows] != exact[first[cell]], np.bool_)


def split(steps: Steps, name: str, telling: Bools) -> tuple[int, str] | None:
    """Returns the first step, not rolled back, in which ranks marked in `telling` log different values `name`, and two
    of these ranks, or `None`."""
    rows = _rows_of(steps, telling)
    # Other checks find missing values of these figures.
    if name in ("first", "count", *CURVES):
        rows = rows[_told(steps, name, rows)]
    cell, count = cells(steps.step[rows])
    bad = np.flatnonzero(_differing(steps, name, rows, cell, count))
    if not len(bad):
        return None
    one = bad[np.argmin(steps.step[rows[bad]])]
    other = np.flatnonzero(cell == cell[one])[0]
    return int(steps.step[rows[one]]), " and ".join(sorted(str(steps.rank[rows[row]]) for row in (one, other)))


def holes(run: Steps, fault_free: Steps) -> Iterator[tuple[str, Ints]]:
    """Yields each name in `CURVES`, with the rows of `run` in which only the fault-free run has a value of this
    name."""
    rows, others = paired(run, fault_free)
    for name in CURVES:
        yield name, rows[_told(fault_free, name, others) & ~_told(run, name, rows)]


def off_the_fault_free_run(run: Steps, fault_free: Steps, name: str, max_ulp: float, last: int = NEVER) -> int | None:
    """Returns the first row up to step `last` whose value `name` deviates from the fault-free run's. Values of the
    lowest rank are not checked."""
    rows, others = paired(run, fault_free)
    mine, other = getattr(run, name)[rows], getattr(fault_free, name)[others]
    if name not in CURVES:
        off = mine != other
    elif max_ulp:
        off = distance(mine, other) > max_ulp * ulps(other)
    else:
        off = unlike(mine, other)
    lowest = run.rank.min() if len(run.rank) else 0
    found = np.flatnonzero(off & (run.rank[rows] > lowest) & (run.step[rows] <= last))
    return int(rows[found[0]]) if len(found) else None
