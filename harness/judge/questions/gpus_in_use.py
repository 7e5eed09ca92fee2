"""Are all GPUs in use again at the end?

The job *uses* as many GPUs as its world has ranks, times the GPUs that a rank of the fault-free run has. It *has* those
that were allocated to it until its end; a new one counts from when it can be expected to step: three times as long
after its allocation as the fault-free run took from its first allocation to its first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bounds, Expectation, Measured, line
from harness.node.emitter import EXIT_LEFT
from harness.timeline.timeline import Ints, Slot, Timeline

PATIENCE = 3  # times the usual time until a new GPU steps


class UseBounds(Bounds):
    """All GPUs must be in use again at the end."""

    max_idle_steps: int = Field(10, ge=1, description="With a GPU left idle, fewer steps than this at the end.")


class GpusInUse(Measured):
    name = "gpus_in_use"
    order = 43
    Bounds = UseBounds
    by_default = "GPUs in use"

    def values(self, evidence: Analysis) -> dict[str, Any]:
        slots, patience = _kept(evidence.run), PATIENCE * (evidence.usual.longest(_first_step_ns) or 0)
        return {"gpus_at_the_end": len(slots), "idle_steps": _idle_steps(evidence, slots, patience)}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: UseBounds) -> Sequence[Expectation] | str:
        run, slots, idle = evidence.run, _kept(evidence.run), values["idle_steps"]
        if not len(run.progress) or not slots:
            return "the log holds no step or no GPU"
        if not evidence.fault_free_runs:
            return "no fault-free run shows how many GPUs the job uses"
        for fault in run.faults:
            if fault.injected is not None and fault.replaced is False:
                return f"{fault.id} brings no replacement, so the job may have to leave GPUs idle"
        if idle < bounds.max_idle_steps <= _idle_steps(evidence, slots, 0):
            return "a GPU may have come too late for the job to use it"
        last = run.epochs[-1].processes if run.epochs else ()
        working = {(run.processes[row].node, run.processes[row].incarnation) for row in last}
        unused = {slot.node for slot in slots if (slot.node, slot.incarnation) not in working}
        text = f"the job left GPUs idle in its last {idle} steps: {', '.join(sorted(unused)) or 'some of them'}"
        reason = "" if idle < bounds.max_idle_steps else text
        return [line("gpus_in_use.max_idle_steps", f"< {bounds.max_idle_steps}", str(idle), reason)]


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


def _first_step_ns(run: Timeline) -> int:
    allocated = min((slot.allocated for slot in run.slots), default=run.begin)
    return int(run.progress.end[0]) - allocated if len(run.progress) else 0


def _idle_steps(evidence: Analysis, slots: Sequence[Slot], patience: int) -> int:
    """How many steps in a row, up to the last one, were done without a GPU that could have had a part in them."""
    progress = evidence.run.progress
    worlds = [(len(other.slots), other.epochs[-1].size) for other in evidence.fault_free_runs if other.epochs]
    per_rank = max((gpus / size for gpus, size in worlds if size), default=1.0)
    ready: Ints = np.sort(np.array([slot.allocated + patience for slot in slots], np.int64))
    has = np.searchsorted(ready, progress.begin, side="right")
    busy = np.flatnonzero(has <= progress.world_size * per_rank)
    return len(progress) - 1 - (int(busy[-1]) if len(busy) else -1)


SCORES = (GpusInUse(),)
