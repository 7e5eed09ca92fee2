"""The job as a whole: did it do what was asked, did the faults act, and is every death accounted for?

Always judged, whether or not the scenario says so: no other number means anything otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.emitter import EXIT_LEFT
from harness.judge import deaths
from harness.judge.analysis import Analysis
from harness.judge.score import Bounds, Score, ScoreResult, Verdict
from harness.timeline.story import CLEAN_CODES
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import format_duration, parse_duration_ns

NAMED_DEATHS = 3
REPORTED_WITHIN_NS = 10**9  # a fault sees that its victim is gone before the launcher there has said so
Finding = tuple[Verdict, str]


class JobBounds(Bounds):
    """Nothing to set: a job must do its steps, and every death must be explained."""


class Job(Score):
    name = "job"
    section = "metrics"
    order = 0
    Bounds = JobBounds

    def score(self, evidence: Analysis, bounds: JobBounds | None) -> ScoreResult:
        run = evidence.run
        unexplained = [f"{death.describe(run.begin)}, and no fault did that" for death in deaths.unexplained(run)]
        reasons = [*_faults(run), *_ending(run), *_left_untold(run)]
        reasons += [*_worlds(run), *_absent(run), *_restores(run), *_evidence(run)]
        reasons += [(Verdict.INCONCLUSIVE, f"unexplained death: {text}") for text in unexplained[:NAMED_DEATHS]]
        if len(unexplained) > NAMED_DEATHS:
            reasons.append((Verdict.INCONCLUSIVE, f"{len(unexplained) - NAMED_DEATHS} more unexplained deaths"))
        values: dict[str, Any] = {
            "job_success": run.finished and run.outcome == "completed",
            "steps_done": run.reached_step,
            "steps_planned": run.planned_steps,
            "deaths": len(deaths.deaths(run)),
            "deaths_unexplained": len(unexplained),
            "events_dropped": run.dropped,
            "logs_torn": len(run.torn),
        }
        return ScoreResult(values, reasons=reasons)


def _faults(run: Timeline) -> Iterator[Finding]:
    """A fault that was planned must have struck, and its effect must have been measured."""
    records: dict[str, list[FaultRecord]] = {}
    for record in run.faults:
        records.setdefault(record.id, []).append(record)
    planned = {str(fault["id"]): fault for fault in run.plan.get("faults") or ()}
    for name in planned:
        found = records.get(name, [])
        if not any(record.injected is not None or record.error for record in found):
            yield Verdict.INVALID, f"fault {name} never struck: what it waits for did not come"
    for record in run.faults:
        yield from ((Verdict.INVALID, f"fault {record.id} {text}") for text in _flaws(run, record))
        yield from _too_late(run, record)
        yield from _wrong_target(run, record, planned.get(record.id, {}))
        yield from _healed_early(run, record, planned.get(record.id, {}))


def _flaws(run: Timeline, fault: FaultRecord) -> Iterator[str]:
    if fault.error:
        yield f"failed: {fault.error}"
    if fault.injected is None:
        return
    if not fault.effects and not fault.error:
        yield "was injected, but no effect of it was measured"
    for effect in fault.effects:
        if not effect.get("ok", False):
            measured = f"{effect.get('measured')} {effect.get('unit', '')}".strip()
            detail = f" ({effect['detail']})" if effect.get("detail") else ""
            yield f"did not act as meant: {measured} measured, {effect.get('expected')} expected{detail}"
    for rank in _outliving(run, fault) if fault.kills else ():
        yield f"killed rank {rank}, which yet went on stepping"


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
    """A fault that struck when no step and no checkpoint was left to be done, and that nobody started again over."""
    if fault.injected is None or not run.finished or not len(run.steps):
        return
    done = [int(run.steps.end.max()), *(event["at"] for event in run.checkpoints)]
    done += [process.started for process in run.processes]
    if fault.injected - run.uncertainty_ns > max(done):
        yield Verdict.INVALID, f"fault {fault.id} struck when the job had done all its work"


def _wrong_target(run: Timeline, record: FaultRecord, planned: dict[str, Any]) -> Iterator[Finding]:
    """It struck the ranks, or as many nodes, as were meant, and the job had them then."""
    if record.injected is None:
        return
    meant = Counter(target.get("rank") for target in planned.get("targets") or ())
    struck = Counter(target.get("rank") for target in record.targets)
    if meant and meant != struck:
        nodes = f"{struck.total()} nodes, not {meant.total()}"
        text = nodes if meant.keys() == {None} else f"ranks {_ranks(struck)}, not {_ranks(meant)}"
        yield Verdict.INVALID, f"fault {record.id} struck {text}"
    had = {(s.node, s.incarnation) for s in run.slots if s.allocated <= record.injected <= s.released}
    for target in record.targets:
        if (target.get("node"), target.get("incarnation", 1)) not in had:
            yield Verdict.INVALID, f"fault {record.id} struck {target.get('node')}, which the job did not have then"


def _healed_early(run: Timeline, fault: FaultRecord, planned: dict[str, Any]) -> Iterator[Finding]:
    """A fault with a duration acts for all of it, unless the job gets rid of its victim or is over before."""
    asked = str((planned.get("parameters") or {}).get("duration", ""))
    if not asked[:1].isdigit() or fault.injected is None:
        return  # it has no duration, or never acted
    if fault.healed is None:
        if run.outcome is not None and not fault.error:
            yield Verdict.INVALID, f"fault {fault.id} was never undone, though it was to last {asked}"
        return
    lasted, duration = fault.healed - fault.injected, parse_duration_ns(asked)
    nodes = {(target.get("node"), target.get("incarnation")) for target in fault.targets}
    ranks = {target.get("rank") for target in fault.targets} - {None}
    victim_gone = any(
        fault.injected <= exit_["at"] <= fault.healed + (REPORTED_WITHIN_NS if exit_["rank"] in ranks else 0)
        for exit_ in run.exits
        if (exit_["node"], exit_["incarnation"]) in nodes
    )
    over = not len(run.steps) or int(run.steps.end.max()) <= fault.healed
    if lasted < duration and not victim_gone and not over:
        text = f"was undone after {format_duration(lasted)}, before its {asked} were over"
        yield Verdict.INVALID, f"fault {fault.id} {text}"


def _ranks(found: Counter[Any]) -> str:
    return ", ".join(sorted(str(rank) for rank in found)) or "none"


def _ending(run: Timeline) -> Iterator[Finding]:
    last = run.segments[-1] if run.segments else None
    stuck = f"{last.phase} for {format_duration(last.end - last.begin)}" if last else "nothing"
    done = f"step {run.reached_step}" + (f" of {run.planned_steps}" if run.planned_steps else "")
    if run.outcome is None:
        yield Verdict.INCONCLUSIVE, "the harness's own log has no end: it was killed, or its log was cut"
    elif run.outcome == "interrupted":
        yield Verdict.INCONCLUSIVE, f"the run was interrupted at {done}: {run.outcome_reason or 'stopped by the user'}"
    elif run.outcome == "aborted":
        yield Verdict.FAIL, f"{run.outcome_reason or 'the run was aborted'}; reached {done}, stuck in {stuck}"
    elif run.outcome == "failed":
        yield Verdict.FAIL, f"the job failed at {done}: {run.outcome_reason}"
    elif not run.finished and run.dropped:
        yield Verdict.INCONCLUSIVE, f"the log ends at {done}, and {run.dropped} events were lost to a full disk"
    elif run.outcome != "completed":
        yield Verdict.INCONCLUSIVE, f"the run ended as {run.outcome!r}, which means nothing here"
    elif not run.finished:
        yield Verdict.FAIL, f"the job ended without an error at {done}"
    elif len(run.steps) and (kept := _kept_step(run)) < (run.planned_steps or 0):
        yield Verdict.FAIL, f"the job did {done}, but went back after it: it ended with the state of step {kept}"


def _kept_step(run: Timeline) -> int:
    """The last step of the history that the final state descends from."""
    return int(run.steps.step[run.steps.survives & run.steps.complete].max(initial=0))


def _left_untold(run: Timeline) -> Iterator[Finding]:
    """Nodes that left the job as a drained one does, or with 0 while others went on, though nobody took them or had
    given them a notice."""
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    kept = {(slot.node, slot.incarnation) for slot in run.slots if slot.kept}
    told = {(notice["node"], notice["incarnation"]) for notice in run.notices if notice.get("source") != "peer"}
    for exit_ in run.exits:
        place = (exit_["node"], exit_["incarnation"])
        left = exit_["code"] == EXIT_LEFT or (exit_["code"] == 0 and exit_["at"] < last)
        if exit_["rank"] is None and left and place in kept - told:
            at = format_duration(exit_["at"] - run.begin)
            text = f"{exit_['node']} left the job with {exit_['code']} at {at}; it had been given no notice"
            yield Verdict.FAIL, text


def _worlds(run: Timeline) -> Iterator[Finding]:
    """Ranks that go on without the others, and worlds smaller than the job allows."""
    steps, workload = run.steps, run.plan.get("workload") or {}
    least = int(workload.get("min_nodes") or 0) * int(workload.get("ranks_per_node") or 1)
    for number, epoch in enumerate(run.epochs):
        complete = run.progress.step[run.progress.epoch == number]
        last = int(complete.max()) if len(complete) else epoch.first - 1
        if epoch.last > last + 1:
            ahead = np.unique(steps.rank[(steps.epoch == number) & (steps.step > last + 1)]).tolist()
            text = f"ranks {ahead} of {epoch.size} went on to step {epoch.last} without the others, left at step {last}"
            yield (Verdict.INCONCLUSIVE if run.dropped else Verdict.FAIL), text
        if len(complete) and epoch.size < least:
            yield Verdict.FAIL, f"the job went on with {epoch.size} ranks; it needs at least {least}"


def _absent(run: Timeline) -> Iterator[Finding]:
    """Nodes that the job had from its begin to its end and never used, though no fault was aimed at them."""
    aimed = {target.get("node") for fault in run.faults for target in fault.targets}
    worked = {run.processes[index].node for epoch in run.epochs for index in epoch.processes}
    known = {slot.node for slot in run.slots}
    kept = {slot.node for slot in run.slots if slot.kept and slot.incarnation == 1}
    for node in sorted(kept - worked - aimed) if run.finished and worked <= known else ():
        yield Verdict.INCONCLUSIVE, f"{node} was there from begin to end, and had no part in any step"


def _restores(run: Timeline) -> Iterator[Finding]:
    """A start takes the newest committed checkpoint, or says why it takes an older one; it never needs to begin from
    scratch. Nothing is said about a run in which some fault may have spoilt the checkpoints, or the job went back by
    its own decision."""
    harmless = not any(fault.spoils for fault in run.faults if fault.injected is not None)
    went_back = len({epoch.world for epoch in run.epochs}) < len(run.epochs)
    if not harmless or went_back:
        return
    passed_over = any(process.fallback for process in run.processes)
    commits = [event for event in run.checkpoints if event["event"] == "checkpoint.committed"]
    for process in run.processes:
        if process.restored_step is None:
            continue
        newest = max((int(event["step"]) for event in commits if event["at"] < process.started), default=0)
        if process.restored_step < newest and (not passed_over or process.restored_step == 0):
            why = "and passed over all that was saved" if passed_over else "without a reason"
            text = f"rank {process.rank} resumed from step {process.restored_step} {why}"
            yield Verdict.FAIL, f"{text}, though a checkpoint of step {newest} had been committed"
            return


def _evidence(run: Timeline) -> Iterator[Finding]:
    if not run.plan:
        yield Verdict.INCONCLUSIVE, "the log holds no plan: what was asked for is not known"
    for problem in run.problems:
        yield Verdict.INCONCLUSIVE, problem
    for process in run.processes:
        if process.torn and process.exit_code in CLEAN_CODES:
            text = f"the log of rank {process.rank} on {process.node} is cut, though nothing killed it"
            yield Verdict.INCONCLUSIVE, text


SCORE = Job()
