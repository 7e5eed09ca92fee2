"""Did each fault act as it was planned: on its targets, in its way, for its time, and while work was left?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.judge.codes import Code
from harness.judge.score import Finding, Verdict
from harness.timeline.story import CLEAN_CODES
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import format_duration

REPORTED_WITHIN_NS = 10**9  # a fault sees that its victim is gone before the launcher there has said so


def findings(run: Timeline) -> Iterator[Finding]:
    """A fault that was planned must have struck, and its effect must have been measured."""
    records: dict[str, list[FaultRecord]] = {}
    for record in run.faults:
        records.setdefault(record.id, []).append(record)
    planned = {str(fault["id"]): fault for fault in run.plan.get("faults") or ()}
    gave_up = run.outcome == "aborted" and not any(record.injected is not None for record in run.faults)
    for name in planned if not gave_up else ():  # then `_ending` says so
        found = records.get(name, [])
        if any(record.injected is not None or record.error for record in found):
            continue
        told = any(record.effects for record in found)
        held_back = next((record.held_back for record in found if record.held_back), "")
        why = f"it was due, but held back: {held_back}" if held_back else "its trigger never came"
        untold = "measured an effect, but did not report when it began"
        yield Finding(
            Verdict.INVALID,
            f"fault {name} {untold if told else f'never struck: {why}'}",
            Code.FAULT_BEGIN_UNTOLD if told else Code.FAULT_NEVER_STRUCK,
        )
    for record in run.faults:
        if record.id in run.beside.faults:
            continue
        yield from (Finding(Verdict.INVALID, f"fault {record.id} {text}", code) for code, text in _flaws(run, record))
        yield from _too_late(run, record)
        yield from _wrong_target(run, record, planned.get(record.id, {}))
        yield from _otherwise(run, record)
        yield from _healed_early(run, record)


def _flaws(run: Timeline, fault: FaultRecord) -> Iterator[tuple[Code, str]]:
    if fault.error:
        yield Code.FAULT_FAILED, f"failed: {fault.error}"
    if fault.injected is None:
        return
    if not fault.effects and not fault.error:
        yield Code.FAULT_NO_EFFECT, "was injected, but no effect was measured"
    for effect in fault.effects:
        if effect["at"] < fault.injected - run.uncertainty_ns:
            early = format_duration(fault.injected - effect["at"])
            yield Code.FAULT_LATER_THAN_EFFECT, f"acted only {early} after its effect was measured"
        if not effect.get("ok", False):
            measured = f"{effect.get('measured')} {effect.get('unit', '')}".strip()
            detail = f" ({effect['detail']})" if effect.get("detail") else ""
            text = f"did not act as planned: measured {measured}, expected {effect.get('expected')}{detail}"
            yield Code.FAULT_NOT_AS_PLANNED, text
    for rank in _outliving(run, fault) if fault.kills else ():
        yield Code.FAULT_VICTIM_WENT_ON, f"killed rank {rank}, but the rank did steps afterwards"


def _outliving(run: Timeline, fault: FaultRecord) -> Iterator[int]:
    """Ranks of which a step began after a fault had taken them (a node may have a notice: that is another thing)."""
    assert fault.injected is not None
    places = {(target.get("node"), target.get("incarnation"), target.get("rank")) for target in fault.targets}
    for index, process in enumerate(run.processes):
        alive = process.started <= fault.injected < process.last_seen
        if alive and (process.node, process.incarnation, process.rank) in places:
            mine = run.steps.process == index
            if (run.steps.begin[mine] > fault.injected).any():
                yield process.rank


def _too_late(run: Timeline, fault: FaultRecord) -> Iterator[Finding]:
    """A fault that struck when no step and no checkpoint was left to be done, and that nobody started again over. What
    only slows a job needs time to act: at least half a step of it."""
    if fault.injected is None or not run.finished or not len(run.steps):
        return
    last = int(run.steps.end.max())
    others = [event["at"] for event in run.checkpoints] + [process.started for process in run.processes]
    struck = min(fault.strikes, default=fault.injected) - run.uncertainty_ns
    if struck > max([last, *others]):
        yield Finding(
            Verdict.INVALID, f"fault {fault.id} struck after the job had done all its work", Code.FAULT_STRUCK_AFTER_END
        )
    elif not (fault.kills or fault.stops or fault.spoils) and _had_no_time(run, struck):
        text = f"struck {format_duration(max(last - struck, 0))} before the end of the last step"
        yield Finding(Verdict.INVALID, f"fault {fault.id} {text}: too late to have an effect", Code.FAULT_NO_TIME_LEFT)


def _had_no_time(run: Timeline, struck: int) -> bool:
    usual = np.median(run.steps.end - run.steps.begin)
    return struck > int(run.steps.begin.max()) and bool(run.steps.end.max() - struck < usual / 2)


def _wrong_target(run: Timeline, record: FaultRecord, planned: dict[str, Any]) -> Iterator[Finding]:
    """It struck the ranks or the nodes that were meant, and the job had them then."""
    if record.injected is None:
        return
    meant, struck = _meant(run, planned), Counter(_struck(target) for target in record.targets)
    if meant and meant != struck:
        nodes = f"{struck.total()} nodes, not {meant.total()}"
        names = f"{_names(struck)}, not {_names(meant).removeprefix('ranks ')}"
        text = nodes if struck.total() != meant.total() and "rank" not in names else names
        yield Finding(Verdict.INVALID, f"fault {record.id} struck {text}", Code.FAULT_WRONG_TARGET)
    had = {(s.node, s.incarnation) for s in run.slots if s.allocated <= record.injected <= s.released}
    for target in record.targets:
        if (target.get("node"), target.get("incarnation", 1)) not in had:
            yield Finding(
                Verdict.INVALID,
                f"fault {record.id} struck {target.get('node')}, which was not part of the job at that time",
                Code.FAULT_NOT_OF_JOB,
            )


_Aim = tuple[str, Any]  # ("rank", number) or ("node", name)


def _struck(target: Mapping[str, Any]) -> _Aim:
    return ("node", target.get("node")) if target.get("rank") is None else ("rank", target["rank"])


def _meant(run: Timeline, planned: Mapping[str, Any]) -> Counter[_Aim]:
    """Nodes are planned by number, in the order in which the job got them. Nothing where a number has no node."""
    found: Counter[_Aim] = Counter()
    for target in planned.get("targets") or ():
        number = target.get("node_index", -1)
        if target.get("rank") is not None:
            found["rank", target["rank"]] += 1
        elif isinstance(number, int) and 0 <= number < len(run.nodes):
            found["node", run.nodes[number]] += 1
        else:
            return Counter()
    return found


def _names(found: Counter[_Aim]) -> str:
    ranks = sorted(str(name) for kind, name in found.elements() if kind == "rank")
    nodes = sorted(str(name) for kind, name in found.elements() if kind == "node")
    return " and ".join(filter(None, [f"ranks {', '.join(ranks)}" if ranks else "", ", ".join(nodes)])) or "nothing"


def _otherwise(run: Timeline, fault: FaultRecord) -> Iterator[Finding]:
    """In the planned way: a notice ends with the node taken; a victim of a kill dies, and does not leave by itself."""
    if fault.injected is None or not fault.kills or run.outcome != "completed":
        return
    if fault.notice_ns is not None:
        kept = {(slot.node, slot.incarnation) for slot in run.slots if slot.kept}
        for target in fault.targets:
            if target.get("rank") is None and place_of(target) in kept:
                yield Finding(
                    Verdict.INVALID,
                    f"fault {fault.id} gave {target.get('node')} a notice, but never took the node",
                    Code.FAULT_NODE_NOT_TAKEN,
                )
    elif not fault.graceful:
        for rank in _left_by_themselves(run, fault):
            yield Finding(
                Verdict.INVALID,
                f"fault {fault.id} should have killed rank {rank}, but the rank exited by itself",
                Code.FAULT_VICTIM_LEFT,
            )


def _left_by_themselves(run: Timeline, fault: FaultRecord) -> Iterator[int]:
    assert fault.injected is not None
    places = {(*place_of(target), target.get("rank")) for target in fault.targets}
    for process in run.processes:
        mine = {(process.node, process.incarnation, rank) for rank in (None, process.rank)}
        struck = min((at for at in fault.strikes if at >= process.started), default=None)
        alive = struck is not None and process.exited is not None and process.exited >= struck
        if any(notice["node"] == process.node and notice["at"] >= fault.injected for notice in run.notices):
            continue
        if alive and process.exit_code in CLEAN_CODES and not mine.isdisjoint(places):
            yield process.rank


def _healed_early(run: Timeline, fault: FaultRecord) -> Iterator[Finding]:
    """A fault with a duration acts for all of it, unless the job gets rid of its victim or is over before."""
    if fault.lasts is None or fault.injected is None:
        return
    if fault.healed is None:
        if run.outcome is not None and not fault.error:
            yield Finding(
                Verdict.INVALID,
                f"fault {fault.id} was never undone; its planned duration is {fault.lasts}",
                Code.FAULT_NEVER_UNDONE,
            )
        return
    lasted = fault.healed - fault.injected
    nodes = {(target.get("node"), target.get("incarnation")) for target in fault.targets}
    ranks = {target.get("rank") for target in fault.targets} - {None}
    victim_gone = any(
        fault.injected <= exit_["at"] <= fault.healed + (REPORTED_WITHIN_NS if exit_["rank"] in ranks else 0)
        for exit_ in run.exits
        if (exit_["node"], exit_["incarnation"]) in nodes
    )
    over = not len(run.steps) or int(run.steps.end.max()) <= fault.healed
    if lasted < fault.lasts.ns and not victim_gone and not over:
        text = f"was undone after {format_duration(lasted)}; its planned duration is {fault.lasts}"
        yield Finding(Verdict.INVALID, f"fault {fault.id} {text}", Code.FAULT_UNDONE_EARLY)


def place_of(target: Mapping[str, Any]) -> tuple[Any, Any]:
    return target.get("node"), target.get("incarnation", 1)
