"""Spikes of the loss that do not pass, by the rule that the trainer uses, and the samples that it left out over them.

A trainer that goes back before a spike may leave out the samples that it met there, once, if it says which. Nothing
else is excused: there must be such a spike in its steps, and the samples must be those around it, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emitter import abnormal
from harness.judge.facts import losses
from harness.timeline.timeline import Bools, Ints, Steps, Timeline

BEFORE = 4 * abnormal.NORMS_KEPT  # steps from which the usual is known again; those of other spikes do not count


@dataclass(frozen=True)
class Spike:
    """Steps `since` to `seen` of one rank, the first ones of the spike; `rows` of the run's steps."""

    since: int
    seen: int
    rows: tuple[int, ...]
    begin: int  # ns
    end: int  # ns, of the step at which it was to be seen
    before: int  # row of the step from which samples may be left out

    def __str__(self) -> str:
        return f"from step {self.since} to step {self.seen} the loss or the gradient norm was far above the usual"


def spikes(run: Timeline) -> list[Spike]:
    """In order of time. Nothing is looked for where no fault and no word of the trainer is about any."""
    moments = [fault.injected for fault in run.faults if fault.diverges and fault.injected is not None]
    told = [alarm for alarm in run.anomalies if alarm.get("kind") == abnormal.DIVERGENCE]
    moments += [each["at"] for each in (*told, *run.left_out) if each["at"] >= run.begin]
    rows = _rows_of_one_rank(run)
    if not moments or not len(rows):
        return []
    first = int(np.searchsorted(run.steps.end[rows], min(moments))) - BEFORE
    return list(_found(run, rows[max(0, first) :]))


def seldom(run: Timeline) -> bool:
    """Whether the loss is told in less than half of the steps, so that a spike between them shows nowhere."""
    told = np.unique(run.steps.step[_rows_of_one_rank(run)])
    return len(told) < 2 or float(np.median(np.diff(told))) > 1


def _rows_of_one_rank(run: Timeline) -> Ints:
    """Of the lowest rank that tells a loss, in order of time, without steps whose update a loss scale left out.

    No number is a loss that is no number where most steps have one, else one that was not told.
    """
    steps = run.steps
    finite = np.isfinite(steps.loss)
    if not finite.any():
        return np.zeros(0, np.int64)
    rows: Ints = np.flatnonzero(steps.rank == steps.rank[finite].min())
    rows = rows[~_scaled(steps, rows)]
    return rows if 2 * int(finite[rows].sum()) > len(rows) else rows[finite[rows]]


def _scaled(steps: Steps, rows: Ints) -> Bools:
    """Which of these a loss scale left out. Going back takes the scale back, too: each life may skip as many."""
    odd = (steps.applied[rows] == 0) & ~np.isfinite(steps.grad_norm[rows])
    lives = np.split(odd, np.flatnonzero(np.diff(steps.step[rows]) <= 0) + 1)
    return np.concatenate([losses.by_scale(life) for life in lives])


def _found(run: Timeline, rows: Ints) -> Iterator[Spike]:
    """A step that is done again takes the place of itself and of all later ones."""
    watch, history = abnormal.Spikes(), list[int]()
    steps, losses, norms = run.steps.step, run.steps.loss, run.steps.grad_norm
    for row in rows.tolist():
        if history and steps[row] <= steps[history[-1]]:
            history = [each for each in history[-2 * BEFORE :] if steps[each] < steps[row]]
            watch = abnormal.Spikes()
            for each in history[-BEFORE:]:
                watch.step_done(float(losses[each]), float(norms[each]))
        history.append(row)
        if watch.step_done(float(losses[row]), float(norms[row])) and watch.in_a_row == abnormal.SPIKE_STEPS:
            mine = history[-watch.in_a_row :]
            before = history[max(0, len(history) - watch.in_a_row - abnormal.LEFT_OUT_BEFORE)]
            begin, end = int(run.steps.begin[mine[0]]), int(run.steps.end[row])
            yield Spike(int(steps[mine[0]]), int(steps[row]), tuple(mine), begin, end, before)


# What was left out


Range = tuple[int, int]
"""Places in the shuffled order: the first one, and how many."""


@dataclass(frozen=True)
class LeftOut:
    """`accepted`: sorted ranges that count as left out. `wrong`: what was told and is not so, one sentence each."""

    accepted: Sequence[Range] = ()
    wrong: Sequence[str] = ()
    unproven: Sequence[str] = ()  # what was told, may be so, and is not shown by the steps

    def within(self, begin: int, end: int) -> int:
        """How many of these places are accepted."""
        return sum(max(0, min(end, first + count) - max(begin, first)) for first, count in self.accepted)

    def moved(self, first: Ints) -> Ints:
        """Where batches begin, given where they would begin if nothing had been left out."""
        for begin, count in self.accepted:
            first = np.where(first >= begin, first + count, first)
        return first


def left_out(run: Timeline, found: Sequence[Spike]) -> LeftOut:
    """By what the trainer told, held against its steps."""
    accepted, wrong, unproven = list[tuple[Range, Spike | None]](), list[str](), list[str]()
    for event in run.left_out:
        places = int(event["first"]), int(event["count"])
        spike = next((each for each in reversed(found) if each.end <= event["at"] + run.uncertainty_ns), None)
        known = _merged([each for each, cause in accepted if cause is not spike])
        early = event["at"] < run.begin
        hidden = not early and _untold(run, int(event["at_step"]))
        problem = _of_before(run, places) if early or hidden else _problem(run, spike, event, known)
        problem = problem or ("" if early else _not_by_a_fault(run, event, spike))
        problem = (
            problem or _consumed(run, places, event["at"]) or _too_many(run, [each for each, _ in accepted], places)
        )
        told = f"the trainer said that it leaves out samples {_words(places)}, "
        if problem:
            wrong.append(told + problem)
        elif hidden:
            accepted.append((places, None))
            unproven.append(f"{told}but not all steps around step {event['at_step']} are told, which would show why")
        else:
            accepted.append((places, spike))
    return LeftOut(_merged([each for each, _ in accepted]), tuple(dict.fromkeys(wrong)), tuple(dict.fromkeys(unproven)))


def _untold(run: Timeline, seen: int) -> bool:
    """Whether a step that a spike seen at this step would consist of has no loss in the log: nothing shows it then."""
    told = np.append(run.steps.step[_rows_of_one_rank(run)], run.steps.step[run.steps.applied == 0])
    last = int(told.max(initial=0))
    return seen <= last and not np.isin(np.arange(seen - abnormal.SPIKE_STEPS + 1, seen + 1), told).all()


def _not_by_a_fault(run: Timeline, event: Mapping[str, Any], spike: Spike | None) -> str:
    """A trainer that diverges by itself may go back, too, but what it leaves out is skipped. A fault's spike begins
    while it acts, or within as many steps as a state may be spoilt before anybody sees it."""
    since, at = (spike.since, spike.end) if spike else (int(event["at_step"]), event["at"])
    for fault in run.faults:
        if not fault.diverges or fault.injected is None or fault.injected > at + run.uncertainty_ns:
            continue
        healed = run.end if fault.healed is None else fault.healed
        if since <= _last_spoilt(run.steps.step[run.steps.end <= healed]):
            return ""
    return f"but no fault accounts for a spike at step {since}"


def _too_many(run: Timeline, known: Sequence[Range], places: Range) -> str:
    """However often it goes back: a fault of so many steps spoils as many batches, and those around the last spike."""
    struck = [f for f in (*run.beside.earlier, *run.faults) if f.diverges and f.injected is not None]
    lasted = {fault.id: fault.spoilt_steps for fault in struck}.values()
    if None in lasted:
        return ""
    batches = sum(steps + abnormal.LEFT_OUT_STEPS for steps in lasted if steps is not None)
    most = batches * int(run.steps.count.max(initial=0))
    together = sum(count for _, count in _merged([*known, places]))
    return f"{together} in all, but the faults account for {most} at most" if together > most else ""


def _last_spoilt(done: Ints) -> int:
    return int(done.max(initial=0)) + abnormal.SPIKE_MARGIN_STEPS + abnormal.SPIKE_STEPS


def _of_before(run: Timeline, places: Range) -> str:
    """Its spike came before the window of this rehearsal: only how many a spike excuses is known."""
    most = abnormal.LEFT_OUT_STEPS * int(run.steps.count.max(initial=0))
    return f"but a spike excuses {most} at most" if places[1] > most else ""


def _problem(run: Timeline, spike: Spike | None, event: Mapping[str, Any], known: Sequence[Range]) -> str:
    """Why these samples may not be left out, or an empty text. `known`: what was left out for other spikes."""
    if spike is None or spike.seen != event["at_step"]:
        return f"but at step {event['at_step']} nothing shows that the training diverged"
    first, count = int(run.steps.first[spike.before]), int(run.steps.count[spike.before])
    begin, end = int(event["first"]), int(event["first"]) + int(event["count"])
    again = LeftOut(known).within(begin, end)  # it meets those that it left out before
    if first < 0 or count < 0 or begin < first or end > first + abnormal.LEFT_OUT_STEPS * count + again:
        around = _words((first, abnormal.LEFT_OUT_STEPS * count))
        return f"but those around the spike at step {spike.since} are {around}"
    return ""


def _consumed(run: Timeline, places: Range, since: int) -> str:
    """Whether the history that survives consumed some of them after all."""
    steps = run.steps
    told = steps.survives & steps.complete & (steps.first >= 0) & (steps.count > 0) & (steps.end > since)
    rows = np.flatnonzero(told & (steps.first < sum(places)) & (steps.first + steps.count > places[0]))
    return f"but consumed some of them at step {steps.step[rows].min()}" if len(rows) else ""


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """The same places, each once, in order."""
    found: list[Range] = []
    for first, count in sorted(ranges):
        if found and first <= sum(found[-1]):
            begin, known = found[-1]
            found[-1] = begin, max(known, first + count - begin)
        else:
            found.append((first, count))
    return found


def _words(places: Range) -> str:
    return f"{places[0]}–{places[0] + places[1] - 1}"
