"""Memory growth: a rank whose memory leaks is found before the kernel kills it.

Judged only where a scenario expects it: a trainer that is killed and comes back has survived, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.emitter import abnormal
from harness.judge.codes import Doubt
from harness.judge.score import Bounds, Evidence, Expectation, S, Score, ScoreResult, Verdict
from harness.timeline.timeline import FaultRecord, Timeline

NAME = "memory_growth.foreseen"


class MemoryBounds(Bounds):
    """`foreseen`: the trainer says that a rank's memory runs out before that rank ends."""

    foreseen: bool | None = None


class MemoryGrowth(Score):
    name = "memory_growth"
    order = 26  # before what a killed rank costs: the leak is the cause
    Bounds = MemoryBounds

    def score(self, evidence: Evidence, bounds: MemoryBounds | None) -> ScoreResult:
        run = evidence.run
        leaks = [(fault, rank) for fault in run.faults if _leaked(fault) for rank in _ranks(fault)]
        if not leaks and bounds is None:
            return ScoreResult({})
        seen = {rank: _foreseen(run, fault, rank) for fault, rank in leaks}
        values: dict[str, Any] = {"seconds_until_told": {f"rank {rank}": seen[rank] for rank in sorted(seen)}}
        if bounds is None or not bounds.foreseen:
            return ScoreResult(values)
        if not leaks:
            reason = "no rank's memory leaked"
            return ScoreResult(
                values, [Expectation(NAME, "each leak", "—", Verdict.INCONCLUSIVE, reason, doubt=Doubt.UNMEASURED)]
            )
        unseen = [rank for rank in sorted(seen) if seen[rank] is None]
        told = f"{len(seen) - len(unseen)} of {len(seen)} ranks"
        if unseen:
            reason = f"the memory of rank {unseen[0]} leaked until it ended, and the trainer did not say so"
            return ScoreResult(values, [Expectation(NAME, "each leak", told, Verdict.FAIL, reason)])
        latest = max(after for after in seen.values() if after is not None)
        summary = f"the leak was found {latest:.1f} s after it began"
        return ScoreResult(values, [Expectation(NAME, "each leak", told, Verdict.PASS)], summary=summary)


def _leaked(fault: FaultRecord) -> bool:
    return fault.leaks and fault.injected is not None and all(effect.get("ok") for effect in fault.effects)


def _ranks(fault: FaultRecord) -> Iterator[int]:
    for target in fault.targets:
        if isinstance(target.get("rank"), int):
            yield target["rank"]


def _foreseen(run: Timeline, fault: FaultRecord, rank: int) -> float | None:
    """Seconds from the leak's begin until the trainer told of it, if it did so before the leaking process ended."""
    begin = fault.injected or 0
    ended = min((e["at"] for e in run.exits if e["rank"] == rank and e["at"] >= begin), default=run.end)
    told = [
        alarm["at"]
        for alarm in run.anomalies
        if alarm.get("kind") == abnormal.MEMORY
        and alarm.get("suspect", alarm["rank"]) == rank
        and begin - run.uncertainty_ns <= alarm["at"] <= ended + run.uncertainty_ns
    ]
    return (min(told) - begin) / S if told else None


SCORES = (MemoryGrowth(),)
