"""Finds out how long a process did nothing that its log holds: time enough for a step whose line is missing."""

import numpy as np

from harness.timeline.lineage import NEVER
from harness.timeline.timeline import Timeline


def time_spent(run: Timeline, row: int, first: int, last: int) -> float:
    """Returns how long a process did nothing that its log holds where the log lacks the steps `first` to `last`, as a
    share of the least time that another rank then still took for one of them. A lone rank is compared with its own
    shortest step. Returns 0 if other ranks did steps then, but none of these."""
    (order, begins), (by_step, number) = run.rows_by_process, run.rows_by_step
    steps, process = run.steps, run.processes[row]
    mine = order[begins[row] : begins[row + 1]]
    begin, end, epoch = steps.begin[mine], steps.end[mine], steps.epoch[mine]
    told = bool((begin[1:] != end[:-1]).any())  # else each step begins where the last one ended
    free = [process.restored or process.rendezvous or process.started, *end.tolist()]
    before, after = np.append(-1, steps.step[mine]), np.append(steps.step[mine], NEVER)
    near = (after > last) & ((before < first) | (after <= last + run.stride))
    others = by_step[np.searchsorted(number, first) : np.searchsorted(number, last, "right")]
    shares = [0.0]
    for place in np.flatnonzero(near).tolist() if len(mine) else ():
        group = epoch[min(place, len(mine) - 1)]
        peers = others[steps.epoch[others] == group]
        if not len(peers) and any(each.epoch == group and each.process != row for each in run.stretches):
            continue
        left = steps.end[peers] - np.maximum(steps.begin[peers], free[place])
        took = max(1, int((left if len(peers) else (end - begin)[epoch == group]).min()))
        over = process.left or process.exited or NEVER
        if place < len(mine):
            over = int(begin[place]) if told else int(end[place]) - took
        shares.append((over - free[place]) / took)
    return max(shares)
