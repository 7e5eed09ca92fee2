"""Turns a run into spans for exports, as plain data: the run, and its recoveries, phases, faults and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from harness.timeline.save_events import COMMITTED, STARTED
from harness.timeline.timeline import FaultRecord, Timeline

Value = str | int | float | bool
Kind = Literal["run", "phase", "recovery", "recovery phase", "fault", "checkpoint"]


@dataclass(frozen=True)
class Span:
    """A named span of time in a run, in ns on the harness's monotonic clock, such as a fault or a recovery. `parent` is
    the index of the enclosing span in the list of all spans, or -1."""

    kind: Kind
    name: str
    begin: int
    end: int
    parent: int = 0
    ok: bool = True
    attributes: dict[str, Value] = field(default_factory=dict)


def spans_of(run: Timeline) -> list[Span]:
    plan, scenario = run.plan, run.plan.get("scenario") or {}
    told = {"run_id": plan.get("run_id"), "scenario": scenario.get("name"), "backend": plan.get("backend")}
    told |= {"seed": plan.get("seed"), "outcome": run.outcome, "reached_step": run.reached_step}
    attributes: dict[str, Value] = {key: value for key, value in told.items() if isinstance(value, (str, int))}
    name = f"run {scenario.get('name') or plan.get('run_id') or ''}".strip()
    spans = [Span("run", name, run.begin, run.end, -1, run.outcome == "completed", attributes)]
    spans += [Span("phase", each.phase, each.begin, each.end) for each in run.segments]
    for episode in run.episodes:
        end = run.end if episode.t_regained is None else episode.t_regained
        about: dict[str, Value] = {"faults": ", ".join(episode.faults), "furthest_step": episode.furthest_step}
        parent = len(spans)
        spans.append(Span("recovery", "recovery", episode.t_stop, end, 0, episode.t_regained is not None, about))
        spans += [Span("recovery phase", each.phase, each.begin, each.end, parent) for each in episode.segments]
    spans += [_fault(run, fault) for fault in run.faults if fault.injected is not None]
    spans += _checkpoints(run)
    return spans


def _fault(run: Timeline, fault: FaultRecord) -> Span:
    assert fault.injected is not None
    targets = []
    for target in fault.targets:
        rank, node = target.get("rank"), target.get("node", "")
        targets.append(str(node) if rank is None else f"rank {rank} on {node}")
    told: dict[str, Value] = {"kind": fault.kind, "targets": ", ".join(targets)}
    for effect in fault.effects[:1]:
        known = {name: effect.get(name) for name in ("measured", "expected", "unit")}
        told |= {name: value for name, value in known.items() if isinstance(value, (str, int, float))}
    if fault.error is not None:
        told["error"] = fault.error
    acted = any(effect.get("ok") for effect in fault.effects)
    end = run.end if fault.healed is None else max(fault.healed, fault.injected)
    return Span("fault", f"{fault.kind} {fault.id}".strip(), fault.injected, end, 0, acted, told)


def _checkpoints(run: Timeline) -> Iterator[Span]:
    begun: dict[int, int] = {}
    for event in run.checkpoints:
        step = int(event.get("step", -1))
        if event["event"] == STARTED:
            begun.setdefault(step, event["at"])
        elif event["event"] == COMMITTED or event["event"] == "checkpoint.failed":
            begin = begun.pop(step, event["at"] - int(event.get("duration_ns") or 0))
            told: dict[str, Value] = {"step": step, "rank": int(event["rank"])}
            ok = event["event"] == COMMITTED
            yield Span("checkpoint", f"checkpoint {step}", min(begin, event["at"]), event["at"], 0, ok, told)
    for step, begin in begun.items():
        yield Span("checkpoint", f"checkpoint {step}", begin, run.end, 0, False, {"step": step})
