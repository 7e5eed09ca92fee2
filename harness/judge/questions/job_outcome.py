"""The job as a whole: did it do what was asked, did the faults act, and is every death accounted for?

Always judged, whether or not the scenario says so: no other number means anything otherwise.

Fail fast: a job that cannot go on ends soon, by itself, and says why. Its GPUs are free for somebody else. Judged only
where a scenario expects it, as with a replacement that never comes. Then a failed job is what is asked for, and one
that goes on to its last step has not met the expectation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.judge.bounds import FailFastBounds, JobBounds
from harness.judge.facts import deaths, launchers
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import Places
from harness.judge.facts.deaths import End
from harness.judge.facts.reported import NO_STEPS, blindness
from harness.judge.score import (
    Evidence,
    Expectation,
    S,
    Score,
    ScoreResult,
    at_most,
    line,
    shown_ns,
)
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, Verdict, failed, unknown
from harness.node.emitter import EXIT_LEFT
from harness.timeline.lineage import NEVER
from harness.timeline.phase_names import phase_words
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import counted, format_duration

SHOWN_MAX = 200  # characters of the job's last words in a report
NAMED_DEATHS = 3  # kinds of them


class JobScore(Score):
    name = "job"
    section = "metrics"
    order = 0
    explained_by = ("saves.one_writer",)
    by_steps = False

    def score(self, evidence: Analysis, bounds: JobBounds | None) -> ScoreResult:
        run, places = evidence.run, evidence.places
        found = deaths.ends_of(run)
        unexplained = list(deaths.unexplained(run, found))
        blind = blindness(run, evidence.fault_free)
        contradicted = launchers.contradictions(run, evidence.fault_free_runs)
        reasons = [
            *_ended(run, blind),
            *_left_without_notice(run, places),
            *_worlds(run),
            *_absent(run),
            *_evidence(run),
            *_lost_lines(evidence),
            *_untold_ends(evidence),
            *(unknown(Code.LAUNCHERS_CONTRADICT, text) for text in contradicted),
            *_ledger(run, places),
            *_unexplained(run, unexplained),
        ]
        values: dict[str, Any] = {
            "job_success": run.finished and run.outcome == "completed",
            "steps_done": run.reached_step,
            "steps_planned": run.planned_steps,
            "deaths": sum(end.code != 0 for end in found),
            "deaths_unexplained": len(unexplained),
            "events_dropped": run.dropped,
            "logs_torn": len(run.torn),
        }
        return ScoreResult(values, reasons=reasons)


def _ended(run: Timeline, blind: str) -> Iterator[Claim]:
    """A command that failed has failed, also where no step is known. What the log tells of the end may also contradict
    itself, or say nothing of the trainer."""
    at, reason = "" if blind else f" at {_done(run)}", run.outcome_reason
    if run.outcome == "failed" and (blind or "fail_fast" not in (run.plan.get("expect") or {})):
        spoiler = None if blind else _never_past(run)
        after = f"; it restored nothing after `{spoiler.id}` had damaged a checkpoint" if spoiler else ""
        yield failed(Code.JOB_FAILED, f"the job failed{at}: {reason}{after}")
    if blind:
        yield unknown(Code.JOB_BLIND, blind)
    if run.outcome is None:
        yield unknown(Code.JOB_NO_END, "the harness's log has no end: the harness was killed, or its log was cut")
    elif run.outcome == "interrupted" and run.beside.cut_short:
        yield unknown(Code.JOB_INTERRUPTED, f"it was {run.beside.cut_short}: {reason or 'no reason is given'}")
    elif run.outcome == "interrupted":
        yield unknown(Code.JOB_INTERRUPTED, f"the run was interrupted{at}: {reason or 'stopped by the user'}")
    elif run.outcome == "completed":
        yield from () if blind else _completed(run)
    elif run.outcome == "aborted" and not blind:
        given_up = reason or "the run was aborted"
        if run.plan.get("faults") and first_strike(run.faults) == NEVER:
            text = f"{given_up} before any fault had struck; {_reached(run)}"
            yield unknown(Code.JOB_ABORTED, text, Doubt.NOTHING_STRUCK)
        else:
            yield failed(Code.JOB_ABORTED, f"{given_up}; {_reached(run)}", Ground(Kind.DURATION))
    elif run.outcome != "failed":
        yield unknown(Code.JOB_ENDED_OTHERWISE, f"the run ended as {run.outcome}: {reason}")


def _completed(run: Timeline) -> Iterator[Claim]:
    """The last step is done, and the final state has it."""
    kept = int(run.steps.step[run.steps.survives & run.steps.complete].max(initial=0))  # the final state is of it
    if run.aborted is not None:
        text = "the harness gave the job up, and yet its log says that the job was completed"
        yield unknown(Code.JOB_CONTRADICTED_END, text)
    elif not len(run.steps):
        yield unknown(Code.JOB_NO_STEPS, NO_STEPS)
    elif not run.finished:
        text = f"the job ended without an error, but only reached {_done(run)}"
        since = int(run.progress.end.max(initial=run.begin))
        yield failed(Code.JOB_UNFINISHED, text, Ground(Kind.ABSENCE, since=since), Ground(Kind.REACHED))
    elif kept < (run.last_told_step or 0):
        text = f"the job reached {_done(run)}, but went back afterwards: it ended with the state of step {kept}"
        yield failed(Code.JOB_WENT_BACK, text)


def _done(run: Timeline) -> str:
    return f"step {run.reached_step}" + (f" of {run.planned_steps}" if run.planned_steps else "")


def _reached(run: Timeline) -> str:
    last = run.segments[-1] if run.segments else None
    stuck = f", at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}" if last else ""
    return f"reached {_done(run)}{stuck}"


def _never_past(run: Timeline) -> FaultRecord | None:
    """The fault that damaged a checkpoint, of a job that restored nothing after it."""
    struck = [fault for fault in run.faults if fault.spoils and fault.injected is not None]
    if not struck or any((process.restored or 0) > (struck[-1].injected or 0) for process in run.processes):
        return None
    return struck[-1]


def _unexplained(run: Timeline, dead: Sequence[End]) -> Iterator[Claim]:
    """A line for deaths that end alike; the first few such lines, and how many deaths are in none of them."""
    spoiler = _never_past(run) if dead else None
    alike: dict[object, list[End]] = {}
    for death in dead:
        spoilt = spoiler is not None and death.at >= (spoiler.injected or 0)
        alike.setdefault((death.rank is None, death.code, death.error, death.met, spoilt), []).append(death)
    groups = list(alike.items())
    lines = []
    for (*_, spoilt), group in groups[:NAMED_DEATHS]:  # type: ignore[misc]
        damaged = f"it came after `{spoiler.id}` had damaged a checkpoint" if spoilt and spoiler else ""
        told = deaths.describe_alike(group, run.begin)
        lines.append(f"unexplained death{'s' * (len(group) > 1)}: {told} ({damaged or 'no fault explains it'})")
    if rest := sum(len(group) for _, group in groups[NAMED_DEATHS:]):
        lines.append(f"{rest} more unexplained death{'s' * (rest > 1)}")
    yield from (unknown(Code.END_UNEXPLAINED, text) for text in lines)


def _left_without_notice(run: Timeline, places: Places) -> Iterator[Claim]:
    """Nodes that left the job as a drained one does, or with 0 while others went on, though nobody took them or had
    given them a notice."""
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    told = {(notice["node"], notice["incarnation"]) for notice in run.notices if notice.get("source") != "peer"}
    for exit_ in run.exits:
        left = exit_["code"] == EXIT_LEFT or (exit_["code"] == 0 and exit_["at"] < last)
        if exit_["rank"] is None and left and (exit_["node"], exit_["incarnation"]) in places.kept - told:
            at = format_duration(exit_["at"] - run.begin)
            text = f"{exit_['node']} left the job with exit code {exit_['code']} at {at}, without a notice"
            yield failed(Code.END_WITHOUT_NOTICE, text)


def _worlds(run: Timeline) -> Iterator[Claim]:
    """Worlds smaller than the job allows."""
    least = run.planned_size.min_world_size or 0
    stepped = np.bincount(run.progress.epoch, minlength=len(run.epochs)) > 0
    for number, epoch in enumerate(run.epochs):
        if epoch.size < least and stepped[number]:
            text = f"the job went on with {counted(epoch.size, 'rank')}; it needs at least {least}"
            yield failed(Code.WORLD_TOO_SMALL, text)


def _absent(run: Timeline) -> Iterator[Claim]:
    """Nodes that the job had from its begin to its end and never used, though no fault was aimed at them."""
    aimed = {target.get("node") for fault in run.faults for target in fault.targets}
    worked = {run.processes[index].node for epoch in run.epochs for index in epoch.processes}
    known = {slot.node for slot in run.slots}
    kept = {slot.node for slot in run.slots if slot.kept and slot.incarnation == 1}
    for node in sorted(kept - worked - aimed) if run.finished and worked <= known else ():
        yield unknown(Code.NODE_UNUSED, f"{node} was allocated from start to end, but took part in no step")


def _evidence(run: Timeline) -> Iterator[Claim]:
    if not run.plan:
        yield unknown(Code.EVIDENCE_NO_PLAN, "the log holds no plan: what was asked for is not known")
    yield from (unknown(Code.EVIDENCE_PROBLEM, problem) for problem in run.problems)
    for process in run.processes:
        if process.cut:
            text = f"the log of rank {process.rank} on {process.node} is cut, though nothing killed it"
            yield unknown(Code.EVIDENCE_CUT_LOG, text)


def _lost_lines(evidence: Analysis) -> Iterator[Claim]:
    """A living process wrote all of its lines: what its log lacks was lost on its way here, or removed."""
    for each in evidence.lost_lines:
        if not each.killed:
            yield failed(Code.EVIDENCE_LINES_LOST, f"{each.words}, though its process lived: they were lost or removed")


def _untold_ends(evidence: Analysis) -> Iterator[Claim]:
    """Nodes that worked for the job to its end, and of whose command nobody told how it ended. And nodes without a
    launcher log, on a job whose other nodes have one: how their workers ended is unknown. A node that was taken may
    have taken its log along, and some jobs have fewer launchers than nodes, in every run."""
    run, fault_free, kept = evidence.run, evidence.fault_free, evidence.places.kept
    worked = {(p.node, p.incarnation) for p in run.processes if p.first_step is not None}
    ended = {(exit_["node"], exit_["incarnation"]) for exit_ in run.exits if exit_["rank"] is None}
    over = run.outcome == "completed" and not run.beside.job_goes_on
    for node, _ in sorted((kept & worked) - ended) if over else ():
        yield unknown(Code.END_COMMAND_UNKNOWN, f"how the command on {node} ended is not known")
    heard = {launcher.key for launcher in run.launchers}
    usual = {p.node for p in fault_free.processes} if fault_free else set()
    usual -= {launcher.key[0] for launcher in fault_free.launchers} if fault_free else set()
    taken = {(slot.node, slot.incarnation) for slot in run.slots if not slot.kept}
    for node, _ in sorted(worked - heard - taken) if heard else ():
        if node not in usual:
            text = f"the launcher on {node} left no log: how its workers ended is not known"
            yield unknown(Code.END_NO_LAUNCHER, text)


def _ledger(run: Timeline, places: Places) -> Iterator[Claim]:
    """GPUs that worked and were never allocated, or were given back before: then the ledger lacks them."""
    released = {(slot.node, slot.incarnation, slot.local_rank): slot.released for slot in run.slots}
    for row, process in enumerate(run.processes if released else ()):
        place = (process.node, process.incarnation, process.local_rank)
        if process.first_step is None:
            continue
        if place not in released:
            text = f"rank {process.rank} did steps on the unallocated GPU {process.local_rank} of {process.node}"
        elif int(places.last_begin[row]) > released[place] + run.uncertainty_ns:
            text = f"rank {process.rank} did steps on {process.node} after the node was given back"
        else:
            continue
        yield unknown(Code.LEDGER_INCOMPLETE, f"{text}: the ledger is incomplete")
        return


class FailFast(Score):
    name = "fail_fast"
    order = 12

    def score(self, evidence: Evidence, bounds: FailFastBounds | None) -> ScoreResult:
        if bounds is None:
            return ScoreResult({})
        run = evidence.run
        kept = {(slot.node, slot.incarnation) for slot in run.slots if slot.kept}
        ends = (e["at"] for e in run.exits if e["rank"] is None and (e["node"], e["incarnation"]) in kept)
        ended = max(ends, default=None)  # the last command, of the nodes that no fault took
        struck = first_strike(run.faults)
        taken = held = None
        if struck < NEVER and ended is not None:
            taken = None if ended < struck else ended - struck
            # GPU time that the job held between the fault and its end
            spans = (min(slot.released, ended) - max(slot.allocated, struck) for slot in run.slots)
            held = sum(max(0, each) for each in spans) / S
        values = {"seconds": None if taken is None else taken / S, "gpu_seconds": held}
        if reason := _did_not_fail(run):
            cut = run.outcome not in ("completed", "aborted")
            verdict, doubt = (Verdict.INCONCLUSIVE, Doubt.RUN_CUT_SHORT) if cut else (Verdict.FAIL, "")
            limit = f"≤ {format_duration(bounds.max)}"
            return ScoreResult(
                values, [Expectation("fail_fast.max", limit, "it did not", verdict, reason, doubt=doubt)]
            )
        late = f"the job held its GPUs for {format_duration(taken)} after the fault" if taken is not None else ""
        lines = [at_most("fail_fast.max", taken, bounds.max, shown_ns, late if (taken or 0) > bounds.max else "")]
        why = ""
        if bounds.says is not None:
            told, why = run.outcome_reason[:SHOWN_MAX], " and said why"
            good = bounds.says.casefold() in run.outcome_reason.casefold()
            reason = "" if good else f"the job did not say {bounds.says!r}, but: {told or 'nothing'}"
            lines.append(line("fail_fast.says", repr(bounds.says), told or "—", reason))
        return ScoreResult(values, lines, summary=f"the job gave up {shown_ns(taken)} after the fault{why}")


def _did_not_fail(run: Timeline) -> str:
    if run.outcome == "completed":
        return "the job went on to its end; the scenario expects that it gives up"
    if run.outcome == "aborted":
        return f"the job did not give up by itself: {run.outcome_reason or 'the run was aborted'}"
    return "" if run.outcome == "failed" else f"the run ended as {run.outcome or 'unknown'}"


SCORES = (JobScore(), FailFast())
