"""Replicas: every rank holds the same weights, or the trainer says that one does not and goes back.

Loss and gradient norm are sums over all ranks, alike on all of them, and prove nothing about one rank. A digest of each
rank's own weights does (`weights` of a step). The newest alarm is no excuse: weights that differ must not survive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.judge.codes import Code
from harness.judge.facts import tells
from harness.judge.score import Bounds, Evidence, Finding, Score, ScoreResult, Verdict
from harness.timeline.lineage import cells
from harness.timeline.timeline import FaultRecord, Ints, Steps, Timeline

ITEM = tells.ITEMS["weights"]


class ReplicasBounds(Bounds):
    """Nothing to set; `replicas: off` where ranks are meant to hold different weights."""


class Replicas(Score):
    name = "replicas"
    section = "metrics"
    order = 28  # before the losses: weights that differ are the cause of other losses
    Bounds = ReplicasBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: ReplicasBounds | None) -> ScoreResult:
        run, fault_free = evidence.run, evidence.fault_free
        told, apart = _checks(run.steps)
        values = {"replica_checks": told, "replicas_apart": len(apart)}
        if bounds is None:
            return ScoreResult(values)
        if fault_free is not None and _checks(fault_free.steps)[1]:
            return ScoreResult(values, not_judged=[(ITEM, "the ranks of the fault-free run differ, too")])
        struck = [fault for fault in run.faults if fault.drifts and fault.injected is not None]
        if struck and not told:
            return ScoreResult(values, not_judged=[(ITEM, "the log holds no digest of the weights")])
        return ScoreResult(values, reasons=[*_apart(run, apart), *_unnoticed(run, struck)][:1])


@dataclass(frozen=True)
class Apart:
    """A step at which ranks of one world computed with different weights."""

    step: int
    ranks: tuple[int, ...]  # those outvoted; where there is no majority, all
    outvoted: bool
    begin: int  # ns
    survives: bool

    def __str__(self) -> str:
        who = f"{'rank' if len(self.ranks) == 1 else 'ranks'} {', '.join(map(str, self.ranks))}"
        verb = "computed" if self.outvoted else "each computed"
        return f"at step {self.step} {who} {verb} with other weights{' than the majority' if self.outvoted else ''}"


def _checks(steps: Steps) -> tuple[int, list[Apart]]:
    """How many steps tell a digest of the weights of several ranks, and those where they differ, in order of time."""
    rows = np.flatnonzero(steps.weights != 0)
    if not len(rows):
        return 0, []
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    first = np.full(count, -1)
    first[cell[::-1]] = rows[::-1]
    several = int((np.bincount(cell, minlength=count) > 1).sum())
    differ = np.unique(cell[steps.weights[rows] != steps.weights[first[cell]]])
    found = [_apart_at(steps, rows[cell == each]) for each in differ]
    return several, sorted(found, key=lambda each: each.begin)


def _apart_at(steps: Steps, rows: Ints) -> Apart:
    digests = dict(zip(steps.rank[rows].tolist(), steps.weights[rows].tolist(), strict=True))
    usual, votes = Counter(digests.values()).most_common(1)[0]
    outvoted = votes > len(digests) / 2
    ranks = sorted(rank for rank, each in digests.items() if not outvoted or each != usual)
    begin, survives = int(steps.begin[rows].min()), bool(steps.survives[rows].any())
    return Apart(int(steps.step[rows[0]]), tuple(ranks), outvoted, begin, survives)


def _alarms(run: Timeline, since: int) -> Sequence[Mapping[str, Any]]:
    """What the trainer said of its replicas from then on."""
    since -= run.uncertainty_ns
    return [alarm for alarm in run.anomalies if alarm.get("kind") == "replica" and alarm["at"] >= since]


def _apart(run: Timeline, apart: Sequence[Apart]) -> Iterator[Finding]:
    """Weights that differ, by the digests in the log."""
    for each in apart:
        if not _alarms(run, each.begin):
            yield Finding(Verdict.FAIL, f"replicas: {each}, and the trainer did not say so", Code.REPLICAS_UNTOLD)
        elif each.survives:
            yield Finding(
                Verdict.FAIL, f"replicas: {each}; the trainer said so, and went on with them", Code.REPLICAS_WENT_ON
            )


def _unnoticed(run: Timeline, struck: Sequence[FaultRecord]) -> Iterator[Finding]:
    """Weights that a fault changed, as it measured, of which the trainer said nothing or named another rank."""
    for fault in struck:
        acted = [int(effect["at"]) for effect in fault.effects if effect.get("ok") is True]
        victims = {target["rank"] for target in fault.targets if isinstance(target.get("rank"), int)}
        alarms = _alarms(run, fault.injected or 0)
        named = {alarm["suspect"] for alarm in alarms if alarm.get("suspect") is not None}
        shown = ", ".join(map(str, sorted(victims)))
        if alarms and victims and not named <= victims:
            wrong = ", ".join(map(str, sorted(named - victims)))
            yield Finding(
                Verdict.FAIL,
                f"replicas: the trainer named rank {wrong}, but fault {fault.id} changed rank {shown}",
                Code.REPLICAS_WRONG_RANK,
            )
        checked = [
            step for rank in victims if acted and (step := _checked_after(run.steps, rank, acted[0])) is not None
        ]
        if not alarms and checked:
            text = f"fault {fault.id} changed the weights of rank {shown}, and the trainer did not say so"
            yield Finding(
                Verdict.FAIL,
                f"replicas: {text}, though it took digests at step {min(checked)}",
                Code.REPLICAS_UNNOTICED,
            )


def _checked_after(steps: Steps, rank: int, at: int) -> int | None:
    """The first step, begun after this moment and before the rank restored anything, that tells its weights' digest."""
    mine = np.flatnonzero((steps.rank == rank) & (steps.begin > at))
    if not len(mine):
        return None
    told = mine[(steps.epoch[mine] == steps.epoch[mine[0]]) & (steps.weights[mine] != 0)]
    return int(steps.step[told[0]]) if len(told) else None


SCORES = (Replicas(),)
