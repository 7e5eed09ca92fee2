"""Updates that a loss scale left out: how many of them it accounts for.

`torch.amp.GradScaler` starts at a scale of 2^16, halves it with each update that it skips, and doubles it after 2000
updates in a row (its documented defaults). It is never 0: gradients that are no number at a scale of 1 are none without
any scale either, and its documentation asks to look at the model then. So the number of skipped updates is bounded.
"""

from __future__ import annotations

import numpy as np

from harness.timeline.timeline import Bools

HALVINGS = 16  # from the scale at which it starts down to 1
HALVINGS_MAX = 40  # above 2^40 even the smallest number of fp16, 2^-24, is infinite
GROWTH_INTERVAL = 2000  # updates


def by_scale(skipped: Bools) -> Bools:
    """Which of these skipped updates a loss scale accounts for; one row for each update, in order."""
    excused = np.zeros(len(skipped), np.bool_)
    left, before = HALVINGS, 0
    for row in np.flatnonzero(skipped).tolist():
        left = min(HALVINGS_MAX, left + (row - before) // GROWTH_INTERVAL)
        excused[row] = left > 0
        left = max(0, left - 1)
        before = row + 1
    return excused
