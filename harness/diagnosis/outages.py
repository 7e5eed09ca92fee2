"""Finds the reason why workers ended: a worker that died by itself, a node that is gone, a hang, or a lost link.

Workers die in groups: when one dies, its peers lose the connection, and launchers end the rest. A group of deaths ends
when the next worker starts. For each group of deaths, these causes are checked in order: a node got an eviction notice;
a node is gone; no rank had made progress for long; one worker died by itself; all workers lost each other.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.diagnosis.answer import Decision, Kind, Suspect
from harness.diagnosis.incident import NS, Incident, files, link, names, suspects, told
from harness.diagnosis.links import MANY, Links
from harness.diagnosis.view import STACK, Event, Key, View, Worker

SILENCE_NS = 2 * NS  # without a step of any rank before the first death, at least; a death itself is seen in 0.3 s
SILENCE_STEPS = 6  # usual steps that a silence lasts, at least; the slowest step of a noisy host took 4
GONE_WITHIN_NS = 15 * NS  # from the first death until the end of a lost node's command is told
NEVER = 2**62  # ns
SAME_CAUSE_NS = 60 * NS  # errors that name addresses count so long
LAUNCHER_NS, LAUNCHER_TIMES = 2 * NS, 4.0  # a launcher is late: at least, and times that of the next slowest one
SAME_DEATHS_MAX = 3  # deaths of one rank at one step with the same words, after which the job should stop
ENDED_BY_LAUNCHER = (-9, -15)
OF_PEERS = ("peer", "straggler")  # sources of a notice that no owner of a node gave
LEFT = ("drained", "hang")  # reasons of a worker that ended because of another one
PROGRESS = ("started", "rendezvous", "restored", "checkpoint.started", "checkpoint.committed")
WAITING = ("flight_recorder", "exiting", STACK)  # told by a rank that waits for others
_PEER = re.compile(
    r"\bpeer|connection (closed|reset|refused)|broken pipe|remote (process|error)|time.?out|timed out", re.IGNORECASE
)
_ADDRESS = re.compile(r"((?:\d{1,3}\.){3}\d{1,3})\]?:\d+")
_GPU = re.compile(r"\bcuda\b|\bxid\b|\becc\b|nvlink|cublas", re.IGNORECASE)
_STORAGE = re.compile(r"\[Errno (2|5|28|30|116|122)\]|no space left|input/output error|stale file", re.IGNORECASE)


class Death(NamedTuple):
    """The end of a worker that still had steps to do. `said` is the worker's own log entry about the end, and `seen` is
    the entry of the launcher or the cluster."""

    at: int
    worker: Worker
    said: Event | None
    seen: Event | None

    @property
    def code(self) -> int | None:
        found = self.seen or self.said
        return found.fields.get("code") if found else None

    @property
    def words(self) -> str:
        told = self.said.fields if self.said else {}
        return f"{told.get('reason') or ''} {told.get('error') or ''}".strip()

    @property
    def alone(self) -> bool:
        """Returns True unless the worker's own last log entry says that the worker ended because of another worker."""
        return not (_PEER.search(self.words) or self.words in LEFT)


class Report(NamedTuple):
    at: int
    teller: str
    named: frozenset[str]


class _Outages:
    def __init__(self, view: View) -> None:
        self.workers, self.nodes = view.workers, {node.key: node for node in view.nodes}
        self.starts = [worker.started for worker in view.workers]
        self.starts_on: dict[Key, list[int]] = {}
        for worker in view.workers:
            self.starts_on.setdefault(worker.key, []).append(worker.started)
        self.notices = view.told("notice")
        self.noticed_at = [event.at for event in self.notices]
        self.begin, self.size = view.begin, len({worker.rank for worker in view.workers})
        took = np.concatenate([np.zeros(0), *(each.steps["end"] - each.steps["begin"] for each in view.workers)])
        self.patience_ns = max(SILENCE_NS, SILENCE_STEPS * float(np.median(took)) if len(took) else 0.0)
        self.links = Links(view)
        self.at_address, self.reports = view.at_address, list[Report]()
        self.usage = view.told("usage")
        self.used_at = [event.at for event in self.usage]
        self.same = Counter[tuple[int, int, str]]()  # deaths by rank, last step and words

    def incidents(self) -> Iterator[Incident]:
        deaths, since = sorted(self._deaths(), key=lambda death: death.at), self.begin
        for _, members in itertools.groupby(deaths, key=lambda death: bisect.bisect_left(self.starts, death.at)):
            group = list(members)
            begin, end = (bisect.bisect_left(self.noticed_at, at) for at in (since, group[-1].at + 1))
            notices, since = self.notices[begin:end], group[-1].at
            given = [event for event in notices if event.fields.get("source") not in OF_PEERS]
            if given or not any(event.fields.get("source") == "straggler" for event in notices):
                yield from _noticed(given, group) or self._gone(group) or self._silence(group) or self._rest(group)

    def _deaths(self) -> Iterator[Death]:
        for worker in self.workers:
            said, node = next(reversed(worker.told("exiting")), None), self.nodes.get(worker.key)
            ends, command = [event for event in (worker.ended, said) if event], node.ended if node else None
            if ends and ends[0].fields.get("code") != 0:
                yield Death(min(event.at for event in ends), worker, said, worker.ended)
            elif not ends and command and command.fields.get("code") != 0:
                yield Death(max(command.at, worker.last_step_end), worker, None, command)

    def _gone(self, group: Sequence[Death]) -> list[Incident]:
        """Returns an incident for each node that vanished: its command failed, and its launcher logged no exit."""
        begin, last = min(death.worker.last_step_end for death in group), group[-1].at + GONE_WITHIN_NS
        found = []
        for key in dict.fromkeys(death.worker.key for death in group):
            node = self.nodes.get(key)
            event = node.ended if node and not any(each.name == "agent.exiting" for each in node.launcher) else None
            again = self._next_start(key, group[-1].at)  # the node lived on, and was lost later
            if event and event.fields.get("code") != 0 and begin <= event.at <= min(last, again):
                why = f"{key[0]} is gone: its command ended with {event.fields.get('code')} without a word"
                others = (death.seen for death in group if death.worker.key != key)
                found.append(_taken(key[0], begin, event.at, why, (event, *others)))
        return found

    def _next_start(self, key: Key, after: int) -> int:
        mine = self.starts_on.get(key, [])
        place = bisect.bisect_right(mine, after)
        return mine[place] if place < len(mine) else NEVER

    def _silence(self, group: Sequence[Death]) -> list[Incident]:
        first = group[0]
        place = bisect.bisect_right(self.starts, first.at)
        newest = {worker.rank: worker for worker in self.workers[max(0, place - 2 * self.size) : place]}
        members = [newest[rank] for rank in sorted(newest)]
        quiet = max((_last_progress(worker, first.at) for worker in members), default=first.at)
        if first.at - quiet < self.patience_ns or (first.said is None and first.code is not None):
            return []
        waited = [event for worker in members for event in worker.events if quiet < event.at <= first.at + NS]
        evidence = told(event for event in waited if event.name in WAITING)
        bad = self.links.bad_node(quiet, first.at)
        late = [] if bad and bad.node else _late(members, {event.place for event in waited if event.name in WAITING})
        why, decision = f"no rank did a step for {(first.at - quiet) / NS:.1f} s", Decision.RESTART_IN_PLACE
        if 0 < 2 * len(late) <= len(members):  # if most are behind, the rank that is ahead is no sign of a culprit
            why = f"{why}; the others waited for {names(late)}"
            return [Incident(quiet, first.at, Kind.HANG, suspects(late), decision, 0.8, why, evidence)]
        why, (who, known) = f"{why}; all waited for each other", self._cut_off(members, group, quiet)
        return [Incident(quiet, max(first.at, known), Kind.NETWORK, who or link(members), decision, 0.4, why, evidence)]

    def _cut_off(
        self, members: Sequence[Worker], group: Sequence[Death], quiet: int
    ) -> tuple[tuple[Suspect, ...], int]:
        """Returns the node whose network failed, and the time of the last evidence. With two nodes, returns no node,
        because both nodes would show the same signs. Otherwise, the first of these signs decides: the node's
        connections were bad; most network errors come from the node or name its address; the node's launcher was far
        behind the others."""
        if len({worker.node for worker in members}) < MANY:
            return (), 0
        bad = self.links.bad_node(quiet, group[0].at)
        if bad and bad.node:
            return (Suspect(node=bad.node),), bad.known
        since = group[0].at - SAME_CAUSE_NS
        self.reports = [each for each in self.reports if each.at >= since]
        for death in group:
            if named := {self.at_address[each] for each in _ADDRESS.findall(death.words) if each in self.at_address}:
                self.reports.append(Report(death.at, death.worker.node, frozenset(named - {death.worker.node})))
        counts = Counter(node for each in self.reports for node in (each.teller, *each.named))
        told = Counter(node for each in self.reports for node in each.named)
        ranked = sorted(counts, key=lambda node: (counts[node], told[node]), reverse=True)
        if ranked:
            return (Suspect(node=ranked[0]),), max(each.at for each in self.reports)
        lags = {death.worker.node: death.seen.at - death.said.at for death in group if death.seen and death.said}
        slowest = sorted(lags, key=lambda node: lags[node])[-2:]
        if len(slowest) == 2 and lags[slowest[1]] > max(LAUNCHER_NS, LAUNCHER_TIMES * lags[slowest[0]]):
            return (Suspect(node=slowest[1]),), max(death.seen.at for death in group if death.seen)
        return (), 0

    def _rest(self, group: Sequence[Death]) -> list[Incident]:
        """Returns the death of the first worker that died by itself, or else a lost link. Returns nothing if all
        workers ended because new nodes joined the job."""
        evidence, at = told(event for each in group for event in (each.said, each.seen)), group[0].at
        death = next((each for each in group if each.alone), None)
        launchers = {each.worker.key for each in group if each.code in ENDED_BY_LAUNCHER and each.said is None}
        if death is None or (len(launchers) > 1 and all(each.said is None for each in group)):
            place = bisect.bisect_right(self.starts, group[-1].at)
            if len({worker.rank for worker in self.workers[place : place + self.size]}) > len(group):
                return []  # nodes came, for which all workers start anew
            why = "all workers left or lost their peers, and no worker or node failed before"
            who, known = self._cut_off([each.worker for each in group], group, at - NS)
            return [Incident(at, max(at, known), Kind.NETWORK, who, Decision.RESTART_IN_PLACE, 0.4, why, evidence)]
        words, code, driver = death.words, death.code, self._told_by_driver(death)
        kind = Kind.GPU if _GPU.search(words) or driver else Kind.STORAGE if _STORAGE.search(words) else Kind.CRASH
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        why = f"{death.worker.place} ended first, by {how}{': ' * bool(words)}{words}{driver}"
        met = death.worker.rank, death.worker.last_step, words
        self.same[met] += bool(words)
        decision = Decision.STOP if self.same[met] >= SAME_DEATHS_MAX else Decision.RESTART_IN_PLACE
        own = death.said.fields if death.said else {"reason": "error"}
        refused = not own.get("error") and own.get("reason") != "error"  # it left, and is not what broke
        who, sure = ((), 0.5) if refused else (suspects([death.worker]), 0.9)
        who = files(words) if kind is Kind.STORAGE else who
        return [Incident(death.at, death.at, kind, who, decision, sure, why, evidence)]

    def _told_by_driver(self, death: Death) -> str:
        place, before = f" {death.worker.node}", dict[object, Mapping[str, Any]]()
        first, end = (bisect.bisect_left(self.used_at, at) for at in (death.at - SAME_CAUSE_NS, death.at + 1))
        mine = (event for event in self.usage[first:end] if event.place.endswith(place))
        for gpu in (gpu for event in mine for gpu in event.fields.get("gpus") or ()):
            old = before.setdefault(gpu["gpu"], gpu)
            if (gpu.get("xids") or 0) > (old.get("xids") or 0) or (gpu.get("lost") and not old.get("lost")):
                error = "fell off the bus" if gpu.get("lost") else f"had XID {gpu.get('xid')}"
                return f"; before that GPU {gpu['gpu']} of{place} {error}, as its driver told"
        return ""


def outages(view: View) -> Iterator[Incident]:
    yield from _Outages(view).incidents()
    used = {worker.key for worker in view.workers}
    for node in view.nodes:
        ended, serves = node.ended, node.key not in used and not node.launcher and not node.allocated
        if ended and ended.fields.get("code") != 0 and serves:
            why = f"what ran on {node.key[0]}, which has no worker, ended with {ended.fields.get('code')}"
            who, decision = (Suspect(node=node.key[0]),), Decision.RESTART_IN_PLACE
            yield Incident(ended.at, ended.at, Kind.CRASH, who, decision, 0.8, why, (ended,))


def _noticed(given: Sequence[Event], group: Sequence[Death]) -> list[Incident]:
    first = {event.place.rpartition(" ")[2]: event for event in reversed(given)}
    ends, why = [death.seen for death in group], "the owner of {} takes it back"
    return [_taken(each, told.at, told.at, why.format(each), (told, *ends)) for each, told in first.items()]


def _taken(node: str, begin: int, known: int, why: str, evidence: Sequence[Event | None]) -> Incident:
    who = (Suspect(node=node),)
    return Incident(begin, known, Kind.CRASH, who, Decision.RESTART_ELSEWHERE, 0.9, why, told(evidence))


def _last_progress(worker: Worker, before: int) -> int:
    place = int(np.searchsorted(worker.steps["end"], before, side="right"))
    signs = (event.at for event in worker.events if event.at <= before and event.name in PROGRESS)
    return max(int(worker.steps["end"][place - 1]) if place else worker.started, worker.started, *signs)


def _late(members: Sequence[Worker], alive: set[str]) -> list[Worker]:
    """Returns the workers that are behind in collectives or, without any, in steps. If no worker is behind, returns the
    workers whose logs show no wait for others."""
    collectives = {worker.rank: worker.told("flight_recorder") for worker in members}
    numbers = {rank: max(event.fields["number"] for event in events) for rank, events in collectives.items() if events}
    furthest, steps = max(numbers.values(), default=0), max(worker.last_step for worker in members)
    behind = [worker for worker in members if numbers.get(worker.rank, furthest) < furthest]
    behind = behind or [worker for worker in members if worker.last_step < steps]
    return behind or [worker for worker in members if worker.place not in alive]
