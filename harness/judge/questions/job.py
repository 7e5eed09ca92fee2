"""The job as a whole: did it do what was asked, did the faults act, and is every death accounted for?

Always judged, whether or not the scenario says so: no other number means anything otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.emitter import EXIT_LEFT
from harness.judge.codes import Code, Doubt
from harness.judge.facts import ends
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.ends import End
from harness.judge.facts.observable import NO_STEPS, blindness
from harness.judge.score import Bounds, Finding, Score, ScoreResult, Verdict
from harness.timeline.phases import phase_words
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import format_duration

NAMED_DEATHS = 3  # kinds of them


class JobBounds(Bounds):
    """Nothing to set: a job must do its steps, and every death must be explained."""


class JobScore(Score):
    name = "job"
    section = "metrics"
    order = 0
    by_steps = False
    Bounds = JobBounds

    def score(self, evidence: Analysis, bounds: JobBounds | None) -> ScoreResult:
        run = evidence.run
        unexplained = list(ends.unexplained(run))
        blind = blindness(run, evidence.fault_free)
        reasons = [
            *(_blind_ending(run, blind) if blind else _ending(run)),
            *_left_without_notice(run),
        ]
        reasons += [*_worlds(run), *_absent(run)]
        reasons += [
            *_evidence(run),
            *_without_an_end(run),
            *_without_a_launcher(run, evidence.fault_free),
            *_ledger(run),
        ]
        reasons += [
            Finding(Verdict.INCONCLUSIVE, text, Code.END_UNEXPLAINED) for text in _unexplained(run, unexplained)
        ]
        values: dict[str, Any] = {
            "job_success": run.finished and run.outcome == "completed",
            "steps_done": run.reached_step,
            "steps_planned": run.planned_steps,
            "deaths": len(ends.deaths(run)),
            "deaths_unexplained": len(unexplained),
            "events_dropped": run.dropped,
            "logs_torn": len(run.torn),
        }
        return ScoreResult(values, reasons=reasons)


def _unexplained(run: Timeline, dead: Sequence[End]) -> Iterator[str]:
    """A line for deaths that end alike; the first few such lines, and how many deaths are in none of them."""
    alike: dict[object, list[End]] = {}
    for death in dead:
        key = death.rank is None, death.code, death.error, death.met, _cause(run, death.at)
        alike.setdefault(key, []).append(death)
    groups = list(alike.values())
    for group in groups[:NAMED_DEATHS]:
        title = f"unexplained death{'s' * (len(group) > 1)}"
        yield f"{title}: {ends.describe_alike(group, run.begin)} ({_cause(run, group[0].at)})"
    if rest := sum(len(group) for group in groups[NAMED_DEATHS:]):
        yield f"{rest} more unexplained death{'s' * (rest > 1)}"


def _cause(run: Timeline, at: int) -> str:
    spoiler = _never_past(run)
    if spoiler is None or at < (spoiler.injected or 0):
        return "no fault explains it"
    return f"it came after `{spoiler.id}` had damaged a checkpoint"


def _never_past(run: Timeline) -> FaultRecord | None:
    """The fault that damaged a checkpoint, of a job that restored nothing after it."""
    struck = [fault for fault in run.faults if fault.spoils and fault.injected is not None]
    if not struck or any((process.restored or 0) > (struck[-1].injected or 0) for process in run.processes):
        return None
    return struck[-1]


def _blind_ending(run: Timeline, blind: str) -> Iterator[Finding]:
    """Of a job whose steps are not known: a command that failed has failed, all else is not known."""
    yield Finding(Verdict.INCONCLUSIVE, blind, Code.JOB_BLIND)
    if run.outcome == "failed":
        yield Finding(Verdict.FAIL, f"the job failed: {run.outcome_reason}", Code.JOB_FAILED)
    elif run.outcome != "completed":
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"the run ended as {run.outcome or 'unknown'}: {run.outcome_reason}",
            Code.JOB_ENDED_OTHERWISE,
        )


def _ending(run: Timeline) -> Iterator[Finding]:
    last = run.segments[-1] if run.segments else None
    stuck = f", at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}" if last else ""
    done = f"step {run.reached_step}" + (f" of {run.planned_steps}" if run.planned_steps else "")
    if run.outcome is None:
        yield Finding(
            Verdict.INCONCLUSIVE,
            "the harness's log has no end: the harness was killed, or its log was cut",
            Code.JOB_NO_END,
        )
    elif run.outcome == "interrupted":
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"the run was interrupted at {done}: {run.outcome_reason or 'stopped by the user'}",
            Code.JOB_INTERRUPTED,
        )
    elif run.outcome == "aborted" and (run.plan.get("faults") and not any(f.injected is not None for f in run.faults)):
        reason = f"{run.outcome_reason or 'the run was aborted'} before any fault had struck; reached {done}"
        yield Finding(Verdict.INCONCLUSIVE, f"{reason}{stuck}", Code.JOB_ABORTED, Doubt.NOTHING_STRUCK)
    elif run.outcome == "aborted":
        yield Finding(
            Verdict.FAIL, f"{run.outcome_reason or 'the run was aborted'}; reached {done}{stuck}", Code.JOB_ABORTED
        )
    elif run.outcome == "failed":
        if "fail_fast" not in (run.plan.get("expect") or {}):
            spoiler = _never_past(run)
            after = f"; it restored nothing after `{spoiler.id}` had damaged a checkpoint" if spoiler else ""
            yield Finding(Verdict.FAIL, f"the job failed at {done}: {run.outcome_reason}{after}", Code.JOB_FAILED)
    elif run.outcome == "completed" and run.aborted is not None:
        yield Finding(
            Verdict.INCONCLUSIVE,
            "the harness gave the job up, and yet its log says that the job was completed",
            Code.JOB_CONTRADICTED_END,
        )
    elif run.outcome == "completed" and not len(run.steps):
        yield Finding(Verdict.INCONCLUSIVE, NO_STEPS, Code.JOB_NO_STEPS)
    elif not run.finished and run.dropped:
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"the log ends at {done}, and {run.dropped} events were lost to a full disk",
            Code.JOB_UNFINISHED,
            Doubt.LINES_DROPPED,
        )
    elif run.outcome != "completed":
        yield Finding(
            Verdict.INCONCLUSIVE, f"the run ended with the unknown outcome {run.outcome!r}", Code.JOB_ENDED_OTHERWISE
        )
    elif not run.finished:
        yield Finding(Verdict.FAIL, f"the job ended without an error, but only reached {done}", Code.JOB_UNFINISHED)
    elif len(run.steps) and (kept := _kept_step(run)) < (run.last_told_step or 0):
        yield Finding(
            Verdict.FAIL,
            f"the job reached {done}, but went back afterwards: it ended with the state of step {kept}",
            Code.JOB_WENT_BACK,
        )


def _kept_step(run: Timeline) -> int:
    """The last step of the history that the final state descends from."""
    return int(run.steps.step[run.steps.survives & run.steps.complete].max(initial=0))


def _left_without_notice(run: Timeline) -> Iterator[Finding]:
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
            text = f"{exit_['node']} left the job with exit code {exit_['code']} at {at}, without a notice"
            yield Finding(Verdict.FAIL, text, Code.END_WITHOUT_NOTICE)


def _worlds(run: Timeline) -> Iterator[Finding]:
    """Worlds smaller than the job allows."""
    least = run.planned_size.min_world_size or 0
    for number, epoch in enumerate(run.epochs):
        if epoch.size < least and (run.progress.epoch == number).any():
            yield Finding(
                Verdict.FAIL,
                f"the job went on with {epoch.size} ranks; it needs at least {least}",
                Code.WORLD_TOO_SMALL,
            )


def _absent(run: Timeline) -> Iterator[Finding]:
    """Nodes that the job had from its begin to its end and never used, though no fault was aimed at them."""
    aimed = {target.get("node") for fault in run.faults for target in fault.targets}
    worked = {run.processes[index].node for epoch in run.epochs for index in epoch.processes}
    known = {slot.node for slot in run.slots}
    kept = {slot.node for slot in run.slots if slot.kept and slot.incarnation == 1}
    for node in sorted(kept - worked - aimed) if run.finished and worked <= known else ():
        yield Finding(
            Verdict.INCONCLUSIVE, f"{node} was allocated from start to end, but took part in no step", Code.NODE_UNUSED
        )


def _evidence(run: Timeline) -> Iterator[Finding]:
    if not run.plan:
        yield Finding(
            Verdict.INCONCLUSIVE, "the log holds no plan: what was asked for is not known", Code.EVIDENCE_NO_PLAN
        )
    for problem in run.problems:
        yield Finding(Verdict.INCONCLUSIVE, problem, Code.EVIDENCE_PROBLEM)
    for process in run.processes:
        if process.cut:
            text = f"the log of rank {process.rank} on {process.node} is cut, though nothing killed it"
            yield Finding(Verdict.INCONCLUSIVE, text, Code.EVIDENCE_CUT_LOG)


def _without_an_end(run: Timeline) -> Iterator[Finding]:
    """Nodes that worked for the job and were its own to the end, and of whose command nobody told how it ended."""
    kept = {(slot.node, slot.incarnation) for slot in run.slots if slot.kept}
    kept &= {(p.node, p.incarnation) for p in run.processes if p.first_step is not None}
    ended = {(exit_["node"], exit_["incarnation"]) for exit_ in run.exits if exit_["rank"] is None} & kept
    over = run.outcome == "completed" and not run.beside.job_goes_on
    for node, _ in sorted(kept - ended) if over else ():
        yield Finding(Verdict.INCONCLUSIVE, f"how the command on {node} ended is not known", Code.END_COMMAND_UNKNOWN)


def _without_a_launcher(run: Timeline, fault_free: Timeline | None) -> Iterator[Finding]:
    """Nodes whose launcher left no log though others' did, so that nobody tells of the ends of their workers. A node
    that was taken may have taken its log along, and some jobs have fewer launchers than nodes, in every run."""
    usual = {p.node for p in fault_free.processes} - {node for node, _ in fault_free.launchers} if fault_free else set()
    taken = {(slot.node, slot.incarnation) for slot in run.slots if not slot.kept}
    worked = {(p.node, p.incarnation) for p in run.processes if p.first_step is not None}
    for node, _ in sorted(worked - run.launchers - taken) if run.launchers else ():
        if node not in usual:
            yield Finding(
                Verdict.INCONCLUSIVE,
                f"the launcher on {node} left no log: how its workers ended is not known",
                Code.END_NO_LAUNCHER,
            )


def _ledger(run: Timeline) -> Iterator[Finding]:
    """GPUs that worked and were never allocated, or were given back before: then the ledger lacks them."""
    released = {(slot.node, slot.incarnation, slot.local_rank): slot.released for slot in run.slots}
    begun = np.zeros(len(run.processes), np.int64)
    begun[run.steps.process] = run.steps.begin  # rows are in order of time: the last one counts
    for row, process in enumerate(run.processes):
        place = (process.node, process.incarnation, process.local_rank)
        if process.first_step is None or not released:
            continue
        if place not in released:
            text = f"rank {process.rank} did steps on the unallocated GPU {process.local_rank} of {process.node}"
        elif int(begun[row]) > released[place] + run.uncertainty_ns:
            text = f"rank {process.rank} did steps on {process.node} after the node was given back"
        else:
            continue
        yield Finding(Verdict.INCONCLUSIVE, f"{text}: the ledger is incomplete", Code.LEDGER_INCOMPLETE)
        return


SCORES = (JobScore(),)
