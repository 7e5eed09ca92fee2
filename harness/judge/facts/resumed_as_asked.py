"""Fault-free runs that change the size of their world did so where the run did.

`harness.campaign.resumed` makes them: one stops at a save, and others go on from it. A band that is drawn from runs
which went on from another save is a band for another moment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from harness.judge.facts.made_as_asked import Asked, committed
from harness.timeline.timeline import Timeline

RESUMED = "resumed-"  # their folders in that of the run
BEFORE, SAME = RESUMED + "before", RESUMED + "same"
AT = re.compile(rf"{RESUMED}at-(\d{{1,18}})\Z")  # one that goes on from another save


class Resize(NamedTuple):
    """The world goes on from the save of `step` with `nodes` nodes."""

    step: int
    nodes: int


def resize(run: Timeline, fault_free: Timeline | None) -> Resize | None:
    """Where the run first went on with another number of nodes: from the newest save that a fault-free run has, too."""
    size = run.planned_size
    for epoch in run.epochs[1:]:
        nodes, rest = divmod(epoch.size, size.ranks_per_node)
        if epoch.kept >= epoch.first > 1 and epoch.size != size.world_size and not rest:
            step = epoch.first - 1
            saves = [save for save in committed(fault_free) if 0 < save <= step] if fault_free else []
            return Resize(max(saves, default=step - step % (run.saves_every or 1) or step), nodes)
    return None


def asked_of(name: str, run: Timeline, at: Resize) -> Asked:
    """What the run in the folder of this name was to do."""
    if name == BEFORE:
        return Asked.by(run, resumes_at=0, stops_at=at.step)
    if name == SAME:
        return Asked.by(run, resumes_at=at.step)
    other = AT.match(name)
    return Asked.by(run, nodes=at.nodes, resumes_at=int(other[1]) if other else at.step)


def broken_by(run: Timeline, fault_free: Timeline | None, made: Mapping[str, Timeline]) -> str:
    """Which of them did something else, and what; an empty text: none."""
    at = resize(run, fault_free) if made else None
    if at is None:
        return f"{next(iter(made))} changed its size, and the run did not" if made else ""
    broken = ((name, asked_of(name, run, at).broken_by(other)) for name, other in made.items())
    return next((f"{name}: {why}" for name, why in broken if why), "")
