"""Finds out how long a process did nothing that its log holds: time enough for a step whose line is missing."""

from collections.abc import Iterator

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.timeline.lineage import NEVER, step_of
from harness.timeline.timeline import Process, Stretch

Place = tuple[int, int | None, int]  # the steps told before and after a hole (`None`: the end), and ns of the restore


def time_spent(evidence: Analysis, row: int, first: int, last: int) -> float:
    """Returns how long a process did nothing that its log holds where the log lacks the steps `first` to `last`, as a
    share of the least time that another rank then still took for one of them. A lone rank is compared with its own
    shortest step. Returns 0 if other ranks did steps then, but none of these."""
    run, (order, begins), (by_step, number) = evidence.run, evidence.run.rows_by_process, evidence.rows_by_step
    steps, mine, process = run.steps, order[begins[row] : begins[row + 1]], run.processes[row]
    begin, end, step, epoch = (each[mine] for each in (steps.begin, steps.end, steps.step, steps.epoch))
    told = bool((begin[1:] != end[:-1]).any())  # else each step begins where the last one ended
    others = by_step[np.searchsorted(number, first) : np.searchsorted(number, last, "right")]
    shares = [0.0]
    for each in evidence.stretches_of[row]:
        peers, here = others[steps.epoch[others] == each.epoch], epoch == each.epoch
        if not len(peers) and any(other.epoch == each.epoch and other.process != row for other in run.stretches):
            continue
        for before, after, since in _places(each, process):
            if not before < first or not (after is None or after > last):
                continue
            place = int(np.flatnonzero(here & (step == (each.last if after is None else after)))[-1])
            free = int(end[place]) if after is None else max([since, *end[place - 1 : place].tolist()])
            left = steps.end[peers] - np.maximum(steps.begin[peers], free) if len(peers) else (end - begin)[here]
            took = max(1, int(left.min()))
            over = process.left or process.exited or NEVER
            if after is not None:
                over = int(begin[place]) if told else int(end[place]) - took
            shares.append((over - free) / took)
    return max(shares)


def _places(each: Stretch, process: Process) -> Iterator[Place]:
    """Yields each place in a stretch where steps may be missing: its begin, its holes, its restores, its end."""
    first = each.restored or {}
    known = step_of(first) if first else each.before
    started = process.restored or process.rendezvous or process.started
    yield known if known is not None else -1, each.first, first.get("at", started if each.before is None else 0)
    yield from ((before, after, 0) for before, after in each.jumps or [(each.first, each.last)] * (each.rows == 2))
    yield from ((step, after, event["at"]) for event, after in each.later if (step := step_of(event)) is not None)
    yield each.last, None, 0
