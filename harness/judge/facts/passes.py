"""Where a pass over the data ends, by the order in which its samples come."""

from __future__ import annotations

import numpy as np

from harness.judge.facts import losses
from harness.timeline.timeline import Timeline

EXPANDED_MAX = 2**27  # samples that are looked at one by one: a gigabyte of them
SEEN_AGAIN = 0.5  # of the samples of a step: then it belongs to the next pass, as padding is less


def pass_ends(run: Timeline, kind: str | None) -> list[int] | None:
    """The last step of each pass over the data but the last one, by the order of what is told (`samples.told_kind`):
    a step of which most were seen in this pass begins the next one. `None`: nothing tells it."""
    if kind is None:
        return _told_ends(run)
    steps = run.steps
    rows = losses.by_rank(steps).row
    told = steps.samples[rows] >= 0 if kind == "samples" else steps.digest[rows] != 0
    rows = rows[told]
    if kind == "samples":
        counts = run.samples.counts(steps.samples[rows])
        if int(counts.sum()) > EXPANDED_MAX:
            return None
        step, item = np.repeat(steps.step[rows], counts), run.samples.expanded(steps.samples[rows])
    else:
        step, item = steps.step[rows], steps.digest[rows]
    order = np.argsort(step, kind="stable")
    numbers, begins = np.unique(step[order], return_index=True)
    items = np.unique(item, return_inverse=True)[1][order]
    last_seen = np.full(int(items.max(initial=-1)) + 1, -1)  # in which pass
    ends: list[int] = []
    for number, part in zip(numbers.tolist(), np.split(items, begins[1:]), strict=True):
        if len(part) and (last_seen[part] == len(ends)).mean() > SEEN_AGAIN:
            ends.append(number - 1)
        last_seen[part] = len(ends)
    # Batches of a new shuffle are other ones: their digests need not come again.
    return ends if ends or kind == "samples" else _told_ends(run)


def _told_ends(run: Timeline) -> list[int] | None:
    """By the passes that the trainer counts, or by its place in the endless order of the samples."""
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
