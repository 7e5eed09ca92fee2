"""The log holds each line that was written, and can be read.

Gaps in the line numbers of a log show which lines are missing. No process is blamed for lines that were lost to a full
disk. Without line numbers, one line that a single log lacks counts as lost, unless its process had no time for the
step. The same step of several logs counts as lost only if all ranks have equal weights afterwards, and a commit only if
no look into the store shows that the checkpoint is missing. The run is inconclusive if the harness's own log lacks
lines; a fault-free run that lacks lines is not used. Copies of a log or line count once, and lines count in order of
time. A log without a complete line is no flaw if its process was killed, and the job completed no step while it ran.
"""

from collections.abc import Sequence

from harness.evidence.time_spent import time_spent
from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.judge.thresholds import SPENT_SHARE
from harness.log.line_numbers import LineGap

NO_NUMBERS = "the log has no line numbers, so a line may be lost"


def _broken(evidence: Analysis) -> Reasons:
    run = evidence.run
    if not run.plan:
        yield "the log holds no plan: what was asked for is not known"
    yield from run.problems
    for process in run.processes:
        if process.cut:
            yield f"the log of rank {process.rank} on {process.node} is cut, though nothing killed it"


def _lines_dropped(evidence: Analysis, ground: Ground) -> str:
    """Returns a text if the missing lines may be lost to a full disk, as their processes lost that many to it."""
    run = evidence.run
    if run.numbered:
        return f"{run.dropped} events were lost to a full disk" if _lacks_lines(evidence, ground, True) else ""
    known = [run.processes[row].dropped for row in ground.processes]
    lost = all(dropped >= ground.lines for dropped in known) if known else run.dropped
    return f"{run.dropped} events were lost to a full disk" if lost else ""


def _lines_lost(evidence: Analysis, ground: Ground) -> str:
    """Returns a text if lost lines explain the missing events: by gaps in line numbers, where lines have numbers."""
    run, rows = evidence.run, _tellers(evidence, ground)
    older = tuple(row for row in rows if run.processes[row].gaps is None)
    numbered = len(older) < len(rows) or run.numbered
    if numbered and not _lacks_lines(evidence, ground):
        return ""
    by_numbers = "the log lacks lines there, by their numbers" if numbered else ""
    return _one_line_each(evidence, older, ground) if older else by_numbers


def _commit_lost(evidence: Analysis, ground: Ground) -> str:
    """Returns a text if neither line numbers nor the store show whether one line on a commit was lost."""
    saves, seen = evidence.saves, evidence.saves.seen_steps
    none = seen is not None and max(seen, default=0) <= max(saves.steps, default=0)
    lost = ground.lines == 1 and saves.store.left is None and not none and not evidence.run.numbered
    return f"its commit is not told, and {NO_NUMBERS}" if lost else ""


def _last_line_lost(evidence: Analysis, ground: Ground) -> str:
    """Returns a text if one process alone did not log the last step, without line numbers, but had the time for it."""
    run, last = evidence.run, evidence.run.last_told_step or 0
    short = [each for each in run.stretches if each.epoch == len(run.epochs) - 1 and each.last < last]
    lone = [each.process for each in short] if [each.last for each in short] == [last - run.stride] else ()
    return _one_line_each(evidence, lone, Ground(Kind.REACHED, steps=(last,))) if lone else ""


def _saved_all_the_same(evidence: Analysis, ground: Ground) -> str:
    """Returns a text if the last step is not logged but the harness saw a save of this step, or an empty text."""
    run, last = evidence.run, evidence.run.planned_steps
    if run.finished or not any(each.step == last for each in evidence.saves.store.seen):
        return ""
    workers = [run.processes[row] for epoch in run.epochs[-1:] for row in epoch.processes]
    told = last in run.steps.step and any(worker.gaps != () for worker in workers)
    lost = told or any(worker.left is None for worker in workers)
    return f"but the harness saw a save of step {last}: lines may be lost" if lost else ""


def _lacks_lines(evidence: Analysis, ground: Ground, full_disk: bool = False) -> bool:
    """Returns True if all logs that should hold the absent events (if unknown: any log) lack that many lines."""
    run, rows = evidence.run, _tellers(evidence, ground)
    numbered = [run.processes[row].gaps for row in rows or range(len(run.processes))]
    missing = [
        sum(gap.lines for gap in gaps if gap.full_disk >= full_disk and _may_hold(gap, ground)) >= ground.lines
        for gaps in numbered
        if gaps is not None
    ]
    return (all if rows else any)(missing)


def _tellers(evidence: Analysis, ground: Ground) -> Sequence[int]:
    """Returns the processes that should have logged the steps: those of `ground`, else those that skip some."""
    if ground.processes or not ground.steps:
        return ground.processes
    first, last = ground.steps[0], ground.steps[-1]
    jumps = ((each.process, jump) for each in evidence.run.stretches for jump in each.jumps)
    return sorted({process for process, (before, after) in jumps if before < last and after > first})


def _may_hold(gap: LineGap, ground: Ground) -> bool:
    if ground.steps:
        return gap.may_hold(ground.steps[0], ground.steps[-1])
    return ground.since is None or gap.until > ground.since


def _one_line_each(evidence: Analysis, rows: Sequence[int], ground: Ground) -> str:
    """Returns a text if each process had the time for the step that its log, without line numbers, lacks. Several logs
    may lack it only if all weights are told and equal afterwards."""
    run, (order, begins) = evidence.run, evidence.run.rows_by_process
    if not ground.steps or ground.lines > 1 or any(run.processes[row].gaps is not None for row in rows):
        return ""
    first, last = ground.steps[0], ground.steps[-1]
    spent = (time_spent(run, row, first, last) for row in rows)
    holes = (sum(len(each.jumps) for each in run.stretches if each.process == row) for row in rows)
    if max(holes) > 1 or min(spent) < SPENT_SHARE:
        return ""
    mine = [order[begins[row] : begins[row + 1]] for row in rows]
    told = all(run.steps.weights[each][run.steps.step[each] > last].any() for each in mine)
    right = all(each.step <= last for each in evidence.weights_apart[1])
    why = "the weights are right afterwards: a line may be lost" if told else NO_NUMBERS
    return f"its time was spent, and {why}" if right and (told or len(rows) == 1) else ""


ASSUMPTION = Assumption(
    _broken,
    spoils=(
        Spoils(Kind.ABSENCE, _lines_dropped, "Free space where the event log is written, then run it again: {run}"),
        Spoils(Kind.ABSENCE, _lines_lost, "Run it again: {run}"),
        Spoils(Kind.COMMIT, _commit_lost, "Run it again: {run}"),
        Spoils(Kind.REACHED, _saved_all_the_same, "Run it again: {run}"),
        Spoils(Kind.REACHED, _last_line_lost, "Run it again: {run}"),
    ),
    order=2,
)
