"""Turns the logged events of a run into numbers for charts of steps, and into texts for lists of events."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.evidence.losses import Curve
from harness.judge.facts.analysis import Analysis
from harness.report.charts.loss_curves import Curves, Series
from harness.report.view import target_text
from harness.report.words import DASH, plain, seconds, short, short_path, size
from harness.timeline.timeline import Timeline
from harness.units import format_duration

FINGERPRINT = 12  # characters of it that are shown
# By what a trainer is started, and the key of it.
STARTERS = ("torchrun", "accelerate", "deepspeed", "module", "command")
TRAINER_MAX = 60  # characters
EventRow = tuple[str, str, str]  # when, where, what


def log_lists(run: Timeline) -> dict[str, list[EventRow]]:
    ended = [event for event in run.checkpoints if event.get("event") != "checkpoint.started"]
    lists = {"notices": run.notices, "anomalies": run.anomalies, "checkpoints": ended}
    return {name: [_row(event, run) for event in events] for name, events in lists.items()}


def trainer(plan: Mapping[str, Any]) -> str:
    """Returns the name of a plan's trainer (such as `reference`), its command (such as `torchrun ../train.py`), or
    ""."""
    workload = plan.get("workload")
    written = workload.get("trainer") if isinstance(workload, Mapping) else None
    if not isinstance(written, Mapping):
        return short(str(written or ""), TRAINER_MAX)
    kind = next((kind for kind in STARTERS if written.get(kind)), "")
    started = written.get(kind, "")
    words = " ".join(map(str, started)) if isinstance(started, list) else f"{kind} {started}".strip()
    return short(short_path(words), TRAINER_MAX)


def curves(analysis: Analysis) -> Curves:
    run = analysis.run
    steps = run.steps
    # Of what was rolled back: what the lowest rank had done, process by process.
    rows = np.flatnonzero(~steps.survives)
    rows = rows[steps.rank[rows] == steps.rank[rows].min(initial=np.iinfo(np.int64).max)]
    owners = np.unique(steps.process[rows])[:64]
    undone = [rows[steps.process[rows] == owner] for owner in owners]
    return Curves(
        ours=line(analysis.curve),
        fault_free=line(analysis.fault_free_curve) if analysis.fault_free_curve else None,
        apart=analysis.apart,
        last_step=int(steps.step.max()) if len(steps) else 0,
        resumes=sorted({process.restored_step for process in run.processes if process.restored_step}),
        rolled_back=[(steps.step[mine].astype(np.float64), steps.loss[mine]) for mine in undone],
        struck=[(plain(each.id), _under_way(run, each.injected)) for each in run.faults if each.injected is not None],
    )


def _under_way(run: Timeline, at: int) -> float:
    done = int(np.searchsorted(run.progress.end, at, side="right"))
    return float(run.progress.step[done - 1] + run.stride) if done else 0.0


def line(curve: Curve) -> Series:
    return Series(curve.step.astype(np.float64), curve.loss, curve.took_ns / 1e9)


def _row(event: Mapping[str, Any], run: Timeline) -> EventRow:
    at, node, rank = event.get("at"), event.get("node"), event.get("rank")
    when = seconds((at - run.begin) / 1e9) if isinstance(at, int) else DASH
    where = DASH if node is None and rank is None else target_text({"node": node, "rank": rank})
    return when, where, _what(event)


_NOT_SHOWN = {"at", "node", "rank", "incarnation", "process", "event", "wall_ns", "mono_ns"}


def _what(event: Mapping[str, Any]) -> str:
    fields = ", ".join(_field(key, value) for key, value in event.items() if key not in _NOT_SHOWN)
    _, dot, edge = str(event.get("event", "")).partition(".")
    return f"{edge}: {fields}" if dot else fields


def _field(key: str, value: object) -> str:
    if isinstance(value, int) and key == "bytes":
        return size(value)
    if isinstance(value, int) and key.endswith("_ns"):
        return f"{key.removesuffix('_ns')} {format_duration(value)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{key} {', '.join(short_path(str(item)) for item in value)}"
    key = key.replace("_", " ")
    if key in ("content", "tensors"):  # a digest, maybe behind its kind
        key = "fingerprint" if key == "content" else "fingerprint of its tensors"
        return f"{key} {str(value).rpartition(':')[2][:FINGERPRINT]}"
    return f"{key} {short_path(str(value))}"
