"""Do the ranks of a step agree? Replicas that drift apart are broken, whatever rank 0 says.

Ranks that agree on a value at hardly any step of the fault-free run tell values of their own: then each rank is
compared with the same rank there. A value that a rank leaves out now and then switches no check off.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.judge.codes import Code
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.curves import CURVES, HOLES_MAX, WORDS, bits, by_rank, distance, ulps
from harness.judge.score import Finding, Verdict
from harness.timeline.lineage import cells
from harness.timeline.timeline import Bools, Ints, Steps

LOCAL_SHARE = 0.5  # of the steps: who disagrees at more of them tells values of its own


def findings(evidence: Analysis, mode: str, max_ulp: float, moved: bool, followed: bool = False) -> Iterator[Finding]:
    """`mode` and `max_ulp` as in the bounds of loss continuity; `moved`: samples may be others than in the fault-free
    run; `followed`: what each rank consumed is judged elsewhere."""
    run, fault_free = evidence.run, evidence.fault_free
    for name, words in (*WORDS.items(), *({} if followed else _SAMPLES).items()):
        telling = _telling(fault_free.steps if fault_free else run.steps, name)
        if fault_free is not None and _is_local(fault_free.steps, name, telling):
            allowed = {"exact": 0.0, "ulp": max_ulp}.get(mode) if name in CURVES else None if moved else 0.0
            row = None if allowed is None else _off_the_fault_free_run(run.steps, fault_free.steps, name, allowed)
            if row is not None:
                whose = f"the {words} of rank {run.steps.rank[row]}"
                text = f"at step {run.steps.step[row]} {whose} differs from the same rank of the fault-free run"
                yield Finding(Verdict.FAIL, f"loss_continuity: {text}", Code.LOSS_RANK_DIFFERS)
        elif bad := _split(run.steps, name, telling):
            yield Finding(
                Verdict.FAIL,
                f"loss_continuity: at step {bad[0]} ranks {bad[1]} disagree on the {words}",
                Code.RANKS_DISAGREE,
            )


def own_losses(evidence: Analysis) -> bool:
    """Whether each rank tells a loss of its own, as far as the fault-free run shows."""
    fault_free = evidence.fault_free
    return fault_free is not None and _is_local(fault_free.steps, "loss", _telling(fault_free.steps, "loss"))


_SAMPLES = {"digest": "samples", "first": "sample position", "count": "batch size"}


def _told(steps: Steps, name: str, rows: Ints) -> Bools:
    values = getattr(steps, name)[rows]
    if name in CURVES:
        return np.asarray(~np.isnan(values), np.bool_)
    return np.asarray(values != 0 if name == "digest" else values >= 0, np.bool_)


def _telling(steps: Steps, name: str) -> Bools:
    """Per rank: whether it tells this at most of its steps."""
    rows = np.flatnonzero(steps.survives & steps.complete)
    ranks = int(steps.rank.max(initial=-1)) + 1
    told = np.bincount(steps.rank[rows], weights=_told(steps, name, rows), minlength=ranks)
    return np.asarray(told > np.bincount(steps.rank[rows], minlength=ranks) / 2, np.bool_)


def _is_local(steps: Steps, name: str, telling: Bools) -> bool:
    """Whether the ranks tell values of their own: they disagree at most of the steps that several tell."""
    rows = _rows_of(steps, telling)
    rows = rows[_told(steps, name, rows)]
    cell, count = cells(steps.step[rows])
    several = np.bincount(cell, minlength=count) > 1
    different = np.zeros(count, np.bool_)
    different[cell[_differing(steps, name, rows, cell, count)]] = True
    return bool(several.any() and different[several].mean() > LOCAL_SHARE)


def _rows_of(steps: Steps, telling: Bools) -> Ints:
    """Rows that count, of the ranks that tell something."""
    counts = np.zeros(max(len(telling), int(steps.rank.max(initial=-1)) + 1), np.bool_)
    counts[: len(telling)] = telling
    return np.flatnonzero(steps.survives & steps.complete & counts[steps.rank])


def _differing(steps: Steps, name: str, rows: Ints, cell: Ints, count: int) -> Bools:
    """Which of the rows differ from the first one of their step."""
    first = np.full(count, -1)
    first[cell[::-1]] = rows[::-1]
    column = getattr(steps, name)
    exact = column if column.dtype == np.int64 else bits(column)
    return np.asarray(exact[rows] != exact[first[cell]], np.bool_)


def _split(steps: Steps, name: str, telling: Bools) -> tuple[int, str] | None:
    """The first surviving step on which ranks that tell this disagree, and two of them."""
    rows = _rows_of(steps, telling)
    if name in ("first", "count"):  # a hole there is found where the samples are followed
        rows = rows[_told(steps, name, rows)]
    elif name in CURVES:
        rows = rows[~_by_chance(steps, name, rows)]
    cell, count = cells(steps.step[rows])
    bad = np.flatnonzero(_differing(steps, name, rows, cell, count))
    if not len(bad):
        return None
    one = bad[np.argmin(steps.step[rows[bad]])]
    other = np.flatnonzero(cell == cell[one])[0]
    return int(steps.step[rows[one]]), " and ".join(sorted(str(steps.rank[rows[row]]) for row in (one, other)))


def _by_chance(steps: Steps, name: str, rows: Ints) -> Bools:
    """Which rows lack the value, of ranks that leave it out hardly ever: a field was lost, no number became none."""
    silent = ~_told(steps, name, rows)
    holes = np.bincount(steps.rank[rows], weights=silent)
    return np.asarray(silent & (holes[steps.rank[rows]] <= HOLES_MAX), np.bool_)


def _off_the_fault_free_run(run: Steps, fault_free: Steps, name: str, max_ulp: float) -> int | None:
    """The first row whose value is not the same rank's in the fault-free run. The lowest rank is compared anyway."""
    ours, theirs = by_rank(run), by_rank(fault_free)
    _, left, right = np.intersect1d(ours.key, theirs.key, assume_unique=True, return_indices=True)
    rows = ours.row[left]
    mine, other = getattr(run, name)[rows], getattr(fault_free, name)[theirs.row[right]]
    if name not in CURVES:
        off = mine != other
    elif max_ulp:
        off = distance(mine, other) > max_ulp * ulps(other)
    else:
        off = bits(mine) != bits(other)
    lowest = run.rank.min() if len(run.rank) else 0
    found = np.flatnonzero(off & (run.rank[rows] > lowest))
    return int(rows[found[0]]) if len(found) else None
