"""Alarms that a trainer raises while no fault is at work: was there something to see?

A rank that is slow because its host is busy with other work is slow indeed. A trainer that says so is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.emitter import abnormal
from harness.judge.facts import spikes
from harness.timeline.timeline import Ints, Timeline

STEPS_BEFORE = 20  # an alarm about a slow rank is held against so many of its steps
SHARE_BORNE_OUT = 0.5  # of the excess that it told (a time, or else a share of the usual) must be in the log
EXCESS_MIN = 0.1  # over its peers; a rank that is less slow is not slow, whatever was told


def false_alarms(run: Timeline, at_work: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Anomalies outside of the windows `at_work` (ns) that the steps in the log do not bear out."""
    outside = [a for a in run.anomalies if not any(begin <= a["at"] <= end for begin, end in at_work)]
    return [alarm for alarm in outside if not (_slow_indeed(run, alarm) or _by_the_rules(run, alarm))]


def _by_the_rules(run: Timeline, alarm: Mapping[str, Any]) -> bool:
    """Whether the steps of the process that raised it are abnormal by the very rule that it names."""
    if alarm.get("kind") == abnormal.DIVERGENCE:
        return any(spike.seen == alarm.get("at_step") and spike.end <= alarm["at"] for spike in spikes.spikes(run))
    if alarm.get("kind") not in abnormal.OF_STEPS:
        return False
    steps = run.steps
    rows = np.flatnonzero((steps.process == alarm["process"]) & (steps.end <= alarm["at"]))
    rows = rows[abnormal.replay_from(len(rows)) :]
    watch, found = abnormal.Watch(), list[str]()
    columns = (steps.loss[rows], steps.grad_norm[rows], steps.end[rows] - steps.begin[rows], steps.data_ns[rows])
    for loss, norm, took, waited in zip(*(column.tolist() for column in columns), strict=True):
        found = watch.step_done(loss, norm, took, waited)
    return alarm["kind"] in found


def _slow_indeed(run: Timeline, alarm: Mapping[str, Any]) -> bool:
    """Whether the rank's own time a step, without its waits, was above that of its peers, about as told."""
    told = alarm.get("slowdown")
    if alarm.get("kind") != "straggler" or not isinstance(told, int | float) or not told > 1:
        return False
    steps = run.steps
    before = (steps.process == alarm["process"]) & (steps.end <= alarm["at"])
    numbers = steps.step[before][-STEPS_BEFORE:]
    if not len(numbers) or (steps.sync_ns[before] < 0).any():
        return False
    rows = np.flatnonzero(np.isin(steps.step, numbers) & steps.survives & (steps.end <= alarm["at"]))
    medians = {
        int(rank): float(np.median(_own_ns(run, rows[steps.rank[rows] == rank])))
        for rank in np.unique(steps.rank[rows])
    }
    # The lower median: with two ranks, the faster one is the yardstick.
    usual = sorted(medians.values())[(len(medians) - 1) // 2]
    mine = medians.get(int(alarm["rank"]))
    if mine is None or usual <= 0:
        return False
    # Its own time in the log has more in it than what a trainer compares, and is the same for all: a share says less.
    excess = float(alarm.get("excess_ns", (told - 1) * usual))
    return mine - usual >= max(EXCESS_MIN * usual, SHARE_BORNE_OUT * excess)


def _own_ns(run: Timeline, rows: Ints) -> Ints:
    steps = run.steps
    waits = (
        np.maximum(steps.sync_ns[rows], 0)
        + np.maximum(steps.data_ns[rows], 0)
        + np.maximum(steps.checkpoint_ns[rows], 0)
    )
    own: Ints = steps.end[rows] - steps.begin[rows] - waits
    return own
