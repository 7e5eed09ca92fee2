"""Finds abnormal steps of a training, and checks the trainer's alarms about abnormal steps.

A spike is a rise of the loss or gradient norm for several steps. Judge and trainer find spikes by the same rule. After
a spike, a trainer may roll back steps and leave out the samples around the spike once. The trainer must report the
samples that it leaves out, and the logged steps must show the spike. The logged steps must also confirm each alarm that
a trainer raises while no fault is active.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.evidence import losses, samples
from harness.evidence.by_time import Window, healed_at, union
from harness.evidence.logs import Evidence
from harness.evidence.ranks import Abnormal
from harness.evidence.work import Work
from harness.judge.facts import tellers
from harness.judge.facts.known import Odd
from harness.judge.thresholds import ALARM_STEPS, EXCESS_MIN, SETTLING_STEPS, SHARE_BORNE_OUT, SPIKE_MEMORY
from harness.log.reading import is_told
from harness.node.emitter import abnormal
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import Moments, Spans, grouped, last_by
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Ints, Timeline

UNTOLD = "and the trainer did not say so"
Event = Mapping[str, Any]  # of the log: left-out samples, or an alarm


@dataclass(frozen=True)
class Spike(Abnormal):
    """A spike: one rank's loss or gradient norm is far above the usual value from step `step` to step `seen`."""

    seen: int
    end: int  # ns, of the step `seen`
    before: int  # row of the step from which samples may be left out


def spikes(run: Timeline) -> list[Spike]:
    """Returns the spikes of a run's loss or gradient norm in order of time. The search begins shortly before the first
    sign of a spike: a fault that makes the loss diverge, an alarm about divergence, or a report of left-out samples."""
    moments = [acted_at(fault) for fault in diverging(run.faults)]
    told = [alarm for alarm in run.anomalies if alarm.get("kind") == abnormal.DIVERGENCE]
    moments += [each["at"] for each in (*told, *run.left_out) if each["at"] >= run.begin]
    rows = _rows_of_one_rank(run)
    if not moments or not len(rows):
        return []
    first = int(np.searchsorted(run.steps.end[rows], min(moments))) - SPIKE_MEMORY
    return list(_found(run, rows[max(0, first) :]))


def diverging(faults: Iterable[FaultRecord]) -> Sequence[FaultRecord]:
    return [fault for fault in faults if fault.diverges and fault.injected is not None]


def unseen(evidence: Evidence) -> str:
    """Returns a text if a fault can make the loss diverge, but too few steps have a logged loss to detect a spike."""
    told = np.unique(evidence.run.steps.step[_rows_of_one_rank(evidence.run)])
    if not diverging(evidence.run.faults) or (len(told) > 1 and float(np.median(np.diff(told))) <= 1):
        return ""
    return f"the loss is not told in each step, and a spike lasts {abnormal.SPIKE_STEPS} of them"


def _rows_of_one_rank(run: Timeline) -> Ints:
    steps = run.steps
    told = is_told(steps.loss)
    if not told.any():
        return np.zeros(0, np.int64)
    rows: Ints = np.flatnonzero(steps.rank == steps.rank[told].min())
    odd = (steps.applied[rows] == 0) & ~np.isfinite(steps.grad_norm[rows])
    # A rollback also resets the loss scale, so the steps after it may skip as many again.
    lives = np.split(odd, np.flatnonzero(np.diff(steps.step[rows]) <= 0) + 1)
    rows = rows[~np.concatenate([losses.by_scale(life) for life in lives])]
    return rows[told[rows]]


def _found(run: Timeline, rows: Ints) -> Iterator[Spike]:
    watch, history = abnormal.Spikes(), list[int]()
    steps, losses, norms = run.steps.step, run.steps.loss, run.steps.grad_norm
    for row in rows.tolist():
        if history and steps[row] <= steps[history[-1]]:
            del history[bisect.bisect_left(history, steps[row], key=steps.__getitem__) :]
            watch = abnormal.Spikes()
            for each in history[-SPIKE_MEMORY:]:
                watch.step_done(float(losses[each]), float(norms[each]))
        history.append(row)
        if watch.step_done(float(losses[row]), float(norms[row])) and watch.in_a_row == abnormal.SPIKE_STEPS:
            mine = history[-watch.in_a_row :]
            before = history[max(0, len(history) - watch.in_a_row - abnormal.LEFT_OUT_BEFORE)]
            first, seen = int(steps[mine[0]]), int(steps[row])
            begin, survives = int(run.steps.begin[mine[0]]), bool(run.steps.survives[mine].any())
            words = f"from step {first} to step {seen} the loss or the gradient norm was far above the usual"
            may_be_named = first, seen + abnormal.SPIKE_STEPS
            yield Spike(words, first, begin, survives, may_be_named, (), seen, int(run.steps.end[row]), before)


# Left-out samples: ranges of positions in the shuffled order, without the end


@dataclass(frozen=True)
class LeftOut(samples.LeftOut):
    """The samples that a trainer left out. `odd` lists reports of left-out samples that logged steps do not confirm."""

    odd: Sequence[Odd] = ()


Accepted = list[tuple[Window, Spike | None]]  # ranges of positions, and the spike around which each was left out


def left_out(run: Timeline, found: Sequence[Spike]) -> LeftOut:
    """Checks the trainer's reports of left-out samples against the trainer's logged steps."""
    if not run.left_out:
        return LeftOut()
    accepted, odd = Accepted(), list[Odd]()
    told_steps = np.union1d(run.steps.step[_rows_of_one_rank(run)], run.steps.step[run.steps.applied == 0])
    for event in run.left_out:
        places, seen = _places(event), int(event["at_step"])
        spike = next((each for each in reversed(found) if each.end <= event["at"] + run.uncertainty_ns), None)
        # The spike is hidden if one of its steps has no loss in the log.
        first, last = np.searchsorted(told_steps, [seen - abnormal.SPIKE_STEPS + 1, seen + 1])
        hidden = bool(seen <= told_steps.max(initial=0) and last - first < abnormal.SPIKE_STEPS)
        hidden &= event["at"] >= run.begin
        problem = next(_problems(run, event, spike, hidden, accepted), "")
        text = f"the trainer said that it leaves out samples {_words(places)}"
        if problem:
            odd.append(Odd(f"{text}, {problem}"))
            continue
        accepted.append((places, None if hidden else spike))
        if hidden:
            why = f"but not all steps around step {seen} are told, which would show why"
            odd.append(Odd(f"{text}, {why}", tellers.HIDDEN_SPIKE))
    return LeftOut(union(each for each, _ in accepted), tuple(dict.fromkeys(odd)))


def _problems(run: Timeline, event: Event, spike: Spike | None, hidden: bool, accepted: Accepted) -> Iterator[str]:
    (begin, end), early, steps = _places(event), event["at"] < run.begin, run.steps
    largest = int(steps.count.max(initial=0))
    if early or hidden:
        if end - begin > abnormal.LEFT_OUT_STEPS * largest:
            yield f"but a spike excuses {abnormal.LEFT_OUT_STEPS * largest} at most"
    elif spike is None or spike.seen != event["at_step"]:
        yield f"but at step {event['at_step']} nothing shows that the training diverged"
    else:
        first, batches = int(steps.first[spike.before]), abnormal.LEFT_OUT_STEPS * int(steps.count[spike.before])
        known = LeftOut(union(each for each, cause in accepted if cause is not spike))
        again = known.within(begin, end)  # samples that were already left out before
        if first < 0 or begin < first or end > first + batches + again:
            yield f"but those around the spike at step {spike.step} are {_words((first, first + batches))}"
    since, at = (spike.step, spike.end) if spike else (int(event["at_step"]), event["at"])
    if not early and not _by_a_fault(run, since, at):
        yield f"but no fault accounts for a spike at step {since}"
    told = steps.survives & steps.complete & (steps.first >= 0) & (steps.end > event["at"])
    consumed = told & (np.maximum(steps.first, begin) < np.minimum(steps.first + steps.count, end))
    if consumed.any():
        yield f"but consumed some of them at step {steps.step[consumed].min()}"
    # The limit for all rollbacks together: for each fault, the batches that it spoiled and those around one spike.
    lasted = {fault.id: fault.spoilt_steps for fault in diverging((*run.beside.earlier, *run.faults))}.values()
    most = sum(lasts + abnormal.LEFT_OUT_STEPS for lasts in lasted if lasts is not None) * largest
    together = sum(until - first for first, until in union([*(each for each, _ in accepted), (begin, end)]))
    if None not in lasted and together > most:
        yield f"{together} in all, but the faults account for {most} at most"


def _by_a_fault(run: Timeline, since: int, at: int) -> bool:
    for fault in diverging(run.faults):
        last = Work(run).furthest(healed_at(run, fault))
        soon = since <= last + abnormal.SPIKE_MARGIN_STEPS + abnormal.SPIKE_STEPS
        if soon and acted_at(fault) <= at + run.uncertainty_ns:
            return True
    return False


def _places(event: Event) -> Window:
    return int(event["first"]), int(event["first"]) + int(event["count"])


def _words(places: Window) -> str:
    return f"{places[0]}–{places[1] - 1}"


# Alarms


class Said:
    """An index of the trainer's alarms of one kind, by the step that each alarm names and by the time of each alarm."""

    def __init__(self, run: Timeline, kind: str):
        alarms = [alarm for alarm in run.anomalies if alarm.get("kind") == kind]
        self.all: Sequence[Event] = alarms
        self._of_steps = Moments((alarm["at_step"], alarm) for alarm in alarms if alarm.get("at_step") is not None)
        self._of_none = max((alarm["at"] for alarm in alarms if alarm.get("at_step") is None), default=-NEVER)
        self._newest = {each.get("suspect"): each["at"] for each in sorted(alarms, key=lambda each: each["at"])}
        self._last = max(self._newest.values(), default=-NEVER)
        self._margin = run.uncertainty_ns

    def of(self, begin: int, steps: tuple[int, int] | None, ranks: Sequence[int] = ()) -> bool:
        """Returns True if an alarm since time `begin` names a step in `steps`, or no step. If `steps` is `None`, an
        alarm with any step counts, but only if the alarm names no rank or a rank in `ranks`. An empty `ranks` stands
        for all ranks."""
        since = begin - self._margin
        if steps is None and ranks:
            return any(self._newest.get(rank, -NEVER) >= since for rank in (None, *ranks))
        if steps is None:
            return bool(self._last >= since)
        return self._of_none >= since or any(alarm["at"] >= since for alarm in self._of_steps.within(*steps))


def unanswered(run: Timeline, kind: str, found: Iterable[Abnormal]) -> Iterator[Odd]:
    """Yields a text for each abnormal event that the trainer did not report as `kind`, or did not roll back."""
    said = Said(run, kind)
    for each in found:
        told = said.of(each.begin, each.may_be_named, each.ranks)
        if not told or each.survives:
            other = "and the trainer named other ranks" if said.of(each.begin, each.may_be_named) else UNTOLD
            yield Odd(f"{each.words}{'; the trainer said so, and went on with these steps' if told else f', {other}'}")


def misnamed(run: Timeline, kind: str, faults: Iterable[FaultRecord]) -> Iterator[Odd]:
    """Yields a text for each alarm of this kind that names a rank, but none on which a fault in `faults` had acted. An
    alarm is about a fault until the fault has ended, some steps are done, and an alarm has named its rank."""
    acted = [(acted_at(fault) - run.uncertainty_ns, fault) for fault in faults if fault.injected is not None]
    named, ends = set[Any](), np.append(run.progress.end, run.end)

    def settled(healed: int | None) -> int:
        last = int(np.searchsorted(ends, healed or run.end)) + SETTLING_STEPS
        return int(ends[min(last, len(ends) - 1)])

    for alarm in Said(run, kind).all if acted else ():
        before = [fault for at, fault in acted if at <= alarm["at"]]
        before = [each for each in before if alarm["at"] <= settled(each.healed) or named.isdisjoint(_ranks(each))]
        struck: set[Any] = set[Any]().union(*map(_ranks, before))
        named.add(alarm.get("suspect"))
        if alarm.get("suspect") is not None and struck and struck.isdisjoint((None, alarm["suspect"])):
            ranks, names = (", ".join(map(str, each)) for each in (sorted(struck), (fault.id for fault in before)))
            yield Odd(f"the trainer named rank {alarm['suspect']}, but fault {names} acted on rank {ranks}")


def _ranks(fault: FaultRecord) -> set[Any]:
    return {target.get("rank") for target in fault.targets}


def false_alarms(run: Timeline, at_work: Sequence[tuple[int, int]], found: Sequence[Spike]) -> list[Event]:
    """Returns alarms that no logged steps confirm, except those raised in a disturbance (`at_work`) or soon after."""
    over = np.append(run.progress.end, run.end)
    last = np.searchsorted(over, [end for _, end in at_work]) + SETTLING_STEPS
    late = over[np.minimum(last, len(over) - 1)].tolist()
    windows = Spans((begin, max(end, at), True) for (begin, end), at in zip(at_work, late, strict=True))
    steps = _Borne(run, found)
    outside = [alarm for alarm in run.anomalies if not any(windows.at(alarm["at"]))]
    return [alarm for alarm in outside if not (steps.slow_indeed(alarm) or steps.by_the_rules(alarm))]


def contradicted(run: Timeline, found: Sequence[Spike]) -> list[Event]:
    """Returns alarms that logged steps contradict, such as a non-finite value reported where all values are finite."""
    shown = (abnormal.DIVERGENCE, *abnormal.OF_STEPS)
    rows = np.flatnonzero(np.isfinite(run.steps.loss) & np.isfinite(run.steps.grad_norm))
    finite = set(zip(run.steps.process[rows].tolist(), run.steps.step[rows].tolist(), strict=True))
    told = [alarm for alarm in run.anomalies if alarm.get("kind") == "nonfinite"]
    wrong = [alarm for alarm in told if (alarm["process"], alarm.get("at_step")) in finite]
    return wrong + [alarm for alarm in false_alarms(run, (), found) if alarm.get("kind") in shown]


def about(alarm: Event) -> int:
    """Returns the rank that an alarm is about, which need not be the rank that raised the alarm."""
    return int(alarm["rank"] if alarm.get("suspect") is None else alarm["suspect"])


class _Borne:
    """Checks a trainer's alarms against logged steps. Ranks on hosts that are busy with other work count as
    stragglers."""

    def __init__(self, run: Timeline, found: Sequence[Spike]):
        self.run, self.spikes = run, dict[int, int]()  # step `seen` → when its spike can be seen
        for spike in found:
            self.spikes[spike.seen] = min(spike.end, self.spikes.get(spike.seen, spike.end))

    def _before(self, alarm: Event) -> Ints:
        steps, (order, begins), mine = self.run.steps, self.run.rows_by_process, alarm["process"]
        if (rank := about(alarm)) != alarm["rank"]:
            started = last_by(self._lives.get(rank, []), alarm["at"])
            mine = mine if started is None else started
        rows: Ints = order[begins[mine] : begins[mine + 1]]
        rows = rows[steps.end[rows] <= alarm["at"]]
        named = np.flatnonzero(steps.step[rows] == alarm.get("at_step"))
        return rows[: named[-1] + 1] if len(named) else rows

    @cached_property
    def _lives(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        started = sorted((process.started, row) for row, process in enumerate(self.run.processes))
        return grouped((self.run.processes[row].rank, (at, row)) for at, row in started)

    @cached_property
    def _by_step(self) -> tuple[Ints, Ints]:
        rows = np.flatnonzero(self.run.steps.survives)
        rows = rows[np.argsort(self.run.steps.step[rows], kind="stable")]
        return rows, self.run.steps.step[rows]

    def by_the_rules(self, alarm: Event) -> bool:
        if alarm.get("kind") == abnormal.DIVERGENCE:
            return bool(self.spikes.get(alarm.get("at_step", 0), NEVER) <= alarm["at"])
        if alarm.get("kind") not in abnormal.OF_STEPS:
            return False
        steps, rows, watch, found = self.run.steps, self._before(alarm), abnormal.Watch(), list[str]()
        rows = rows[abnormal.replay_from(len(rows)) :]
        columns = (steps.loss[rows], steps.grad_norm[rows], steps.end[rows] - steps.begin[rows], steps.data_ns[rows])
        for loss, norm, took, waited in zip(*(column.tolist() for column in columns), strict=True):
            found = watch.step_done(loss, norm, took, waited)
        return alarm["kind"] in found

    def slow_indeed(self, alarm: Event) -> bool:
        told, steps = alarm.get("slowdown"), self.run.steps
        if alarm.get("kind") != "straggler" or not isinstance(told, int | float) or not told > 1:
            return False
        mine = self._before(alarm)
        if not len(mine) or (steps.sync_ns[mine] < 0).any():
            return False
        of_step, step = self._by_step
        numbers = np.unique(steps.step[mine[-ALARM_STEPS:]])
        cuts = zip(np.searchsorted(step, numbers), np.searchsorted(step, numbers, side="right"), strict=True)
        rows = np.concatenate([of_step[first:end] for first, end in cuts])  # of all ranks
        rows = rows[steps.end[rows] <= alarm["at"]]
        rows = rows[np.argsort(steps.rank[rows], kind="stable")]
        ranks, begins = np.unique(steps.rank[rows], return_index=True)
        waits = sum(np.maximum(each[rows], 0) for each in (steps.sync_ns, steps.data_ns, steps.checkpoint_ns))
        own = np.split(steps.end[rows] - steps.begin[rows] - waits, begins[1:])
        medians = {rank: float(np.median(each)) for rank, each in zip(ranks.tolist(), own, strict=False)}
        # This is the lower median: of two ranks, the faster one is the yardstick.
        usual = sorted(medians.values())[(len(medians) - 1) // 2] if medians else 0.0
        # A step's time in the log has a constant part that trainers do not compare: the absolute excess says more.
        excess = max(EXCESS_MIN * usual, SHARE_BORNE_OUT * float(alarm.get("excess_ns", (told - 1) * usual)))
        return bool(usual > 0 and medians.get(about(alarm), 0.0) - usual >= excess)
