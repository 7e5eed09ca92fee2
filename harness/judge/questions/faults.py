"""Did each fault act as it was planned: on its targets, in its way, for its time, and while work was left?

Did a network fault meet the training's own bytes, and was each effect over once its fault was healed?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import Places, node_of
from harness.judge.score import Evidence, Expectation, Score, ScoreResult
from harness.judge.verdict import Claim, Code, Verdict, not_as_planned, unknown
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import grouped
from harness.timeline.sorted_events import CLEAN_CODES, acted_at, first_strike
from harness.timeline.timeline import FaultRecord, Ints, Timeline
from harness.units import counted, format_duration

EARLY_STEPS = 2  # so many before its step may be the last one that was told when a fault strikes
GONE = " gone"  # of none of them nobody is struck
NOTICE_SHARE = 0.9  # of the time that a notice promises, at the least
NOTICE_LATE_NS = 10 * 10**9  # so much later an engine may take a node that was given notice
LATE_NS = 10 * 10**9  # so much later, or as long again, a fault may be undone
KILLED = (None, -9, 137, -15, 143)  # how one ends that cannot do anything, or is woken to be ended
COUNTED = ("process", "node")  # what all of them must have been struck of, as units of effects begin
REPORTED_SOON_NS = 2 * 10**8  # a fault is told a moment after it began to act
REPORTED_WITHIN_NS = 10**9  # a fault sees that its victim is gone before the launcher there has said so


class Faults(Score):
    name = "faults"
    order = -1
    by_steps = False

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        return ScoreResult({}, reasons=list(_claims(evidence)))


def _claims(evidence: Analysis) -> Iterator[Claim]:
    """What was not as planned: one that was to strike and did not, or one that did so otherwise."""
    run = evidence.run
    work = _Work(run)
    records = grouped((record.id, record) for record in run.faults)
    planned = {str(fault["id"]): fault for fault in run.plan.get("faults") or ()}
    # How the job ended says why none struck, if it gave up; and why others did not, if it was stopped.
    gave_up = bool(run.beside.cut_short) or (run.outcome == "aborted" and first_strike(run.faults) == NEVER)
    flaws = [(name, flaw) for name in planned if not gave_up for flaw in _never_struck(records.get(name, []))]
    for record in run.faults:
        if record.id in run.beside.faults:
            continue
        if record.error:
            flaws.append((record.id, (Code.FAULT_FAILED, f"failed: {record.error}")))
        if record.injected is not None and (stopped := _stopped(work, record)):
            yield unknown(Code.FAULT_STOPPED, f"fault {record.id} {stopped}")
        if record.injected is not None:
            flaws += [(record.id, flaw) for flaw in _flaws(evidence, work, record, planned.get(record.id, {}))]
    claim = unknown if run.beside.cut_short else not_as_planned
    yield from (claim(code, f"fault {name} {text}") for name, (code, text) in flaws)


def _stopped(work: _Work, fault: FaultRecord) -> str:
    """How it was ended before its time by people, while the job went on; an empty text: it was not."""
    at = fault.cancelled
    if at is None or not work.has_steps or work.last_end <= at:
        return ""
    lasted, planned = at - acted_at(fault), 0 if fault.lasts is None else fault.lasts.ns
    if fault.effects and lasted >= planned:
        return ""
    told = f"; its planned duration is {fault.lasts}" if fault.lasts else ", before its effect was measured"
    return f"was stopped after {format_duration(lasted)}{told}"


def _flaws(evidence: Analysis, work: _Work, fault: FaultRecord, planned: dict[str, Any]) -> Iterator[_Flaw]:
    """Of one that struck."""
    run, places = evidence.run, evidence.places
    yield from _another(fault, planned)
    yield from _too_early(work, run, fault, planned)
    yield from _effect(work, run, fault)
    yield from _no_damage(work, fault)
    yield from _outlived(places, run, fault)
    yield from _not_frozen(places, run, fault)
    yield from _too_late(work, run, fault)
    yield from _wrong_target(places, run, fault, planned)
    yield from _already_ended(places, run, fault)
    yield from _otherwise(evidence, work, fault)
    yield from _for_its_time(places, work, run, fault)
    yield from _over_before(run, fault)
    yield from _replaced(places, fault)


_Flaw = tuple[Code, str]


class _Work:
    """What had been done when a fault struck, and what was left. But for `finished`, only of runs with steps."""

    def __init__(self, run: Timeline):
        self._run = run

    @property
    def has_steps(self) -> bool:
        return len(self._run.steps) > 0

    @cached_property
    def finished(self) -> bool:
        return self._run.finished and self.has_steps

    @cached_property
    def last_end(self) -> int:
        return int(self._run.steps.end.max())

    @cached_property
    def last_begin(self) -> int:
        return int(self._run.steps.begin.max())

    @cached_property
    def over(self) -> int:
        """The last step, save or start of a worker."""
        saved = (event["at"] for event in self._run.checkpoints)
        return int(max([self.last_end, *saved, *(process.started for process in self._run.processes)]))

    def furthest(self, moment: int) -> int:
        """The furthest step that was done by then."""
        done = int(np.searchsorted(self._run.steps.end, moment, "right"))
        return int(self._furthest[done - 1]) if done else 0

    @cached_property
    def _furthest(self) -> Ints:
        return np.maximum.accumulate(self._run.steps.step)

    @cached_property
    def first_seen(self) -> Mapping[tuple[object, object], int]:
        """When the harness saw a checkpoint with this content first, by its path and digest. A digest of samples does
        not show each change."""
        whole = (event for event in reversed(self._run.published) if not event.get("sampled"))
        return {(event.get("path"), event.get("sha256")): event["at"] for event in whole}

    @cached_property
    def usual_ns(self) -> float:
        return float(np.median(self._run.steps.end - self._run.steps.begin))


def _never_struck(found: list[FaultRecord]) -> Iterator[_Flaw]:
    if any(record.injected is not None or record.error for record in found):
        return
    if any(record.effects for record in found):
        yield Code.FAULT_BEGIN_UNTOLD, "measured an effect, but did not report when it began"
        return
    held_back = next((record.held_back for record in found if record.held_back), "")
    why = f"it was due, but held back: {held_back}" if held_back else "its trigger never came"
    yield Code.FAULT_NEVER_STRUCK, f"never struck: {why}"


def _another(fault: FaultRecord, planned: Mapping[str, Any]) -> Iterator[_Flaw]:
    """It is what was planned under its id."""
    if fault.kind and planned.get("fault") not in (None, fault.kind):
        yield Code.FAULT_NOT_AS_PLANNED, f"was a `{fault.kind}`, and a `{planned['fault']}` was planned"


def _too_early(work: _Work, run: Timeline, fault: FaultRecord, planned: Mapping[str, Any]) -> Iterator[_Flaw]:
    """It waited for the planned step."""
    step = (planned.get("when") or {}).get("step")
    if isinstance(step, int) and len(run.steps) and not run.lost:
        furthest = work.furthest(acted_at(fault) + run.uncertainty_ns)
        if furthest < step - EARLY_STEPS * run.stride:
            yield Code.FAULT_NOT_AS_PLANNED, f"struck after step {furthest}, and was planned for step {step}"


def _no_damage(work: _Work, fault: FaultRecord) -> Iterator[_Flaw]:
    """What it damaged is not what it was before, as the harness saw it. It may see the damage before it is told."""
    for damage in fault.damaged:
        path, digest = damage.get("checkpoint"), damage.get("sha256")
        begun = damage["at"] if fault.injecting is None else fault.injecting
        if digest and work.first_seen.get((path, digest), NEVER) < begun:
            yield Code.FAULT_NOT_AS_PLANNED, f"left {path} as it was: the harness saw the same content before"


def _effect(work: _Work, run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """It was measured, after the fault had begun, and as expected."""
    if not fault.effects and not fault.error and not _stopped(work, fault):
        yield Code.FAULT_NO_EFFECT, "was injected, but no effect was measured"
    for effect in fault.effects:
        if effect["at"] < acted_at(fault) - run.uncertainty_ns:
            early = format_duration(acted_at(fault) - effect["at"])
            yield Code.FAULT_LATER_THAN_EFFECT, f"acted only {early} after its effect was measured"
        numbers = [effect.get(name) for name in ("measured", "expected")]
        are_numbers = all(isinstance(each, (int, float)) and math.isfinite(each) for each in numbers)
        if not effect.get("ok", False) or _falls_short(effect) or not are_numbers:
            measured = f"{effect.get('measured')} {effect.get('unit', '')}".strip()
            detail = f" ({effect['detail']})" if effect.get("detail") else ""
            text = f"did not act as planned: measured {measured}, expected {effect.get('expected')}{detail}"
            yield Code.FAULT_NOT_AS_PLANNED, text


def _falls_short(effect: Mapping[str, Any]) -> bool:
    """Whether its numbers say that it did not act, whatever else is said: nothing where something was expected,
    something where nothing was; or not all of the processes or nodes."""
    measured, expected = effect.get("measured"), effect.get("expected")
    if not isinstance(measured, (int, float)) or not isinstance(expected, (int, float)):
        return False
    unit = str(effect.get("unit", ""))
    least = expected if unit.startswith(COUNTED) else np.nextafter(0, 1)
    return measured > 0 or unit.endswith(GONE) if not expected else measured < least <= expected


def _not_frozen(places: Places, run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """A frozen target says nothing, from when the harness saw it stand still until the fault's time is over, or until
    it was told to end: the harness tells that before it lets the target go on."""
    if not fault.freezes or fault.lasts is None or not fault.effects:
        return
    since = max(effect["at"] for effect in fault.effects) + run.uncertainty_ns
    until = min(acted_at(fault) + fault.lasts.ns, fault.healed or NEVER, fault.cancelled or NEVER) - run.uncertainty_ns
    order, places_of = run.rows_by_process
    for row in sorted({row for target in fault.targets for row in places.alive(target, acted_at(fault))}):
        process, ends = run.processes[row], run.steps.end[order[places_of[row] : places_of[row + 1]]]
        steps = int(np.searchsorted(ends, until) - np.searchsorted(ends, since, "right")) if since < until else 0
        left = process.exit_code not in KILLED and since < (process.exited or 0) < until
        if steps > 0 or left or since < process.last_seen < until:
            what = f"did {counted(steps, 'step')}" if steps > 0 else "exited" if left else "said something"
            yield Code.FAULT_VICTIM_WENT_ON, f"froze rank {process.rank}, but the rank {what} meanwhile"


def _outlived(places: Places, run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """By ranks that began a step after the harness had seen them gone. A node may have a notice: that is another thing.
    Between the fault's first word and its effect a rank still runs."""
    if not fault.kills:
        return
    gone = max([acted_at(fault), *(effect["at"] for effect in fault.effects)])
    rows = {
        row
        for target in fault.targets
        if target.get("rank") is not None
        for row in places.alive(target, acted_at(fault))
        if acted_at(fault) < run.processes[row].last_seen and places.last_begin[row] > gone
    }
    for row in sorted(rows):
        rank = run.processes[row].rank
        yield Code.FAULT_VICTIM_WENT_ON, f"killed rank {rank}, but the rank did steps afterwards"


def _too_late(work: _Work, run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """It struck when no step and no checkpoint was left to be done, and nobody started again over it. What only slows a
    job needs time to act: at least half a step of it."""
    if not work.finished:
        return
    struck = min(fault.strikes, default=acted_at(fault)) - run.uncertainty_ns
    gentle = not (fault.kills or fault.stops or fault.spoils)
    if struck > work.over:
        yield Code.FAULT_STRUCK_AFTER_END, "struck after the job had done all its work"
    elif gentle and struck > work.last_begin and work.last_end - struck < work.usual_ns / 2:
        left = format_duration(max(work.last_end - struck, 0))
        text = f"struck {left} before the end of the last step: too late to have an effect"
        yield Code.FAULT_NO_TIME_LEFT, text


def _wrong_target(places: Places, run: Timeline, fault: FaultRecord, planned: dict[str, Any]) -> Iterator[_Flaw]:
    """It struck the ranks or the nodes that were meant, and the job had them then."""
    meant, struck = _meant(run, planned), Counter(map(_aim, fault.targets))
    if meant and meant != struck:
        names = f"{_names(struck)}, not {_names(meant)}"
        if struck.total() != meant.total() and "rank" not in names:
            names = f"{struck.total()} nodes, not {meant.total()}"
        yield Code.FAULT_WRONG_TARGET, f"struck {names}"
    for target in fault.targets:
        if not places.had(node_of(target), acted_at(fault)):
            text = f"struck {target.get('node')}, which was not part of the job at that time"
            yield Code.FAULT_NOT_OF_JOB, text


def _already_ended(places: Places, run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """A node was still at work when it struck."""
    until = acted_at(fault) - run.uncertainty_ns - REPORTED_SOON_NS
    for target in (each for each in fault.targets if each.get("rank") is None):
        ended = places.ended.get(node_of(target), NEVER)
        if ended <= until and not [*places.alive(target, acted_at(fault))]:
            early = format_duration(acted_at(fault) - ended)
            yield Code.FAULT_NOT_OF_JOB, f"struck {target.get('node')}, whose command had ended {early} before"


_Aim = tuple[str, Any]  # ("rank", number) or ("node", name)


def _aim(target: Mapping[str, Any]) -> _Aim:
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
    """`rank 0`, `ranks 0, 1`, `node1`, `rank 0 and node1`."""
    ranks = sorted(str(name) for kind, name in found.elements() if kind == "rank")
    nodes = sorted(str(name) for kind, name in found.elements() if kind == "node")
    shown = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else ""
    return " and ".join(filter(None, [shown, ", ".join(nodes)])) or "nothing"


def _otherwise(evidence: Analysis, work: _Work, fault: FaultRecord) -> Iterator[_Flaw]:
    """In the planned way: a notice ends with the node taken; a victim of a kill dies, and does not leave by itself."""
    run, places = evidence.run, evidence.places
    if not fault.kills or run.outcome != "completed":
        return
    if fault.notice_ns is not None:
        for target in fault.targets:
            if target.get("rank") is None and node_of(target) in places.kept:
                yield Code.FAULT_NODE_NOT_TAKEN, f"gave {target.get('node')} a notice, but never took the node"
        given = [at - acted_at(fault) for at in fault.strikes if len(run.steps) and at < work.over]
        latest = fault.notice_ns / NOTICE_SHARE + NOTICE_LATE_NS
        other = [each for each in given if 0 < each < fault.notice_ns * NOTICE_SHARE or each > latest]
        for each in other[:1]:
            after, asked = format_duration(each), format_duration(fault.notice_ns)
            yield Code.FAULT_NOT_AS_PLANNED, f"took the node {after} after its notice; {asked} were planned"
        return
    struck = {(row, at) for target in fault.targets for at in fault.strikes for row in places.alive(target, at)}
    for row in sorted({row for row, at in struck if at <= (run.processes[row].exited or -1)}):
        victim = run.processes[row]
        warned = evidence.last_notices.get(victim.node, -1) >= acted_at(fault)
        if not fault.graceful and victim.exit_code in CLEAN_CODES and not warned:
            yield Code.FAULT_VICTIM_LEFT, f"should have killed rank {victim.rank}, but the rank exited by itself"


def _for_its_time(places: Places, work: _Work, run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """A fault with a duration acts for all of it, unless the job gets rid of its victim or is over before."""
    if fault.lasts is None:
        return
    if fault.healed is None:
        if run.outcome is not None and not fault.error:
            yield Code.FAULT_NEVER_UNDONE, f"was never undone; its planned duration is {fault.lasts}"
        return
    late = fault.healed - acted_at(fault) - fault.lasts.ns
    if late > max(LATE_NS, fault.lasts.ns):
        yield Code.FAULT_UNDONE_LATE, f"was undone {format_duration(late)} after its planned duration, {fault.lasts}"
    if late >= 0 or not work.has_steps or work.last_end <= fault.healed or _stopped(work, fault):
        return
    ranks = {target.get("rank") for target in fault.targets} - {None}
    ends = (
        exit_["at"] - (REPORTED_WITHIN_NS if exit_["rank"] in ranks else 0)
        for target in fault.targets
        for exit_ in places.exits(target, acted_at(fault), fault.healed + REPORTED_WITHIN_NS)
    )
    if not any(at <= fault.healed for at in ends):
        lasted = format_duration(fault.healed - acted_at(fault))
        yield Code.FAULT_UNDONE_EARLY, f"was undone after {lasted}; its planned duration is {fault.lasts}"


def _over_before(run: Timeline, fault: FaultRecord) -> Iterator[_Flaw]:
    """It is not over before it acts."""
    for what, at in (("undone", fault.healed), ("recovered from", fault.recovered)):
        if at is not None and at < acted_at(fault) - run.uncertainty_ns:
            early = format_duration(acted_at(fault) - at)
            yield Code.FAULT_UNDONE_EARLY, f"was {what} {early} before it acted"


def _replaced(places: Places, fault: FaultRecord) -> Iterator[_Flaw]:
    """Where no replacement was planned, none comes."""
    for target in fault.targets if fault.replaced is False else ():
        node, incarnation = target.get("node"), target.get("incarnation") or 1
        if target.get("rank") is None and places.given.get((node, incarnation + 1), -NEVER) > acted_at(fault):
            yield Code.FAULT_NOT_AS_PLANNED, f"was to bring no replacement, and {node} came back"


# The training's own bytes went through what each network fault disturbed (`fault.traffic`), else the run is invalid.
# Bytes that went through and lost no time are a result, and it is said.


class OwnTraffic(Score):
    name = "own_traffic"
    order = 46

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        struck = [fault for fault in evidence.run.faults if fault.injected is not None and fault.network]
        measured = [fault for fault in struck if _is_measured(fault)]
        unslowed = list(_lost_no_time(evidence, measured)) if measured else []
        values: dict[str, Any] = {"faults": len(struck), "measured": len(measured)}
        values |= {"bytes": sum(map(_bytes, measured)), "lost_no_time": unslowed}
        if bounds is None:
            return ScoreResult(values)
        untold = ", ".join(dict.fromkeys(fault.id for fault in struck if not _is_measured(fault)))
        unknown = [(self.by_default, f"whether it went through {untold} was not measured")] if untold else []
        reasons = [finding for fault in measured for finding in _missed(fault)]
        return ScoreResult(values, reasons=reasons, summary="; ".join(unslowed), not_judged=unknown)


def _is_measured(fault: FaultRecord) -> bool:
    return any("ok" in each for each in fault.traffic)


def _bytes(fault: FaultRecord) -> int:
    return sum(int(each.get("measured", 0)) for each in fault.traffic)


def _missed(fault: FaultRecord) -> Iterator[Claim]:
    for each in fault.traffic:
        if each.get("ok") is False:
            counted = f"{each.get('measured', 0)} bytes in {each.get('seconds', 0):g} s, at least {each.get('least')}"
            text = f"fault {fault.id} did not meet the training's own traffic on {each.get('node')}: {counted} expected"
            yield not_as_planned(Code.FAULT_MISSED_TRAFFIC, f"{text} ({each.get('detail', '')})")


def _lost_no_time(evidence: Analysis, measured: Sequence[FaultRecord]) -> Iterator[str]:
    """Traffic went through a fault that neither stopped nor slowed the job, and syncs took no longer than usual."""
    felt = {name for episode in evidence.run.episodes for name in episode.faults}
    felt |= {each.fault for each in evidence.degraded} | {each.id for each in evidence.slowed.unmeasurable}
    band = evidence.usual.sync
    if band is None:
        return
    for fault in measured:
        if fault.id in felt or not all(each.get("ok") for each in fault.traffic):
            continue
        during = _sync_during(evidence.run, fault)
        if during is not None and during <= band:
            times = f"gradient sync took {during / 1e6:.1f} ms, {band / 1e6:.1f} ms at most without a fault"
            yield f"{_bytes(fault)} bytes of the training went through {fault.id} and lost no time: {times}"


def _sync_during(run: Timeline, fault: FaultRecord) -> float | None:
    steps, since, until = run.steps, acted_at(fault), run.end if fault.healed is None else fault.healed
    within = slice(*steps.end.searchsorted([since, until + 1]))
    waits = steps.sync_ns[within][steps.begin[within] >= since]
    waits = waits[waits > 0]
    return float(np.median(waits)) if len(waits) else None


# Each fault's effect was over once it was healed, as measured (`fault.ended`).


class EffectEnd(Score):
    name = "effect_end"
    order = 45

    def score(self, evidence: Evidence, bounds: object) -> ScoreResult:
        run = evidence.run
        struck = [each for each in run.faults if each.injected is not None and each.id not in run.beside.faults]
        lasting = [fault for fault in struck if not fault.kills or fault.ends]  # of a kill there is nothing to undo
        measured = [fault for fault in lasting if fault.ends]
        over = sum(all(map(_is_over, fault.ends)) for fault in measured)
        values = {"faults": len(lasting), "measured": len(measured), "over": over}
        if bounds is None:
            return ScoreResult(values)
        untold = ", ".join(dict.fromkeys(fault.id for fault in lasting if not fault.ends))
        unknown = [(self.by_default, f"the end of the effect was not measured: {untold}")] if untold else []
        return ScoreResult(values, list(_lines(measured)), not_judged=unknown)


def _is_over(end: Mapping[str, Any]) -> bool:
    """A rate or a time may be nearly what it was; no process may be left."""
    counted = str(end.get("unit", "")).startswith(COUNTED)
    return end.get("ok") is True and not (counted and _falls_short(end))


def _lines(faults: list[FaultRecord]) -> Iterator[Expectation]:
    for fault in faults:
        bad = next((end for end in fault.ends if not _is_over(end)), None)
        end = bad or fault.ends[-1]
        observed = f"{end.get('measured')} {end.get('unit', '')}".strip()
        bound = f"{end.get('expected')} {end.get('unit', '')}".strip()
        reason = f"fault {fault.id} was healed, but its effect did not end: measured {observed}, expected {bound}"
        verdict = Verdict.PASS if bad is None else Verdict.INVALID
        yield Expectation(f"effect_end.{fault.id}", bound, observed, verdict, "" if bad is None else reason)


SCORES = (Faults(), OwnTraffic(), EffectEnd())
