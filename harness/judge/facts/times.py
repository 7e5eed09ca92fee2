"""Impossible times: the times that processes tell contradict each other, or the harness.

No step is done before its node was given to the job, before its process began, or before the previous step was over;
no part of a step takes longer than the step; no step ends on one rank before another has begun it; no worker takes the
place of one that has not ended. A save or recovery that the harness sees was not told long before. A contradiction that
the fault-free run has, too, is ignored as the trainer's way of telling.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from harness.judge.facts import by_time, tellers
from harness.judge.facts.by_time import Window
from harness.judge.facts.known import Odd
from harness.judge.thresholds import (
    ALLOCATED_NS,
    APART_NS,
    COARSE_NS,
    COPIED_STEPS,
    FINE_NS,
    LAST_WORDS_NS,
    LATE_SAVES,
    NOTICED_NS,
    ROUNDED_NS,
    SEEN_NS,
    STEPS_LOOKED_AT,
    USUAL_FACTOR,
    USUAL_LEAST_NS,
)
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import grouped
from harness.timeline.save_events import COMMITTED, STARTED
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Bools, Ints, Process, Slot, Timeline
from harness.units import format_duration

FACTORS = (
    np.array([2654435761, 40503, 1, 2246822519, 3266489917]) * 4294967311
)  # large and odd, so that sums do not collide
PARTS = {"data_ns": "waits for data", "checkpoint_ns": "waits for a checkpoint", "sync_ns": "waits for the other ranks"}


def impossible(
    run: Timeline, fault_free_runs: Sequence[Timeline], disturbed: Sequence[Window], resumed: Iterable[Timeline] = ()
) -> Iterator[Odd]:
    """Yields the worst contradiction of each kind. `resumed`: more fault-free runs; no log may be a copy of theirs."""
    steps, usual = Told(run), [Told(other) for other in fault_free_runs]
    margin = run.uncertainty_ns + steps.grain
    for excess, limit, words in _KINDS:
        over = excess(steps)
        most = max((int(excess(other).max(initial=0)) for other in usual), default=0)
        worst = int(over.argmax()) if len(over) else -1
        if worst >= 0 and over[worst] > max(limit + margin, USUAL_FACTOR * most):
            yield Odd(words.format(step=steps.named(worst), apart=format_duration(int(over[worst]))), tellers.TIMES)
    yield from _before_their_peers(steps, [other for other in usual if other.run.largest_world > 1], margin)
    yield from _two_in_one_place(run, margin)
    yield from copies(steps, [*usual, *map(Told, resumed)])
    yield from _noticed_before(run)
    yield from _last_words(run, fault_free_runs)
    yield from _saved_for_longer(run, fault_free_runs, margin)
    for fault, told, seen in itertools.islice(seen_recoveries(run), 1):
        text = f"the job tells that it had recovered from {fault} {format_duration(seen - told)} before"
        yield Odd(f"{text} the harness saw a step that was new", tellers.TIMES)
    yield from _saved_before_it_was_seen(run, fault_free_runs, disturbed)


class Told:
    """Steps process by process, in order of time."""

    def __init__(self, run: Timeline):
        order, _ = run.rows_by_process
        self.run, self.order = run, order
        self.process, self.begin, self.end = (
            column[order] for column in (run.steps.process, run.steps.begin, run.steps.end)
        )
        started = np.array([process.started for process in run.processes], np.int64)
        first = np.append(True, np.diff(self.process) != 0)[: len(order)]
        self.started = started[self.process]
        self.free = np.where(first, self.started, np.roll(self.end, 1))  # the process did nothing else since then
        self.first = first
        self.began = np.where(self.begin < self.end, self.begin, self.free)  # the latest possible begin

    def named(self, row: int) -> str:
        steps, process = self.run.steps, self.run.processes[self.process[row]]
        return f"step {steps.step[self.order[row]]} of rank {process.rank} on {process.node}"

    @functools.cached_property
    def grain(self) -> int:
        """Returns the clock's granularity: the greatest common divisor of step lengths."""
        taken = (self.end - self.free)[~self.first]
        return int(np.gcd.reduce(taken[:STEPS_LOOKED_AT]))

    @functools.cached_property
    def tracks(self) -> tuple[Ints, Ints]:
        """Returns fingerprints of the lengths of some steps in a row, each of a different length and the last one a
        multiple of their number; and the row of that last step."""
        last = np.arange(COPIED_STEPS - 1, len(self.end))
        last = last[self.run.steps.step[self.order[last]] % COPIED_STEPS == 0]
        first = last - COPIED_STEPS + 1
        last = last[(self.process[last] == self.process[first]) & ~self.first[first]]
        lengths = (self.end - self.free)[last[:, None] - np.arange(COPIED_STEPS)]
        varied = (np.diff(np.sort(lengths, axis=1), axis=1) != 0).all(axis=1)
        return lengths[varied] @ FACTORS, last[varied]

    def part(self, name: str) -> Ints:
        column: Ints = getattr(self.run.steps, name)
        return column[self.order]


def _after_its_end(told: Told) -> Ints:
    ends = [min(each.left or NEVER, each.exited or NEVER) for each in told.run.processes]
    return told.end - np.array(ends, np.int64)[told.process]


def _longer_than_its_step(part: str) -> Callable[[Told], Ints]:
    return lambda told: told.part(part) - (told.end - np.minimum(told.begin, told.free))


_KINDS: Sequence[tuple[Callable[[Told], Ints], int, str]] = (
    (lambda told: told.begin - told.end, 0, "{step} ended {apart} before it began"),
    (lambda told: told.started - told.begin, COARSE_NS, "{step} began {apart} before its process"),
    (_after_its_end, COARSE_NS, "{step} ended {apart} after its process had ended"),
    (
        lambda told: np.where(told.first, 0, told.free - told.begin),
        ROUNDED_NS,
        "{step} began {apart} before the one before it was over",
    ),
    *(
        (_longer_than_its_step(part), COARSE_NS, f"{{step}} {words} {{apart}} longer than it takes")
        for part, words in PARTS.items()
    ),
)


def outside_node(run: Timeline) -> Iterator[Odd]:
    """Yields steps before their node was given to the job, and parts of steps longer than the job had the node."""
    told = Told(run)
    if not len(told.end):
        return
    slots = {(slot.node, slot.incarnation): slot for slot in run.slots}
    mine = [slots.get((process.node, process.incarnation)) for process in run.processes]
    had = np.array([slot.released - slot.allocated if slot else run.end for slot in mine], np.int64)
    since = np.array([_given(run, *each) for each in zip(run.processes, mine, strict=True)], np.int64)
    early = since[told.process] - told.begin
    worst = int(early.argmax())
    if early[worst] > APART_NS + run.uncertainty_ns:
        text = f"{told.named(worst)} began {format_duration(int(early[worst]))} before the job had its node"
        yield Odd(text, tellers.node_times(run.problems, run.uncertainty_ns, early[worst]))
    for part, words in PARTS.items():
        over = told.part(part) - had[told.process]
        worst = int(over.argmax())
        if over[worst] > ALLOCATED_NS + run.uncertainty_ns:
            took, length = (format_duration(int(each[worst])) for each in (told.part(part), had[told.process]))
            text = f"{told.named(worst)} {words} for {took}, but the job had its node for {length}"
            yield Odd(text, tellers.node_times(run.problems, run.uncertainty_ns, over[worst]))


def _last_words(run: Timeline, fault_free_runs: Sequence[Timeline]) -> Iterator[Odd]:
    """Yields a process that says something after its end; a save's end may come later, from another process."""

    def late(process: Process) -> int:
        return process.last_seen - min(process.left or NEVER, process.exited or NEVER)

    usual = max((late(process) for other in fault_free_runs for process in other.processes), default=0)
    worst = max(run.processes, key=late, default=None)
    if worst is not None and late(worst) > max(LAST_WORDS_NS, USUAL_FACTOR * usual) + run.uncertainty_ns:
        text = f"rank {worst.rank} on {worst.node} told something {format_duration(late(worst))} after it had ended"
        yield Odd(text, tellers.TIMES)


def _longer_saves(run: Timeline) -> Iterator[tuple[int, str]]:
    """Yields for each save by how much its told duration exceeds the time since its begin, and its name."""
    begun: dict[tuple[int, object], int] = {}
    for event in run.checkpoints:
        key = event["process"], event.get("step")
        if event["event"] == STARTED:
            begun[key] = event["at"]
        elif event["event"] == COMMITTED and event.get("duration_ns") and key[0] >= 0:  # -1: from before a rehearsal
            since = begun.get(key, run.processes[key[0]].started)
            text = f"the checkpoint of step {key[1]} by rank {event['rank']}"
            yield event["duration_ns"] - (event["at"] - since), text


def _saved_for_longer(run: Timeline, fault_free_runs: Sequence[Timeline], margin: int) -> Iterator[Odd]:
    usual = max((over for other in fault_free_runs for over, _ in _longer_saves(other)), default=0)
    over, save = max(_longer_saves(run), default=(0, ""))
    if over > max(APART_NS + margin, USUAL_FACTOR * usual):
        yield Odd(f"{save} took {format_duration(over)} longer than from its begin to its end", tellers.TIMES)


def copies(run: Told, others: Sequence[Told]) -> Iterator[Odd]:
    """Yields steps whose lengths equal, to the nanosecond, those of another process in this or another run, if clocks
    are fine enough to tell."""
    logs = [each for each in (run, *others) if 0 < each.grain < FINE_NS]
    if run not in logs:
        return
    tracks = np.concatenate([told.tracks[0] for told in logs])
    owners = np.concatenate([told.process[told.tracks[1]] for told in logs])
    number = np.repeat(np.arange(len(logs)), [len(told.tracks[0]) for told in logs])
    rows = np.concatenate([told.tracks[1] for told in logs])
    order = np.argsort(tracks, kind="stable")  # this run's tracks come first among equals
    one, two = order[:-1], order[1:]
    other = (owners[one] != owners[two]) | (number[one] != number[two])
    for place in np.flatnonzero((tracks[one] == tracks[two]) & (number[one] == 0) & other)[:1].tolist():
        mine, theirs = int(one[place]), int(two[place])
        text = f"{COPIED_STEPS} steps up to {run.named(int(rows[mine]))} took the same nanoseconds as those up to"
        text += f" {logs[number[theirs]].named(int(rows[theirs]))}{' in another run' if number[theirs] else ''}"
        yield Odd(f"{text}: one log is a copy of the other", tellers.TIMES)


def _given(run: Timeline, process: Process, slot: Slot | None) -> int:
    """Returns the earliest begin of steps: when the job had the node, with a margin for a first node told late."""
    if slot and slot.allocated > run.begin:
        return slot.allocated - (0 if slot.incarnation > 1 else ALLOCATED_NS)
    return run.begin if process.started >= run.begin else -NEVER


def _before_their_peers(told: Told, fault_free_runs: Sequence[Told], margin: int) -> Iterator[Odd]:
    """Yields a step that ended on one rank before another began it, if ranks wait for each other without a fault."""
    usual = [int(_leads(other)[0].max(initial=0)) for other in fault_free_runs]
    leads, steps = _leads(told)
    if not usual or not len(leads):
        return
    worst = int(leads.argmax())
    if leads[worst] > max(APART_NS + 2 * margin, USUAL_FACTOR * max(usual)):
        step, apart = steps[worst], format_duration(int(leads[worst]))
        text = f"step {step} ended on one rank {apart} before another began it, though they wait for each other"
        yield Odd(text, tellers.TIMES)


def _leads(told: Told) -> tuple[Ints, Ints]:
    """Returns for each step of each world by how much its first end precedes its last begin, and the step."""
    steps = told.run.steps
    key = (steps.epoch << 31 | steps.step)[told.order]
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(key[order]) != 0)[: len(order)])
    if not len(first):
        return first, first
    began = np.maximum.reduceat(told.began[order], first)
    return began - np.minimum.reduceat(told.end[order], first), steps.step[told.order[order[first]]]


def _noticed_before(run: Timeline) -> Iterator[Odd]:
    """Yields a worker that told of a notice before any fault had given one."""
    told = [notice for notice in run.notices if notice.get("source") not in ("peer", "straggler")]
    begun = min((fault.injecting or NEVER for fault in run.faults), default=NEVER)
    struck, apart = (begun, APART_NS) if begun < NEVER else (first_strike(run.faults), NOTICED_NS)
    if told and struck < NEVER and (early := struck - told[0]["at"]) > apart + run.uncertainty_ns:
        where = f"rank {told[0].get('rank')} on {told[0]['node']}"
        yield Odd(f"{where} told of a notice {format_duration(early)} before a fault gave one", tellers.TIMES)


def _two_in_one_place(run: Timeline, margin: int) -> Iterator[Odd]:
    """Yields a worker that was ready before the worker whose place it takes had ended or said its last word."""
    places = grouped(((each.node, each.incarnation, each.local_rank), each) for each in run.processes)
    for mine in places.values():
        for before, after in itertools.pairwise(mine):
            ready = max(after.started, after.rendezvous or 0)
            apart = (before.exited or before.last_seen) - ready
            if apart > APART_NS + 2 * margin:
                ready_on = f"rank {after.rank} on {after.node} was ready"
                yield Odd(f"{ready_on} {format_duration(apart)} before its predecessor ended", tellers.TIMES)
                return


def seen_recoveries(run: Timeline) -> Iterator[tuple[str, int, int]]:
    """Yields recoveries that were told long before the harness, which watches the steps, saw them: the fault's id, the
    told end of the recovery, and when the harness saw it."""
    struck = [fault for fault in run.faults if fault.kills and fault.recovered is not None]
    if not struck or not len(run.steps):
        return
    epochs = sorted(run.epochs, key=lambda epoch: epoch.begin)
    oldest = np.array(
        [min((run.processes[row].started for row in epoch.processes), default=0) for epoch in epochs], np.int64
    )
    furthest = np.maximum.accumulate(run.steps.step)
    for fault in struck:
        if fault.recovered is None or fault.injected is None:
            continue
        reborn = np.flatnonzero(oldest > fault.injected)
        if not len(reborn):
            continue
        epoch = epochs[int(reborn[0])]
        formed = max(run.processes[row].started for row in epoch.processes)
        before = furthest[max(int(np.searchsorted(run.steps.end, formed)) - 1, 0)]
        later = slice(int(np.searchsorted(run.progress.end, epoch.begin)), None)
        beyond = np.flatnonzero(run.progress.step[later] > before)
        told = int(run.progress.end[later][beyond[0]]) if len(beyond) else fault.recovered
        # The harness's usual delay, from the step at which it was to inject the fault.
        planned = [each.get("when") or {} for each in run.plan.get("faults") or () if each.get("id") == fault.id]
        at = run.progress.end[run.progress.step == (planned[0].get("step") if planned else None)]
        usual = USUAL_FACTOR * max(0, fault.injected - int(at[0])) if len(at) else 0
        if fault.recovered - told > SEEN_NS + run.uncertainty_ns + usual:
            yield fault.id, told, fault.recovered


def _saved_before_it_was_seen(
    run: Timeline, fault_free_runs: Sequence[Timeline], disturbed: Sequence[Window]
) -> Iterator[Odd]:
    """Yields saves in a row that the harness saw much later after their commit than it sees fault-free ones."""
    told, apart = _seen_after(run)
    since = disturbed[0][0] if disturbed else run.end
    others = (_seen_after(other)[1] for other in fault_free_runs)
    usual = max((int(each.max(initial=0)) for each in (apart[told + apart < since], *others)), default=0)
    after = by_time.quiet(told, told + apart, disturbed) & (told >= since)
    late: Bools = apart[after] > max(USUAL_LEAST_NS, USUAL_FACTOR * usual) + run.uncertainty_ns
    for stretch in by_time.stretches(late) if usual else ():
        if stretch.stop - stretch.start >= LATE_SAVES:
            longest, most = format_duration(int(apart[after][stretch].max())), format_duration(usual)
            text = f"{stretch.stop - stretch.start} saves in a row are told up to {longest} before the harness saw them"
            yield Odd(f"{text} (at most {most} without a fault)", tellers.TIMES)
            return


def _seen_after(run: Timeline) -> tuple[Ints, Ints]:
    """Returns for each save seen in the store when it was told as committed, and how much later it was seen."""
    committed = grouped((each.get("step"), each["at"]) for each in run.checkpoints if each["event"] == COMMITTED)
    pairs = [
        (mine[place - 1], event["at"] - mine[place - 1])
        for event in run.published
        if (place := bisect.bisect_right(mine := committed.get(event.get("step"), []), event["at"]))
    ]
    both: Ints = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
