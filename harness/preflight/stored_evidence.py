"""Judges a stored preflight from the files in its folder alone."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from harness.errors import EventLogError
from harness.evidence.logs import Evidence, load_evidence
from harness.judge.score import Scorecard, judge
from harness.log.event_log import HARNESS, Tail
from harness.plan.run_plan import Plan
from harness.preflight.checks.contract import Judged, Seen, Told, doubt, load_check
from harness.preflight.fitness import ASKED, Asked, Curve, Preflight, answers, held_against
from harness.report.run_report import ReportError, read_as
from harness.timeline import timeline

CANARY = "canary"
TOLD_MAX = 200_000
POINTS_MAX = 2_000


def judged(folder: pathlib.Path, before: Preflight | None) -> Preflight:
    """Judges a stored preflight, and compares it with the earlier preflight `before`. Raises `ReportError` for bad
    files."""
    asked = read_as(folder / ASKED, Asked)
    seen = see(folder, asked)
    checks = {name: _judged(name, seen, before) for name in asked.checks}
    curve, plan = _curve(seen.canary) if seen.canary else None, seen.plan
    commit = str(seen.environment.get("commit") or "")
    told: dict[str, Any] = {"run_id": folder.name, "scenario": plan.scenario.name, "backend": plan.backend}
    at_s = (folder / ASKED).stat().st_mtime
    told |= {name: getattr(asked, name) for name in ("against", "faults", "drill", "interrupted")}
    return Preflight(**told, nodes=[*seen.nodes], at_s=at_s, checks=answers(checks), canary=curve, commit=commit)


def _judged(name: str, seen: Seen, before: Preflight | None) -> Judged:
    try:
        found = load_check(name).judge(seen)
    except Exception as error:
        found = Judged(findings=[doubt(f"the check crashed: {type(error).__name__}: {error}")])
    unread, seen.damaged = [*map(doubt, seen.damaged)], []
    found.findings = [*found.findings, *unread, *(held_against(before, name, found, seen.one_host) if before else ())]
    return found


def see(folder: pathlib.Path, asked: Asked) -> Seen:
    try:
        plan = Plan.from_json(asked.plan)
    except ValidationError as error:
        raise ReportError(f"{folder / ASKED}: its plan cannot be read: {error.errors()[0]['msg']}") from error
    seen = Seen(plan, canary_ended=asked.canary_ended, drill_ended=asked.drill_ended)
    _hear(folder, seen)
    try:
        if (folder / CANARY).is_dir():
            seen.canary = judge(Evidence(timeline.load(folder / CANARY)), CANARY)
    except EventLogError as error:
        seen.canary_ended = f"its log cannot be read: {error}"
    if asked.drill:
        seen.drill = _drill(folder, asked.drill, seen)
    return seen


def _hear(folder: pathlib.Path, seen: Seen) -> None:
    tail, told, nodes, seen.ended = Tail(folder / "events"), list[Told](), dict[str, None](), "the run has no end"
    heard, failed = tail.rest(), list[str]()
    by_harness = [event for header, event in heard if header.get("role") == HARNESS]
    for event in by_harness:
        if event["event"] == "node.allocated":
            nodes[event["node"]] = None
        elif event["event"] == "run.finished":
            seen.ended = "" if event["outcome"] == "completed" else str(event.get("reason"))
        elif event["event"] == "process.exit" and event.get("code"):
            failed.append(f"the command on {event['node']} ended with {event['code']}")
        elif event["event"] == "host.load":  # told only of nodes that are on the harness's own host
            seen.one_host = len(nodes) > 1
        elif event["event"] == "environment":
            seen.environment = event
    seen.damaged += _not_acted(by_harness)
    seen.nodes = [*nodes, *(f"node {place}, which never came" for place in range(len(nodes), seen.plan.workload.nodes))]
    for header, event in heard:
        if event["event"] == "exiting" and event.get("code"):
            failed.append(f"a worker on {header.get('node')} ended with {event['code']}")
        if event["event"] == "preflight" and header.get("role") in ("trainer", "agent") and len(told) < TOLD_MAX:
            rank = int(header["rank"]) if header["role"] == "trainer" else None
            node, values = str(header["node"]), event.get("values")
            if node in nodes and isinstance(values, dict) and (rank is None or seen.node_of(rank) == node):
                told.append(Told(node, rank, str(event.get("probe")), values))
            else:
                seen.damaged.append(f"{node} told something that cannot be its own")
    seen.told = told
    ends = [seen.ended] if seen.ended else failed[:1]
    seen.damaged += [*tail.notes, *(f"the program on the nodes did not come to its end: {end}" for end in ends)]


def _not_acted(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    planned = {str(each.get("id")) for e in told if e["event"] == "plan" for each in e["plan"].get("faults") or ()}
    effects = [each for each in told if each["event"] == "fault.effect"]
    for each in effects:
        if each.get("ok") is not True:
            measured = f"measured {each.get('measured')} {each.get('unit', '')}".strip()
            yield f"fault {each.get('fault')} did not act as planned: {measured}, expected {each.get('expected')}"
    for name in sorted(planned - {str(each.get("fault")) for each in effects}):
        yield f"no effect of fault {name} was measured"


def _drill(folder: pathlib.Path, name: str, seen: Seen) -> Scorecard | None:
    try:
        own = name == f"{seen.plan.run_id}-drill"
        card = judge(load_evidence(folder.parent / name), name) if own else None
    except (EventLogError, OSError) as error:
        seen.drill_ended = f"its log cannot be read: {error}"
        return None
    if card is None or card.evidence.run.plan.get("run_id") != name:
        seen.drill_ended = f"{name} is no run of this preflight"
        return None
    return card


def _curve(card: Scorecard) -> Curve:
    curve = card.evidence.curve
    every = max(1, -(-len(curve) // POINTS_MAX))

    def told(values: list[float]) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in values[::every]]

    return Curve(
        step=curve.step.tolist()[::every], loss=told(curve.loss.tolist()), grad_norm=told(curve.grad_norm.tolist())
    )
