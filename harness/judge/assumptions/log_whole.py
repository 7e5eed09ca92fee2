"""The log holds each line that was written, and can be read.

Gaps in the line numbers of a log show which lines are missing. No process is blamed for lines that were lost to a full
disk. Without line numbers, one missing step counts as a lost line if the process had the time to do the step and all
ranks have equal weights afterwards. The run is inconclusive if the harness's own log lacks lines; a fault-free run that
lacks lines is not used. Copies of a log or of a line are ignored, and lines are sorted by time. A log without a
complete line is accepted if its process was killed before the job completed another step.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.judge.thresholds import SPENT_SHARE
from harness.log.line_numbers import LineGap
from harness.timeline.lineage import NEVER
from harness.timeline.timeline import Timeline

LACKING = "the log lacks lines there, by their numbers"


def _broken(evidence: Analysis) -> Reasons:
    run = evidence.run
    if not run.plan:
        yield "the log holds no plan: what was asked for is not known"
    yield from run.problems
    for process in run.processes:
        if process.cut:
            yield f"the log of rank {process.rank} on {process.node} is cut, though nothing killed it"


def _lines_dropped(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    if _all_numbered(run):
        return f"{run.dropped} events were lost to a full disk" if _lacks_lines(evidence, ground, True) else ""
    known = [run.processes[row].dropped for row in ground.processes]
    lost = all(dropped >= ground.lines for dropped in known) if known else run.dropped
    return f"{run.dropped} events were lost to a full disk" if lost else ""


def _lines_lost(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    older = tuple(row for row in ground.processes if run.processes[row].gaps is None)
    numbered = len(older) < len(ground.processes) or _all_numbered(run)
    if numbered and not _lacks_lines(evidence, ground):
        return ""
    return _done_all_the_same(evidence, replace(ground, processes=older)) if older else LACKING * numbered


def _saved_all_the_same(evidence: Analysis, ground: Ground) -> str:
    run, last = evidence.run, evidence.run.planned_steps
    if run.finished or not any(each.step == last for each in evidence.saves.store.seen):
        return ""
    workers = [run.processes[row] for epoch in run.epochs[-1:] for row in epoch.processes]
    told = last in run.steps.step and any(worker.gaps != () for worker in workers)
    lost = told or any(worker.left is None for worker in workers)
    return f"but the harness saw a save of step {last}: lines may be lost" if lost else ""


def _lacks_lines(evidence: Analysis, ground: Ground, full_disk: bool = False) -> bool:
    run, rows = evidence.run, _tellers(evidence, ground)
    numbered = [run.processes[row].gaps for row in rows or range(len(run.processes))]
    missing = [
        sum(gap.lines for gap in gaps if gap.full_disk >= full_disk and _may_hold(gap, ground)) >= ground.lines
        for gaps in numbered
        if gaps is not None
    ]
    return (all if rows else any)(missing)


def _tellers(evidence: Analysis, ground: Ground) -> Sequence[int]:
    if ground.processes or not ground.steps:
        return ground.processes
    first, last = ground.steps[0], ground.steps[-1]
    jumps = ((each.process, jump) for each in evidence.run.stretches for jump in each.jumps)
    return sorted({process for process, (before, after) in jumps if before < last and after > first})


def _may_hold(gap: LineGap, ground: Ground) -> bool:
    if ground.steps:
        return gap.may_hold(ground.steps[0], ground.steps[-1])
    return ground.since is None or gap.until > ground.since


def _all_numbered(run: Timeline) -> bool:
    return bool(run.processes) and all(each.gaps is not None for each in run.processes)


def _done_all_the_same(evidence: Analysis, ground: Ground) -> str:
    run, (order, begins) = evidence.run, evidence.run.rows_by_process
    if len(ground.steps) != 1 or not ground.processes or any(evidence.jumps[row] > 1 for row in ground.processes):
        return ""
    (hole,), (by_step, steps) = ground.steps, evidence.rows_by_step
    others = by_step[np.searchsorted(steps, hole) : np.searchsorted(steps, hole, "right")]
    for process in ground.processes:
        mine = order[begins[process] : begins[process + 1]]
        after = int(np.searchsorted(run.steps.step[mine], hole))
        if after == len(mine):
            return ""
        of = run.processes[process]
        free = int(run.steps.end[mine[after - 1]]) if after else of.restored or of.rendezvous or of.started
        peers = others[run.steps.epoch[others] == run.steps.epoch[mine[after]]]
        took = (run.steps.end[peers] - run.steps.begin[peers]).min(initial=NEVER)
        if run.steps.begin[mine[after]] - free < SPENT_SHARE * took or not run.steps.weights[mine[after:]].any():
            return ""
    right = all(each.step <= hole for each in evidence.weights_apart[1])
    return "its time was spent, and the weights are right afterwards: a line may be lost" if right else ""


ASSUMPTION = Assumption(
    _broken,
    spoils=(
        Spoils(Kind.ABSENCE, _lines_dropped, "Free space where the event log is written, then run it again: {run}"),
        Spoils(Kind.ABSENCE, _lines_lost, "Run it again: {run}"),
        Spoils(Kind.REACHED, _saved_all_the_same, "Run it again: {run}"),
    ),
    order=2,
)
