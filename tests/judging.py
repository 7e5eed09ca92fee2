"""Judging simulated histories: write the log (perhaps bent), read it back, judge it against a fault-free run."""

from __future__ import annotations

import copy
import functools
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulator import History, Job, simulate

from harness.judge.score import Evidence, Scorecard, judge
from harness.timeline import timeline
from harness.timeline.timeline import Timeline

Logs = dict[str, list[dict[str, Any]]]
EXPECT = {
    "recovery_time": {"max": "60s"},
    "wasted_gpu_hours": {"max_percent_by_faults": 100},
    "loss_continuity": {"mode": "exact"},
}


def load(history: History, logs: Logs | None = None, rename: Callable[[str], str] = str) -> Timeline:
    with tempfile.TemporaryDirectory() as folder:
        return timeline.load(history.write(pathlib.Path(folder), logs, rename))


def fault_free_of(job: Job, seed: int = 99) -> Timeline:
    """A copy of its own for each caller, who may bend it."""
    return copy.deepcopy(_fault_free_of(job, seed))


@functools.lru_cache(maxsize=256)
def _fault_free_of(job: Job, seed: int) -> Timeline:
    return load(simulate(job, (), seed))


def expecting(logs: Logs, expect: dict[str, Any]) -> Logs:
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")
    plan["plan"] = plan["plan"] | {"expect": expect}
    return logs


def by_a_command(logs: Logs) -> None:
    """The plan names a command that promises nothing, instead of the reference trainer."""
    plan = next(line["plan"] for line in logs["harness"] if line.get("event") == "plan")
    plan["workload"] = plan["workload"] | {"trainer": {"command": ["train"]}}


def verdict(
    history: History,
    bend: Callable[[Logs], object] = lambda logs: None,
    expect: dict[str, Any] | None = None,
    fault_free: Timeline | None = None,
    calibration: Sequence[Timeline] = (),
) -> Scorecard:
    logs = expecting(history.logs(), EXPECT if expect is None else expect)
    bend(logs)
    fault_free = fault_free or fault_free_of(replace(history.job, foreign_clocks=False))
    return judge(Evidence(load(history, logs), fault_free, calibration), "simulated")


def trainers(logs: Logs, *, rank: int | None = None, life: int | None = None) -> list[list[dict[str, Any]]]:
    """The logs of workers: of one rank, of its n-th life (negative from the end), or all."""
    found = [
        lines for name, lines in sorted(logs.items(), key=lambda i: i[1][0]["mono_ns"]) if name.startswith("trainer")
    ]
    found = [lines for lines in found if rank is None or lines[0]["rank"] == rank]
    return found if life is None else [found[life]]


def steps(lines: list[dict[str, Any]], first: int = 1, last: int = 10**9) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("event") == "step" and first <= line["step"] <= last]


def acted_as(logs: Logs, kind: str, **what: Any) -> dict[str, Any]:
    """The first fault was of another kind, as the plan says, too; its `fault.injected`, with `what` beside that."""
    injected = next(line for line in logs["harness"] if line.get("event") == "fault.injected")
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    for fault in plan["faults"]:
        fault.update({"fault": kind} if fault["id"] == injected["fault"] else {})
    injected.update(kind=kind, **what)
    return injected


def remove(lines: list[dict[str, Any]], unwanted: Callable[[dict[str, Any]], bool]) -> None:
    lines[:] = [line for line in lines if not unwanted(line)]
