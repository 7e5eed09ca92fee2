"""Finds impossible times: logged times that contradict each other or the harness's observations.

The docstring of the assumption `times-possible` lists all kinds of impossible times. A contradiction that a fault-free
run also has is ignored, because the trainer logs like this even without faults.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from harness.evidence import by_time
from harness.evidence.by_time import Window
from harness.judge import thresholds as limits
from harness.judge.facts import tellers
from harness.judge.facts.known import Odd
from harness.log.vocabulary import GAVE_UP
from harness.timeline.lookups import NEVER, grouped, last_by
from harness.timeline.save_events import COMMITTED, STARTED
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Bools, Ints, Process, Slot, Timeline
from harness.units import format_duration

# Large odd weights, so that the weighted sums of different lengths differ.
FACTORS = np.array([2654435761, 40503, 1, 2246822519, 3266489917]) * 4294967311
_ROWS_AT_ONCE = 2**16  # rows that are looked at together, as memory holds copies of them
PARTS = {"data_ns": "waits for data", "checkpoint_ns": "waits for a checkpoint", "sync_ns": "waits for the other ranks"}


def impossible(
    run: Timeline, fault_free_runs: Sequence[Timeline], disturbed: Sequence[Window], resumed: Iterable[Timeline] = ()
) -> Iterator[Odd]:
    """Yields the worst case of each kind of impossible time. The runs `resumed` serve only to find copied logs."""
    told, usual = Told(run), [Told(other) for other in fault_free_runs]
    for words, excesses, limit in _rules(told, usual):
        over, whose = max(excesses(told), default=(0, ""))
        most = max((over for other in usual for over, _ in excesses(other)), default=0)
        if over > max(limit, limits.USUAL_FACTOR * most):
            yield Odd(words.format(whose, format_duration(over)), tellers.TIMES)
    yield from copies(told, [*usual, *map(Told, resumed)])
    yield from _noticed_before(run)
    for fault, at, seen in itertools.islice(seen_recoveries(run), 1):
        text = f"the job tells that it had recovered from {fault} {format_duration(seen - at)} before"
        yield Odd(f"{text} the harness saw a step that was new", tellers.TIMES)
    for struck in run.faults if not run.lost else ():
        early = run.first_complete(struck.recovered_step) - (struck.recovered or NEVER)
        if early > limits.APART_NS + run.uncertainty_ns:
            text = f"the harness saw step {struck.recovered_step} {format_duration(early)} before the ranks ended it"
            yield Odd(text, tellers.TIMES)
    yield from _saves_seen_late(run, fault_free_runs, disturbed)


class Told:
    """The steps of a run as columns, sorted by process, then by time."""

    def __init__(self, run: Timeline):
        order, _ = run.rows_by_process
        self.run, self.order, steps = run, order, run.steps
        self.process, self.begin, self.end = steps.process[order], steps.begin[order], steps.end[order]
        self.first = np.append(True, np.diff(self.process) != 0)[: len(order)]

    def of_process(self, told: Callable[[Process], int]) -> Ints:
        return np.array([told(process) for process in self.run.processes], np.int64)[self.process]

    @property
    def started(self) -> Ints:
        return self.of_process(lambda process: process.started)

    @functools.cached_property
    def free(self) -> Ints:
        """Returns when each step's process became free: at the end of the previous step, or at the process's start."""
        return np.where(self.first, self.started, np.roll(self.end, 1))

    def named(self, row: int) -> str:
        steps, process = self.run.steps, self.run.processes[self.process[row]]
        return f"step {steps.step[self.order[row]]} of rank {process.rank} on {process.node}"

    @functools.cached_property
    def grain(self) -> int:
        """Returns the resolution of the clock in ns, taken as the greatest common divisor of the durations of steps."""
        taken = (self.end - self.free)[~self.first]
        return int(np.gcd.reduce(taken[: limits.STEPS_LOOKED_AT]))

    @functools.cached_property
    def tracks(self) -> tuple[Ints, Ints]:
        """Returns a fingerprint of each series of `COPIED_STEPS` different step durations, and the row of the last step
        of each series. Each series ends at a multiple of `COPIED_STEPS`, so that fingerprints of two logs cover equal
        steps."""
        ends = self.run.steps.step % limits.COPIED_STEPS == 0
        last = np.flatnonzero(ends[self.order][limits.COPIED_STEPS - 1 :]) + limits.COPIED_STEPS - 1
        first = last - limits.COPIED_STEPS + 1
        last = last[(self.process[last] == self.process[first]) & ~self.first[first]]
        found = [self._varied(some) for some in np.array_split(last, len(last) // _ROWS_AT_ONCE + 1)]
        prints, rows = zip(*found, strict=True)
        return np.concatenate(prints), np.concatenate(rows)

    def _varied(self, last: Ints) -> tuple[Ints, Ints]:
        rows = last[:, None] - np.arange(limits.COPIED_STEPS)
        lengths = self.end[rows] - self.free[rows]
        varied = (np.diff(np.sort(lengths, axis=1), axis=1) != 0).all(axis=1)
        return lengths[varied] @ FACTORS, last[varied]

    def part(self, name: str) -> Ints:
        column: Ints = getattr(self.run.steps, name)
        return column[self.order]


Excesses = Callable[[Told], Iterable[tuple[int, str]]]  # by how many ns a time is impossible, and whose time it is


def _rules(told: Told, usual: Sequence[Told]) -> Iterator[tuple[str, Excesses, int]]:
    """Yields for each kind of impossible time a text, a function that finds such times, and a limit in ns."""
    margin = told.run.uncertainty_ns + told.grain
    coarse = limits.COARSE_NS + margin
    yield "{} ended {} before it began", _worst_step(lambda told: told.begin - told.end), margin
    yield "{} began {} before its process", _worst_step(lambda told: told.started - told.begin), coarse
    yield (
        "{} ended {} after its process had ended",
        _worst_step(lambda told: told.end - told.of_process(_ended)),
        coarse,
    )
    early = _worst_step(lambda told: np.where(told.first, 0, told.free - told.begin))
    yield "{} began {} before the one before it was over", early, limits.ROUNDED_NS + margin
    for part, waits in PARTS.items():
        yield f"{{}} {waits} {{}} longer than it takes", _worst_step(_longer_than_its_step(part)), coarse
    if any(other.run.largest_world > 1 for other in usual):
        text = "{} ended on one rank {} before another began it, though they wait for each other"
        yield text, _before_their_peers, limits.APART_NS + 2 * margin
    yield "{} was ready {} before its predecessor ended", _two_in_one_place, limits.APART_NS + 2 * margin
    yield "{} told something {} after it had ended", _last_words, limits.LAST_WORDS_NS + told.run.uncertainty_ns
    yield "{} took {} longer than from its begin to its end", _longer_saves, limits.APART_NS + margin


def _longer_than_its_step(part: str) -> Callable[[Told], Ints]:
    return lambda told: told.part(part) - (told.end - np.minimum(told.begin, told.free))


def _worst_step(excess: Callable[[Told], Ints]) -> Excesses:
    def worst(told: Told) -> Iterator[tuple[int, str]]:
        over = excess(told)
        for row in [int(over.argmax())] if len(over) else []:
            yield int(over[row]), told.named(row)

    return worst


def _ended(process: Process) -> int:
    return min(process.left or NEVER, process.exited or NEVER)


def _before_their_peers(told: Told) -> Iterator[tuple[int, str]]:
    steps = told.run.steps
    key = (steps.epoch.astype(np.int64) << 31 | steps.step)[told.order]
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(key[order]) != 0)[: len(order)])
    if len(first):
        began = np.where(told.begin < told.end, told.begin, told.free)  # the latest possible begin
        leads = np.maximum.reduceat(began[order], first) - np.minimum.reduceat(told.end[order], first)
        worst = int(leads.argmax())
        yield int(leads[worst]), f"step {steps.step[told.order[order[first[worst]]]]}"


def _two_in_one_place(told: Told) -> Iterator[tuple[int, str]]:
    places = grouped(((*each.key, each.local_rank), each) for each in told.run.processes)
    for before, after in itertools.chain.from_iterable(map(itertools.pairwise, places.values())):
        ready = max(after.started, after.rendezvous or 0)
        yield (before.exited or before.last_seen) - ready, f"rank {after.rank} on {after.node}"


def _last_words(told: Told) -> Iterator[tuple[int, str]]:
    return ((each.last_seen - _ended(each), f"rank {each.rank} on {each.node}") for each in told.run.processes)


def _longer_saves(told: Told) -> Iterator[tuple[int, str]]:
    begun: dict[tuple[int, object], int] = {}
    for event in told.run.checkpoints:
        key = event["process"], event.get("step")
        if event["event"] == STARTED:
            begun[key] = event["at"]
        elif event["event"] == COMMITTED and event.get("duration_ns") and key[0] >= 0:  # -1: before a rehearsal
            since = begun.get(key, told.run.processes[key[0]].started)
            text = f"the checkpoint of step {key[1]} by rank {event['rank']}"
            yield event["duration_ns"] - (event["at"] - since), text


def outside_node(run: Timeline) -> Iterator[Odd]:
    """Yields a text if a step began before the job had the node, or waited for longer than the job had the node."""
    told = Told(run)
    if not len(told.end):
        return
    slots = {slot.key: slot for slot in run.slots}

    def had(process: Process) -> int:
        slot = slots.get(process.key)
        return slot.released - slot.allocated if slot else run.end

    def odd(over: Ints, limit: int, words: str, length: Ints) -> Iterator[Odd]:
        row = int(over.argmax())
        if over[row] > limit + run.uncertainty_ns:
            both = int(length[row]), had(run.processes[told.process[row]])
            text = words.format(*map(format_duration, both))
            yield Odd(f"{told.named(row)} {text}", tellers.node_times(run.problems, run.uncertainty_ns, over[row]))

    early = told.of_process(lambda process: _given(run, process, slots.get(process.key))) - told.begin
    yield from odd(early, limits.APART_NS, "began {} before the job had its node", early)
    for part, words in PARTS.items():
        took = told.part(part)
        yield from odd(
            took - told.of_process(had),
            limits.ALLOCATED_NS,
            f"{words} for {{}}, but the job had its node for {{}}",
            took,
        )


def _given(run: Timeline, process: Process, slot: Slot | None) -> int:
    if slot and slot.allocated > run.begin:
        return slot.allocated - (0 if slot.incarnation > 1 else limits.ALLOCATED_NS)
    return run.begin if process.started >= run.begin else -NEVER


def copies(run: Told, others: Sequence[Told]) -> Iterator[Odd]:
    """Yields a text if two processes, of one run or of two runs, logged the same step times to the nanosecond. Times
    from coarse clocks are not compared."""
    logs = [each for each in (run, *others) if 0 < each.grain < limits.FINE_NS]
    if run not in logs:
        return
    tracks = np.concatenate([told.tracks[0] for told in logs])
    owners = np.concatenate([told.process[told.tracks[1]] for told in logs])
    number = np.repeat(np.arange(len(logs)), [len(told.tracks[0]) for told in logs])
    rows = np.concatenate([told.tracks[1] for told in logs])
    order = np.argsort(tracks, kind="stable")  # among equal tracks, this run's tracks come first
    one, two = order[:-1], order[1:]
    other = (owners[one] != owners[two]) | (number[one] != number[two])
    for place in np.flatnonzero((tracks[one] == tracks[two]) & (number[one] == 0) & other)[:1].tolist():
        mine, theirs = int(one[place]), int(two[place])
        here, there = run.named(int(rows[mine])), logs[number[theirs]].named(int(rows[theirs]))
        text = f"{limits.COPIED_STEPS} steps up to {here} took the same nanoseconds as those up to {there}"
        text += " in another run" if number[theirs] else ""
        yield Odd(f"{text}: one log is a copy of the other", tellers.TIMES)


def _noticed_before(run: Timeline) -> Iterator[Odd]:
    told = [notice for notice in run.notices if notice.get("source") not in ("peer", *GAVE_UP)]
    begun = min((fault.injecting or NEVER for fault in run.faults), default=NEVER)
    struck, apart = (begun, limits.APART_NS) if begun < NEVER else (first_strike(run.faults), limits.NOTICED_NS)
    if told and struck < NEVER and (early := struck - told[0]["at"]) > apart + run.uncertainty_ns:
        where = f"rank {told[0].get('rank')} on {told[0]['node']}"
        yield Odd(f"{where} told of a notice {format_duration(early)} before a fault gave one", tellers.TIMES)


def seen_recoveries(run: Timeline) -> Iterator[tuple[str, int, int]]:
    """Yields (fault, logged end, time when seen) of each recovery that the harness saw long after its logged end."""
    if not any(fault.recovered is not None for fault in run.faults) or not len(run.steps):
        return
    epochs = sorted(run.epochs, key=lambda epoch: epoch.begin)
    started = [[run.processes[row].started for row in epoch.processes] for epoch in epochs]
    oldest = np.array([min(each, default=0) for each in started], np.int64)
    furthest = np.maximum.accumulate(run.steps.step)
    for fault in run.faults:
        if fault.recovered is None or fault.injected is None or (fault.kills and oldest.max() <= fault.injected):
            continue
        told = max(by_time.healed_at(run, fault), run.first_complete(fault.recovered_step) or fault.recovered)
        if fault.kills:
            epoch = epochs[int((oldest > fault.injected).argmax())]
            formed = max(run.processes[row].started for row in epoch.processes)
            before = furthest[max(int(np.searchsorted(run.steps.end, formed)) - 1, 0)]
            later = slice(int(np.searchsorted(run.progress.end, epoch.begin)), None)
            beyond = np.flatnonzero(run.progress.step[later] > before)
            told = int(run.progress.end[later][beyond[0]]) if len(beyond) else fault.recovered
        # The harness's usual delay: the time from the end of the planned step to the injection.
        planned = [each.get("when") or {} for each in run.plan.get("faults") or () if each.get("id") == fault.id]
        at = run.progress.end[run.progress.step == (planned[0].get("step") if planned else None)]
        usual = limits.USUAL_FACTOR * max(0, fault.injected - int(at[0])) if len(at) else 0
        if fault.recovered - told > limits.SEEN_NS + run.uncertainty_ns + usual:
            yield fault.id, told, fault.recovered


def _saves_seen_late(run: Timeline, fault_free_runs: Sequence[Timeline], disturbed: Sequence[Window]) -> Iterator[Odd]:
    told, apart = _seen_after(run)
    since = disturbed[0][0] if disturbed else run.end
    others = (_seen_after(other)[1] for other in fault_free_runs)
    known = np.concatenate([apart[told + apart < since], *others])
    usual = int(known.max(initial=0))
    after = by_time.quiet(told, told + apart, disturbed) & (told >= since)
    late: Bools = apart[after] > max(limits.USUAL_LEAST_NS, limits.USUAL_FACTOR * usual) + run.uncertainty_ns
    for stretch in by_time.stretches(late) if len(known) else ():
        if stretch.stop - stretch.start >= limits.LATE_SAVES:
            longest, most = format_duration(int(apart[after][stretch].max())), format_duration(usual)
            text = f"{stretch.stop - stretch.start} saves in a row are told up to {longest} before the harness saw them"
            yield Odd(f"{text} (at most {most} without a fault)", tellers.TIMES)
            return


def _seen_after(run: Timeline) -> tuple[Ints, Ints]:
    committed = (event for event in run.checkpoints if event["event"] == COMMITTED)
    by_step = grouped((event.get("step"), (event["at"], event["at"])) for event in committed)
    told = [(last_by(by_step.get(event.get("step"), ()), event["at"]), event) for event in run.published]
    later = ((at, max(0, event.get("looked_ns", event["at"]) - at)) for at, event in told if at is not None)
    pairs: Ints = np.array(sorted(later), np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
