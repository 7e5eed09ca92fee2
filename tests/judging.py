"""Judging simulated histories: write the log (perhaps bent), read it back, judge it against a fault-free run."""

import copy
import functools
import json
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec

from simulator import History, Job, Line, Logs, Outage, simulate

from harness.evidence.logs import load_evidence
from harness.judge.score import Evidence, Scorecard, judge
from harness.report import run_report
from harness.report.strict_json import json_text
from harness.timeline import timeline
from harness.timeline.timeline import Timeline

Bend = Callable[[Logs], object]
P = ParamSpec("P")
SAVES = ("checkpoint.started", "checkpoint.committed", "checkpoint.failed")
EXPECT = {
    "recovery_time": {"max": "60s"},
    "wasted_gpu_hours": {"max_percent_by_faults": 100},
    "loss_continuity": {"mode": "exact"},
}
EXACT = {"loss_continuity": {"mode": "exact"}}
ENVELOPE = {"loss_continuity": {"mode": "envelope"}}


def load(history: History, logs: Logs | None = None, rename: Callable[[str], str] = str) -> Timeline:
    with tempfile.TemporaryDirectory() as folder:
        return timeline.load(history.write(pathlib.Path(folder), logs, rename))


def fault_free_of(job: Job, seed: int = 99) -> Timeline:
    """A copy of its own for each caller, who may bend it."""
    return copy.deepcopy(_fault_free_of(job, seed))


@functools.lru_cache(maxsize=256)
def _fault_free_of(job: Job, seed: int) -> Timeline:
    return load(simulate(job, (), seed))


def bending(act: Callable[Concatenate[Logs, P], object]) -> Callable[P, Bend]:
    """Who calls it gives all but the logs, and has a bend that does so with any logs."""

    def made(*given: P.args, **more: P.kwargs) -> Bend:
        def bend(logs: Logs) -> object:
            return act(logs, *given, **more)

        return bend

    return made


def together(*bends: Bend) -> Bend:
    """One after the other."""
    return lambda logs: [bend(logs) for bend in bends]


def bent(job: Job, *bends: Bend, outages: Sequence[Outage] = (), seed: int = 99) -> Timeline:
    """A run with a bent log; without outages a fault-free one."""
    history = simulate(job, outages, seed)
    logs = history.logs()
    together(*bends)(logs)
    return load(history, logs)


def expecting(logs: Logs, expect: dict[str, Any]) -> Logs:
    plan = logs.told("plan")
    plan["plan"] = plan["plan"] | {"expect": expect}
    return logs


def by_a_command(logs: Logs) -> None:
    """The plan names a command that promises nothing, instead of the reference trainer."""
    logs.plan["workload"] = logs.plan["workload"] | {"trainer": {"command": ["train"]}}


def verdict(
    history: History,
    bend: Bend = lambda logs: None,
    expect: dict[str, Any] | None = None,
    fault_free: Timeline | None = None,
    calibration: Sequence[Timeline] = (),
) -> Scorecard:
    logs = expecting(history.logs(), EXPECT if expect is None else expect)
    bend(logs)
    fault_free = fault_free or fault_free_of(replace(history.job, foreign_clocks=False))
    return judge(Evidence(load(history, logs), fault_free, calibration), "simulated")


def acted_as(logs: Logs, kind: str, **what: Any) -> Line:
    """The first fault was of another kind, as the plan says, too; its `fault.injected`, with `what` beside that."""
    injected = logs.told("fault.injected")
    for fault in logs.plan["faults"]:
        fault.update({"fault": kind} if fault["id"] == injected["fault"] else {})
    injected.update(kind=kind, **what)
    return injected


def struck(logs: Logs, fault: str, at: int, healed: int | None = None, **told: Any) -> None:
    """A fault that kills nobody strikes at a moment and acts as meant; `told`: more of its `fault.injected`."""
    common = {"fault": fault, "wall_ns": logs.harness[-1]["wall_ns"]}
    injected = {"event": "fault.injected", "mono_ns": at, "kind": "straggler", "kills": False, "targets": []}
    effect = {"event": "fault.effect", "measured": 2, "expected": 2, "unit": "x", "ok": True, "mono_ns": at + 1}
    over = [] if healed is None else [common | {"event": "fault.healed", "mono_ns": healed}]
    logs.put(common | injected | told, common | effect, *over)


def stored(folder: pathlib.Path, bend: Bend = lambda logs: None, seed: int = 5, **environment: Any) -> pathlib.Path:
    """A run as it lies in the reports folder: its log, its plan and its report. It passes unless it is bent."""
    history = simulate(Job(nodes=2, steps=40, every=10), [Outage(17, "rank", victim=1)], seed)
    logs = expecting(history.logs(), {})
    logs.told("environment")["environment"] = {"cpus": 2, **environment}
    bend(logs)
    history.write(folder, logs)
    (folder / "plan.json").write_text(json.dumps(logs.plan))
    report = run_report.from_scorecard(judge(load_evidence(folder), folder.name))
    (folder / "report.json").write_text(json_text(report.to_json()))
    return folder


def edit(file: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the values in a JSON file."""
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))
