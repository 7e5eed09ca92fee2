"""Plans of jobs of one worker that need no torch, and what they told."""

import os
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from event_files import read_log

from harness.faults.contract import load_fault
from harness.plan.run_plan import Plan

ROOT = pathlib.Path(__file__).resolve().parents[1]


def light(steps: int) -> list[str]:
    """The command of the light trainer."""
    return ["{python}", "-S", str(ROOT / "tests" / "faults" / "light_trainer.py"), str(steps), "1"]


def fault(identity: str, name: str, when: Mapping[str, Any], /, **parameters: Any) -> dict[str, Any]:
    """A planned fault on the only node, or on its rank."""
    target = {"node_index": 0, "rank": 0 if load_fault(name).aims_at == "rank" else None}
    return {"id": identity, "fault": name, "parameters": parameters, "when": when, "targets": [target]}


def job(
    name: str,
    command: Sequence[str],
    *faults: Mapping[str, Any],
    backend: str = "local",
    expect: Mapping[str, Any] | None = None,
    wall_clock_s: float = 600,
    **workload: Any,
) -> Plan:
    plan = {
        "version": 1,
        "run_id": f"{name}-{os.getpid()}-{time.monotonic_ns():x}",
        "seed": 1,
        "backend": backend,
        "scenario": {"name": name, "title": name},
        "workload": {"trainer": {"command": command, "env": {"PYTHONPATH": str(ROOT)}}, "nodes": 1} | workload,
        "faults": faults,
        "expect": expect or {},
        "abort": {"if_no_step_for_ns": 600 * 10**9, "wall_clock_ns": int(wall_clock_s * 10**9)},
    }
    return Plan.from_json(plan)


def told(run_dir: pathlib.Path, *names: str, role: str = "") -> list[dict[str, Any]]:
    """The events of a run, log by log. Options: of these names, of the writers of this role."""
    logs = [log for log in read_log(run_dir / "events") if role in ("", log.header["role"])]
    return [event for log in logs for event in log.events if not names or event["event"] in names]


def named(events: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]
