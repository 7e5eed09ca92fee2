"""What closed forms predict from a run's own rates, beside what was measured. Pure.

A run with its faults is a sample of one or two failures at moments that somebody chose; the closed forms speak of many
at random moments. So the two need not agree, and how far they are apart is worth a look before either is used to plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.judge.facts.ledger import Ledger
from harness.theory import closed_forms
from harness.timeline.timeline import Episode, Timeline

S = 1e9
_NAMES = ("failures", "mean_time_to_failure_s", "restart_s", "lost_s", "interval_s", "checkpoint_s", "ettr")
_FORMS = ("lost_s_expected", "ettr_expected", "interval_s_young", "interval_s_daly")
_LOST = ("interrupted_step", "recompute")


def forecast(run: Timeline, booked: Ledger) -> dict[str, Any]:
    """Measured: `failures` (episodes that regained progress), `mean_time_to_failure_s`, `restart_s` and `lost_s` for
    each of them, `interval_s` of work between two checkpoints, `checkpoint_s` that each stops training for, and `ettr`
    from the first step to the last. By closed form from these: `ettr_expected`, `lost_s_expected`, and the best
    interval by Young and by Daly. `None` where there is nothing to go by."""
    values: dict[str, Any] = dict.fromkeys((*_NAMES, *_FORMS))
    over = [episode for episode in run.episodes if episode.t_regained is not None and episode.furthest_step > 0]
    values["failures"] = len(over)
    span = float(run.progress.end[-1] - run.progress.begin.min()) / S if len(run.progress) else 0.0
    interval, checkpoint = _interval_s(run), _checkpoint_s(run)
    planned = run.planned_size.world_size
    if not over or not span or not planned or not interval:
        return values
    lost = sum(_length_s(episode, lost=True) for episode in over) / len(over)
    restart = sum(_length_s(episode, lost=False) for episode in over) / len(over)
    mean = span / len(over)
    return values | {
        "mean_time_to_failure_s": mean,
        "restart_s": restart,
        "lost_s": lost,
        "interval_s": interval,
        "checkpoint_s": checkpoint,
        "ettr": booked.accounts["productive"] / S / (planned * span),
        "lost_s_expected": interval / 2,
        "ettr_expected": closed_forms.expected_ettr(1 / mean, restart, interval, checkpoint),
        "interval_s_young": closed_forms.young_interval_s(checkpoint, mean),
        "interval_s_daly": closed_forms.daly_interval_s(checkpoint, mean),
    }


def _length_s(episode: Episode, lost: bool) -> float:
    return sum(s.end - s.begin for s in episode.segments if (s.phase in _LOST) == lost) / S


def _interval_s(run: Timeline) -> float | None:
    """As planned; steps between two checkpoints count the median step each."""
    if run.saves_every_s is not None:
        return run.saves_every_s
    every = ((run.plan.get("workload") or {}).get("checkpoint") or {}).get("every_steps")
    rows = np.flatnonzero(np.diff(run.progress.epoch) == 0) + 1
    if not isinstance(every, int) or not len(rows):
        return None
    return every * float(np.median(run.progress.end[rows] - run.progress.end[rows - 1])) / S


def _checkpoint_s(run: Timeline) -> float:
    """What a rank waited for each checkpoint, on average; 0 without one."""
    saved = {event.get("step") for event in run.checkpoints if event["event"] == "checkpoint.committed"}
    stalls = float(run.steps.checkpoint_ns[run.steps.survives].sum()) / max(1, run.largest_world) / S
    return stalls / len(saved) if saved else 0.0
