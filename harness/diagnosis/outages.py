"""Finds what ended workers: the first that died by itself, a node that is gone, a hang, a lost link. Pure.

Workers die in groups: when one dies, its peers lose it, and launchers end the rest. A group ends when the next worker
starts. In each group the rules are asked in turn: was a node given notice; is a node gone; was the job silent for long
before; did one die by itself; did all lose each other.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from harness.diagnosis.answer import Decision, Kind, Suspect
from harness.diagnosis.incident import NS, Incident, names, suspects, told
from harness.diagnosis.view import STACK, Event, Node, View, Worker

SILENCE_NS = 2 * NS  # without a step of any rank before the first death, at least; a death itself is seen in 0.3 s
SILENCE_STEPS = 6  # usual steps that a silence lasts, at least; the slowest step of a noisy host took 4
GONE_WITHIN_NS = 15 * NS  # from the first death until the end of a lost node's command is told
SAME_DEATHS_MAX = 3  # deaths of one rank at one step with the same words, after which the job should stop
ENDED_BY_LAUNCHER = (-9, -15)
OF_PEERS = ("peer", "straggler")  # sources of a notice that no owner of a node gave
LEFT = ("drained", "hang")  # reasons of a worker that ended because of another one
PROGRESS = ("started", "rendezvous", "restored", "checkpoint.started", "checkpoint.committed")
WAITING = ("flight_recorder", "exiting", STACK)  # told by a rank that waits for others
_PEER = re.compile(
    r"\bpeer|connection (closed|reset|refused)|broken pipe|remote (process|error)|time.?out|timed out", re.IGNORECASE
)
_GPU = re.compile(r"\bcuda\b|\bxid\b|\becc\b|nvlink|cublas", re.IGNORECASE)
_STORAGE = re.compile(r"\[Errno (5|28|30|116|122)\]|no space left|input/output error|stale file", re.IGNORECASE)


class Death(NamedTuple):
    """The end of a worker that did not complete. `said`: its own last words. `seen`: who saw it end, and how."""

    at: int
    worker: Worker
    said: Event | None
    seen: Event | None

    @property
    def code(self) -> int | None:
        found = self.seen or self.said
        return found.fields.get("code") if found else None

    @property
    def reason(self) -> str:
        return str(self.said.fields.get("reason") or "") if self.said else ""

    @property
    def words(self) -> str:
        return f"{self.reason} {self.said.fields.get('error') or ''}".strip() if self.said else ""

    @property
    def alone(self) -> bool:
        """Returns True if the worker died by itself: by a signal without a word, or with an error of its own."""
        return self.said is None or not (_PEER.search(self.words) or self.reason in LEFT)


def outages(view: View) -> Iterator[Incident]:
    """Yields what ended workers, in order of time."""
    deaths = sorted(_deaths(view), key=lambda death: death.at)
    starts = sorted(worker.started for worker in view.workers)
    took = [worker.steps["end"] - worker.steps["begin"] for worker in view.workers]
    every = np.concatenate([np.zeros(0), *took])
    patience_ns = max(SILENCE_NS, SILENCE_STEPS * float(np.median(every)) if len(every) else 0.0)
    since, same = view.begin, Counter[tuple[int, int, str]]()
    for _, members in itertools.groupby(deaths, key=lambda death: np.searchsorted(starts, death.at)):
        group = list(members)
        found = _noticed(view, group, since)
        if not found and not any(event.fields.get("source") == "straggler" for event in _notices(view, group, since)):
            found = _gone(view, group) or _silence(view, group, patience_ns) or _alone(group, same) or _lost(group)
        yield from found
        since = group[-1].at


def _deaths(view: View) -> Iterator[Death]:
    commands = {node.key: node.ended for node in view.nodes}
    for worker in view.workers:
        said, command = next(reversed(worker.told("exiting")), None), commands.get(worker.key)
        ends = [event for event in (worker.ended, said) if event]
        if ends and ends[0].fields.get("code") != 0:
            yield Death(min(event.at for event in ends), worker, said, worker.ended)
        elif not ends and command and command.fields.get("code") != 0:
            yield Death(max(command.at, worker.last_step_end), worker, None, command)


def _notices(view: View, group: Sequence[Death], since: int) -> list[Event]:
    return [event for event in view.told("notice") if since <= event.at <= group[-1].at]


def _noticed(view: View, group: Sequence[Death], since: int) -> list[Incident]:
    """Returns one incident for each node whose owner gave notice before this group died."""
    given = [event for event in _notices(view, group, since) if event.fields.get("source") not in OF_PEERS]
    first = {event.place.rpartition(" ")[2]: event for event in reversed(given)}
    ends = [death.seen for death in group]
    return [
        _taken(node, event.at, event.at, f"the owner of {node} takes it back", (event, *ends))
        for node, event in first.items()
    ]


def _gone(view: View, group: Sequence[Death]) -> list[Incident]:
    """Returns one incident for each node that ended under its launcher: with everything on it, and without a word."""
    begin, last = min(death.worker.last_step_end for death in group), group[-1].at + GONE_WITHIN_NS
    found = []
    for node in view.nodes:
        if any(death.worker.key == node.key for death in group) and (event := _vanished(node, begin, last)):
            name, code = node.key[0], event.fields.get("code")
            why = f"{name} is gone: its command ended with {code}, and its launcher said nothing"
            others = (death.seen for death in group if death.worker.key != node.key)
            found.append(_taken(name, begin, event.at, why, (event, *others)))
    return found


def _vanished(node: Node, begin: int, last: int) -> Event | None:
    left = any(event.name == "agent.exiting" for event in node.launcher)
    ended = node.ended if node.ended and node.ended.fields.get("code") != 0 else None
    return ended if ended and not left and begin <= ended.at <= last else None


def _taken(node: str, begin: int, known: int, why: str, evidence: Sequence[Event | None]) -> Incident:
    who = (Suspect(node=node),)
    return Incident(begin, known, Kind.CRASH, who, Decision.RESTART_ELSEWHERE, 0.9, why, told(evidence))


def _silence(view: View, group: Sequence[Death], patience_ns: float) -> list[Incident]:
    """Returns a hang if no rank progressed for long before the first death, or a lost link if all waited alike."""
    first = group[0]
    newest = {worker.rank: worker for worker in view.workers if worker.started <= first.at}
    members = [newest[rank] for rank in sorted(newest)]
    quiet = max((_last_progress(worker, first.at) for worker in members), default=first.at)
    if first.at - quiet < patience_ns or (first.said is None and first.code is not None):
        return []
    waited = [event for worker in members for event in worker.events if quiet < event.at <= first.at + NS]
    evidence = told(event for event in waited if event.name in WAITING)
    late = _late(members, {event.place for event in evidence})
    seconds, decision = (first.at - quiet) / NS, Decision.RESTART_IN_PLACE
    if 0 < len(late) < len(members):
        why = f"no rank did a step for {seconds:.1f} s; the others waited for {names(late)}"
        return [Incident(quiet, first.at, Kind.HANG, suspects(late), decision, 0.8, why, evidence)]
    why = f"no rank did a step for {seconds:.1f} s; all waited for each other at the same place"
    return [Incident(quiet, first.at, Kind.NETWORK, (), decision, 0.4, why, evidence)]


def _last_progress(worker: Worker, before: int) -> int:
    ends = worker.steps["end"]
    place = int(np.searchsorted(ends, before, side="right"))
    signs = (event.at for event in worker.events if event.at <= before and event.name in PROGRESS)
    return max(int(ends[place - 1]) if place else worker.started, worker.started, *signs)


def _late(members: Sequence[Worker], alive: set[str]) -> list[Worker]:
    """Returns the workers for which the others waited: behind in collectives or steps, or without a sign of life."""
    collectives = {worker.rank: worker.told("flight_recorder") for worker in members}
    numbers = {rank: max(event.fields["number"] for event in events) for rank, events in collectives.items() if events}
    furthest, steps = max(numbers.values(), default=0), max(worker.last_step for worker in members)
    behind = [worker for worker in members if numbers.get(worker.rank, furthest) < furthest]
    behind = behind or [worker for worker in members if worker.last_step < steps]
    return behind or [worker for worker in members if worker.place not in alive]


def _alone(group: Sequence[Death], same: Counter[tuple[int, int, str]]) -> list[Incident]:
    """Returns the first worker that died by itself. `same`: how often such a death was met before."""
    death = next((each for each in group if each.alone), None)
    launchers = {each.worker.key for each in group if each.said is None and each.code in ENDED_BY_LAUNCHER}
    if death is None or (len(launchers) > 1 and all(each.said is None for each in group)):
        return []
    words, code = death.words, death.code
    kind = Kind.GPU if _GPU.search(words) else Kind.STORAGE if _STORAGE.search(words) else Kind.CRASH
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    why = f"{death.worker.place} ended first, by {how}{': ' * bool(words)}{words}"
    met = death.worker.rank, death.worker.last_step, words
    same[met] += bool(words)
    decision = Decision.STOP if same[met] >= SAME_DEATHS_MAX else Decision.RESTART_IN_PLACE
    who = () if kind is Kind.STORAGE else suspects([death.worker])
    evidence = told(event for each in (death, *group) for event in (each.said, each.seen))
    return [Incident(death.at, death.at, kind, who, decision, 0.9, why, evidence)]


def _lost(group: Sequence[Death]) -> list[Incident]:
    """Returns the rest: all lost each other, or were ended by launchers that lost each other. Leaving is no failure."""
    if all(death.reason == "drained" for death in group):
        return []
    why, at = "all workers lost their peers, and no worker or node died before", group[0].at
    evidence = told(event for each in group for event in (each.said, each.seen))
    return [Incident(at, at, Kind.NETWORK, (), Decision.RESTART_IN_PLACE, 0.4, why, evidence)]
