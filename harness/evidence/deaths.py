"""Decides which deaths of processes an injected fault explains.

A fault that only slows a job explains no death.

* A fault that kills explains every kind of death of its *target* (the rank or node at which the fault aims).
* A target's death explains deaths of its *peers* (the other workers), because collectives with the target fail. The
  arrival of a replacement node explains deaths of running workers, because the job forms a new process group. A fault
  that can stop a healthy job, such as a network partition, explains every worker's death while the fault is active,
  and later deaths of workers that were alive when the fault ended. A fault does not explain the death of a worker that
  is no target if this worker has done a step in a new process group, or if the death comes long after the fault (see
  `_Root`). No injected fault explains a segmentation fault of a worker that is not the fault's target. A fault that
  kills or stops explains a worker's exit with a logged error only if the fault targets this worker.
* A damaged checkpoint whose digests are correct explains the death of a worker that loaded it.
* A fault that comes back after each restart of a node explains any later exit of the node's launcher with code 75 (the
  node leaves the job).
* A confirmed notice to leave (see `given`), or a later start of the job with more ranks, explains a worker's clean
  exit.

A worker whose end is in no log counts as dead, too, if other workers did steps without this worker.
"""

import bisect
import itertools
import operator
import signal
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.evidence.by_time import healed_at
from harness.judge.thresholds import BEFORE_NS, CLOCKS_KNOWN_NS, SURVIVED_NS
from harness.log.vocabulary import GAVE_UP
from harness.node.emitter import EXIT_LEFT
from harness.timeline.lineage import Key
from harness.timeline.lookups import NEVER, Located, Moments, Spans, first_from, grouped
from harness.timeline.sorted_events import CLEAN_CODES, acted_at, key_of
from harness.timeline.timeline import FaultRecord, Process, Timeline
from harness.units import format_duration

_Place = tuple[Any, Any, Any]  # node, incarnation, rank; rank `None`: the whole node
ERROR_CHARS = 200  # longest quote of a worker's error
NAMED_MAX = 8  # most ranks or nodes named in one sentence
# The end of a peer never causes these signals. Launchers behind a shell log 128 plus the signal's number.
_OWN_CRASHES = {code for n in (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE) for code in (-n, 128 + n)}


class End(NamedTuple):
    """The end of a process. `rank` is `None` for the end of a node's command, which stands for all processes of the
    node. `code` is `None` if no log has the exit. `at` is a time (ns) at which the process had certainly ended."""

    node: str
    incarnation: int
    rank: int | None
    code: int | None
    at: int
    started: int
    processes: tuple[int, ...]  # rows in Timeline.processes
    met: str = ""  # the first error that the worker logged, in its own words
    error: bool = False  # the worker itself called its end an error

    @property
    def crashed(self) -> bool:
        return self.code in _OWN_CRASHES

    @property
    def key(self) -> Key:
        return self.node, self.incarnation

    @property
    def places(self) -> frozenset[_Place]:
        return frozenset((*self.key, rank) for rank in (None, self.rank))

    def is_in(self, places: Set[_Place]) -> bool:
        return not self.places.isdisjoint(places)


def describe_alike(alike: Sequence[End], since: int) -> str:
    """Describes deaths with equal exit code and error in a sentence such as `ranks 0 and 1 died 7 times, …`."""
    first = min(alike, key=lambda death: death.at)
    told: set[Any] = {death.node if first.rank is None else death.rank for death in alike}
    names, at, several = listed([*map(str, sorted(told))]), format_duration(first.at - since), "s" * (len(told) > 1)
    who = f"the command{several} on {names}" if first.rank is None else f"rank{several} {names}"
    one = len(alike) == 1
    they, their = ("it", "its") if one else ("they", "their")
    who += f" on {first.node}" if one and first.rank is not None else ""
    often = "" if len(told) == len(alike) else f" {len(alike)} times"
    if first.code is None:
        return f"{who} disappeared{often} without an exit code{'' if one else ', the first'} before {at}"
    own = f", after {they} reported an error" if first.error else ""
    met = f"; {their} first error: {first.met}" if first.met else ""
    if one:
        return f"{who} ended with exit code {first.code}{own}{',' if own else ''} at {at}{met}"
    verb = "died" if first.code else "ended"
    return f"{who} {verb}{often}, the first at {at}, with exit code {first.code}{own}{met}"


def listed(names: Sequence[str]) -> str:
    """Joins names as `0`, `0 and 1`, or `0, 1, 2 and 61 others`."""
    named, rest = (names, 0) if len(names) <= NAMED_MAX else (names[: NAMED_MAX - 1], len(names) - NAMED_MAX + 1)
    parts = [*named, f"{rest} others"] if rest else list(named)
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def unexplained(run: Timeline, ends: Sequence[End]) -> Iterator[End]:
    """Yields the deaths during the run, and exits with code 0 before the last step, that no known cause explains."""
    released = max((slot.released for slot in run.slots), default=run.end)
    over = released if run.aborted is None else min(released, run.aborted)  # the harness itself causes later ends
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    dead = [end for end in ends if end.code != 0]
    inquest = _Inquest(run, dead)
    for death in (*dead, *(end for end in ends if end.code == 0 and end.rank is not None and end.at < last)):
        if death.at <= over and not inquest.accounts_for(death):
            yield death


def _times_to_leave(run: Timeline) -> Iterator[tuple[int, int, str]]:
    """Yields the time span from each notice to leave until the harness removes the node. After a notice to leave, a job
    may save a checkpoint and exit."""
    doubt = _doubt(run)
    for fault in run.faults:
        if fault.injected is not None and fault.notice_ns:
            taken = first_from(fault.strikes, fault.injected)
            yield fault.injected - doubt, min(taken, run.end) + doubt, fault.id


def given(run: Timeline) -> list[dict[str, Any]]:
    """Returns the logged notices to leave the job that a known cause confirms. A known cause is a fault or a cluster
    manager that removes the node, or a fault that asks the rank to end. A node's notice that it is unfit is confirmed
    by a fault on this node that does not kill. A notice from another worker (source `peer`) is confirmed by a cause
    that made that worker leave. Notices that only the trainer reports are left out."""
    doubt, stragglers = _doubt(run), {key_of(each) for each in run.notices if each.get("source") in GAVE_UP}
    aimed = {key_of(target) for fault in run.faults for target in fault.targets}
    taken = {slot.key: slot.released for slot in run.slots if not slot.kept}
    givers = [(run.begin, at + doubt, (node, True)) for node, at in taken.items() if node not in aimed]
    for fault in run.faults:
        if fault.injected is not None and (fault.preempts or fault.graceful or not fault.kills):
            begin, end = fault.injected - BEFORE_NS - doubt, healed_at(run, fault) + doubt
            givers += [(begin, end, (key_of(target), fault.kills)) for target in fault.targets]
    spans = Spans(givers)

    def is_given(notice: dict[str, Any]) -> bool:
        source, here = notice.get("source"), key_of(notice)
        there = spans.at(notice["at"])
        if source == "peer":
            return any(takes or node in stragglers for node, takes in there)
        return any(node == here and takes != (source in GAVE_UP) for node, takes in there)

    return [notice for notice in run.notices if is_given(notice)]


def ends_of(run: Timeline) -> list[End]:
    """Returns the ends of all workers and of all commands that nodes ran, including ends with exit code 0."""
    workers = list(enumerate(run.processes))
    there = grouped((each.key, row) for row, each in workers)
    ended = grouped(((*each.key, each.exited), row) for row, each in workers)
    allocated = {slot.key: slot.allocated for slot in reversed(run.slots)}

    def end(exit_: Mapping[str, Any]) -> End:
        node, rank, at = key_of(exit_), exit_["rank"], exit_["at"]
        if rank is None:
            started = allocated.get(node, at)
            rows = [row for row in there.get(node, ()) if run.processes[row].started <= at]
        else:
            rows = ended.get((*node, at), [])
            started = min((run.processes[row].launched for row in rows), default=run.begin)  # the process left no log
        told = [run.processes[row] for row in rows if rank is not None]
        error = any(process.exit_reason == "error" for process in told)
        met = " ".join(next((process.exit_error for process in told if process.exit_error), "").split())
        met = met if len(met) <= ERROR_CHARS else f"{met[: ERROR_CHARS - 1]}…"
        bad = next((process.own_code for process in told if process.own_code not in (None, *CLEAN_CODES)), int(error))
        code = int(exit_["code"]) or bad  # a failure in the worker's log outweighs its launcher's 0
        return End(*node, rank, code, at, started, tuple(rows), met, error)

    return [*map(end, (*run.exits, *_last_words(run))), *_vanished(run)]


def _last_words(run: Timeline) -> Iterator[dict[str, Any]]:
    """Yields the exits that a worker logged but no launcher, because some launchers write no log."""
    seen = {(*key_of(exit_), exit_["at"]) for exit_ in run.exits if exit_["rank"] is not None}
    for worker in run.processes:
        place = {"node": worker.node, "incarnation": worker.incarnation, "rank": worker.rank}
        if worker.exit_code is not None and (*worker.key, worker.exited) not in seen:
            yield place | {"code": worker.exit_code, "at": worker.exited}


def _vanished(run: Timeline) -> Iterator[End]:
    """Yields the ends of workers that disappeared: other workers did steps without them, but no log has their exit. A
    worker that did no step is left out, because a launcher that writes no log may have replaced the worker."""
    ends = [(slot.released, slot.key) for slot in run.slots]
    ends += [(exit_["at"], key_of(exit_)) for exit_ in run.exits if exit_["rank"] is None]
    over = {node: at for at, node in sorted(ends, reverse=True)}  # the first end of each node
    worlds = sorted(((epoch.begin, frozenset(epoch.processes)) for epoch in run.epochs), key=lambda world: world[0])
    begins = [begin for begin, _ in worlds]
    for row, gone in enumerate(run.processes):
        until = min(over.get(gone.key, run.end), (gone.exited or NEVER) - 1)
        later = worlds[bisect.bisect_right(begins, gone.last_seen) :] if gone.first_step is not None else ()
        ended = (begin for begin, rows in later if begin > until or (row not in rows and _is_over(run, gone, rows)))
        if (without := next(ended, NEVER)) <= until:
            at = without - 1  # before the first step without this worker was done
            yield End(*gone.key, gone.rank, None, at, gone.started, (row,))


def _is_over(run: Timeline, gone: Process, world: Set[int]) -> bool:
    later = (run.processes[row] for row in world if run.processes[row].started > gone.last_seen)
    return gone.exited is None or any((*each.key, each.rank) == (*gone.key, gone.rank) for each in later)


@dataclass(frozen=True)
class _Root:
    """A cause that explains deaths of workers from the time `at` on, but not on the nodes and ranks in `beyond`. The
    process groups `unsettled` contained a killed process: a step in one of them does not prove that a process survived
    the fault. A step that begins at `survived` or later proves that its process survived. A death with a logged error
    is explained only if the worker is one of the fault's targets `aim`."""

    at: int
    beyond: Set[_Place] = frozenset()
    unsettled: Set[int] = frozenset()
    survived: int = NEVER
    aim: Set[_Place] = frozenset()


class _Inquest:
    """Decides for each death of a worker whether a known cause explains it."""

    def __init__(self, run: Timeline, everyone: Sequence[End]):
        self._run, self._doubt = run, _doubt(run)
        lives = ((d.key, d.rank, d.started - self._doubt, d.at + self._doubt, d) for d in everyone)
        self._lives = Located(lives)
        worlds = list(enumerate(run.epochs))  # by process: begin and number of its worlds
        self._worlds = grouped((row, (epoch.begin, number)) for number, epoch in worlds for row in epoch.processes)
        self._last_step = np.zeros(len(run.processes), np.int64)  # by process: begin of its last step
        self._last_step[run.steps.process] = run.steps.begin  # rows are in order of time: the last row of each counts
        starts = sorted((process.started, process.world_size) for process in run.processes)
        self._starts = [at for at, _ in starts]
        # By start: the largest world size of the processes that start then or later.
        self._largest = list(itertools.accumulate((size for _, size in reversed(starts)), max))[::-1]
        self._commits = sorted(save["at"] for save in run.checkpoints if save["event"] == "checkpoint.committed")
        self._notices = Moments((notice["at"], notice) for notice in given(run))
        self._leaves = Spans(_times_to_leave(run))
        struck = [fault for fault in run.faults if fault.injected is not None]
        lemons = [fault for fault in struck if fault.sticks][::-1]
        self._lemons = {target.get("node"): acted_at(each) for each in lemons for target in each.targets}  # first one
        killers, stoppers = [each for each in struck if each.kills], [each for each in struck if each.stops]
        acted = [(at, place) for fault in killers for at in _moments(fault) for place in _aim(fault)]
        by_moment = sorted(acted, key=operator.itemgetter(0))
        self._strikes = grouped((place, at) for at, place in by_moment)  # by place: strikes of faults that kill
        self._at_work = Spans((acted_at(fault), healed_at(run, fault), _aim(fault)) for fault in stoppers)
        roots = [root for fault in killers for root in self._after_kill(fault)]
        self._unsettled = frozenset[int]().union(*(root.unsettled for root in roots))
        roots += [root for fault in stoppers for root in self._after_stop(fault)]
        come = {(slot.allocated, (*slot.key, None)) for slot in run.slots if slot.incarnation > 1}
        roots += [_Root(at, {place}) for at, place in come]  # the arrival of a node excuses no process on this node
        self._roots = Moments((root.at, root) for root in roots)
        # By step: when a fault damaged its checkpoint in a way that no process can notice before it dies of that.
        self._sealed = {told["step"]: told["at"] for fault in struck for told in fault.damaged if told.get("sealed")}

    def accounts_for(self, death: End) -> bool:
        if self._left_in_peace(death) or self._is_target(death):
            return True
        if death.crashed:
            return False
        if any(not death.error or death.is_in(aim) for aim in self._at_work.at(death.at)):
            return True
        mine = [self._run.processes[row] for row in death.processes]
        if any((each.restored or 0) > self._sealed.get(each.restored_step, NEVER) for each in mine):
            return True
        since = self._settled(death, self._unsettled)
        return any(self._goes_with(death, root) for root in self._roots.within(since, death.at + self._doubt))

    def _left_in_peace(self, death: End) -> bool:
        """Returns True if the process exited cleanly after a notice to leave, or before a start of the job with more
        ranks."""
        if death.code not in (None, *CLEAN_CODES):
            return False
        if death.rank is None and death.code == EXIT_LEFT and self._lemons.get(death.node, NEVER) <= death.at:
            return True
        if any(self._notices.within(death.started, death.at)) or (death.code == 0 and any(self._leaves.at(death.at))):
            return True
        worlds = self._largest[bisect.bisect_right(self._starts, death.at) :][:1] if death.code is not None else []
        rows = death.processes if death.rank is not None else ()
        return any(self._run.processes[row].world_size < largest for row in rows for largest in worlds)

    def _is_target(self, death: End) -> bool:
        strikes = (first_from(self._strikes.get(place, []), death.started - self._doubt) for place in death.places)
        return min(strikes) <= death.at + self._doubt

    def _settled(self, death: End, unsettled: Set[int] = frozenset()) -> int:
        """Returns the earliest possible time of the cause of a death: the start of the process or, if it did steps in a
        process group that is not in `unsettled`, the end of its first step in the last such group."""
        worlds = (world for row in death.processes for world in self._worlds.get(row, ()))
        settled = (at for at, number in worlds if at <= death.at and number not in unsettled)
        return max([death.started - self._doubt, *settled])

    def _goes_with(self, death: End, root: _Root) -> bool:
        if self._settled(death, root.unsettled) > root.at or death.is_in(root.beyond):
            return False
        last = max((int(self._last_step[row]) for row in death.processes), default=0)
        return last < root.survived and (not death.error or death.is_in(root.aim))

    def _alive(self, places: Set[_Place], moment: int) -> Iterator[End]:
        for node, incarnation, rank in places:
            yield from self._lives.at((node, incarnation), rank, moment)

    def _after_kill(self, fault: FaultRecord) -> Iterator[_Root]:
        """Yields the causes of other workers' deaths after a fault that kills: each kill, and the end of each killed
        process. The end of a killed process is a cause of its own, because a launcher may start a worker between the
        kill and this end."""
        aim, first = _aim(fault), min(fault.strikes, default=acted_at(fault))
        targets = dict.fromkeys(victim for moment in _moments(fault) for victim in self._alive(aim, moment))
        left = [max(acted_at(fault), self._last_word(other)) for other in targets if other.at < first]
        worlds = (world for other in targets for row in other.processes for world in self._worlds.get(row, ()))
        unsettled = frozenset(number for _, number in worlds)
        yield from (_Root(at, unsettled=unsettled) for at in (*fault.strikes, *left))
        ends = (other.at for other in targets if other.at >= first and other.rank is not None)
        yield from (_Root(at, aim, unsettled) for at in ends)

    def _after_stop(self, fault: FaultRecord) -> Iterator[_Root]:
        """Yields the causes of workers' deaths after a fault that can stop a job: the fault's end, and the ends of
        targets that outlived the fault. A process has survived the fault if the process begins a step over a minute
        after the fault's end and after the next checkpoint. Launchers notice missing heartbeats within a minute; some
        trainers notice a failed checkpoint only when they save the next one."""
        healed, aim = healed_at(self._run, fault), _aim(fault)
        saved = self._commits[bisect.bisect(self._commits, healed) :][:1] if self._commits else [healed]
        survived = max(healed + SURVIVED_NS, *saved) if saved else NEVER
        yield _Root(healed, survived=survived, aim=aim)
        for other in self._alive(aim, healed):
            if other.rank is not None and self._settled(other) <= healed:
                yield _Root(other.at, aim, survived=survived, aim=aim)

    def _last_word(self, death: End) -> int:
        """Returns the time of the last log line of a worker (or of a node's workers), because exits are logged after
        they happen."""
        seen = (self._run.processes[row].last_seen for row in death.processes)
        return max(seen, default=death.at if death.rank is None else death.started)


def _moments(fault: FaultRecord) -> tuple[int, ...]:
    return (acted_at(fault), *fault.strikes)


def _aim(fault: FaultRecord) -> Set[_Place]:
    return {(*key_of(target), target.get("rank")) for target in fault.targets}


def _doubt(run: Timeline) -> int:
    return min(run.uncertainty_ns, CLOCKS_KNOWN_NS)
