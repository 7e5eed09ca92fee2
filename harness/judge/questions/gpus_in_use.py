"""GPUs in use: at its end the job uses all GPUs that it has, replacements included.

The job *uses* as many GPUs as its world has ranks, times the GPUs that a rank of the fault-free run has. It *has* those
that were allocated to it until its end; a new one counts from when it can be expected to step: three times as long
after its allocation as the fault-free run took from its first allocation to its first step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harness.emitter import EXIT_LEFT
from harness.judge.score import Bounds, Evidence, Expectation, Score, ScoreResult, Verdict
from harness.timeline.timeline import Ints, Slot, Timeline

ITEM = "GPUs in use"
PATIENCE = 3
NAME = "gpus_in_use.max_idle_steps"


class UseBounds(Bounds):
    """`max_idle_steps`: fewer than so many steps at the end may be done with a GPU left idle."""

    max_idle_steps: int = Field(10, ge=1)


class GpusInUse(Score):
    name = "gpus_in_use"
    order = 43
    Bounds = UseBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: UseBounds | None) -> ScoreResult:
        run = evidence.run
        slots = _kept(run)
        per_rank = _gpus_per_rank(evidence.fault_free_runs)
        patience = PATIENCE * max((_first_step_ns(other) for other in evidence.fault_free_runs), default=0)
        idle, at_all = (_idle_steps(run, slots, per_rank, wait) for wait in (patience, 0))
        values = {"gpus_at_the_end": len(slots), "idle_steps": idle}
        if bounds is None:
            return ScoreResult(values)
        why = _not_judged(run, evidence.fault_free_runs, slots)
        if not why and idle < bounds.max_idle_steps <= at_all:
            why = "a GPU may have come too late for the job to use it"
        if why:
            return ScoreResult(values, not_judged=[(ITEM, why)])
        good = idle < bounds.max_idle_steps
        names = ", ".join(_unused(run, slots)) or "some of them"
        reason = "" if good else f"the job left GPUs idle in its last {idle} steps: {names}"
        verdict = Verdict.PASS if good else Verdict.FAIL
        return ScoreResult(values, [Expectation(NAME, f"< {bounds.max_idle_steps}", str(idle), verdict, reason)])


def _not_judged(run: Timeline, fault_free_runs: Sequence[Timeline], slots: Sequence[Slot]) -> str:
    if not len(run.progress) or not slots:
        return "the log holds no step or no GPU"
    if not fault_free_runs:
        return "no fault-free run shows how many GPUs the job uses"
    for fault in run.faults:
        if fault.injected is not None and fault.replaced is False:
            return f"{fault.id} brings no replacement, so the job may have to leave GPUs idle"
    return ""


def _kept(run: Timeline) -> list[Slot]:
    """Allocated to the end, and not on a node that said it leaves the job for good."""
    told = {(notice["node"], notice["incarnation"]) for notice in run.notices if notice.get("source") != "peer"}
    left = {
        (exit_["node"], exit_["incarnation"])
        for exit_ in run.exits
        if exit_["rank"] is None and exit_["code"] == EXIT_LEFT
    }
    excluded = {(n["node"], n["incarnation"]) for n in run.notices if n.get("source") == "straggler"} | (told & left)
    return [slot for slot in run.slots if slot.kept and (slot.node, slot.incarnation) not in excluded]


def _gpus_per_rank(fault_free_runs: Sequence[Timeline]) -> float:
    """The most of any fault-free run; 1 without one."""
    found = [
        len(other.slots) / other.epochs[-1].size for other in fault_free_runs if other.epochs and other.epochs[-1].size
    ]
    return max(found, default=1.0)


def _first_step_ns(run: Timeline) -> int:
    allocated = min((slot.allocated for slot in run.slots), default=run.begin)
    return int(run.progress.end[0]) - allocated if len(run.progress) else 0


def _idle_steps(run: Timeline, slots: Sequence[Slot], per_rank: float, patience: int) -> int:
    """How many steps in a row, up to the last one, were done without a GPU that could have had a part in them."""
    ready: Ints = np.sort(np.array([slot.allocated + patience for slot in slots], np.int64))
    has = np.searchsorted(ready, run.progress.begin, side="right")
    busy = np.flatnonzero(has <= run.progress.world_size * per_rank)
    return len(run.progress) - 1 - (int(busy[-1]) if len(busy) else -1)


def _unused(run: Timeline, slots: Sequence[Slot]) -> list[str]:
    """The nodes without a worker in the last world."""
    last = run.epochs[-1].processes if run.epochs else ()
    working = {(run.processes[row].node, run.processes[row].incarnation) for row in last}
    return sorted({slot.node for slot in slots if (slot.node, slot.incarnation) not in working})


SCORES = (GpusInUse(),)
