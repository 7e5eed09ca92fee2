"""Defines an incident: one thing that broke in a training job, as found by the built-in diagnoser."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.diagnosis.answer import NAME_MAX, WORDS_MAX, Answer, Decision, Kind, Suspect
from harness.diagnosis.view import Event, View, Worker

_PATH = re.compile(r"'(/[^']+)'")
EVIDENCE_MAX = 8  # events shown of one incident
NS = 10**9


@dataclass(frozen=True)
class Incident:
    """Something that broke at the time `begin`, and that the log showed from the time `known` on (in ns on the run's
    clock). `sure` is the certainty, from 0 to 1."""

    begin: int
    known: int
    kind: Kind
    who: tuple[Suspect, ...]
    decision: Decision
    sure: float
    why: str
    evidence: tuple[Event, ...]

    def answer(self, view: View) -> Answer:
        at = self.known + view.wall_offset_ns
        return Answer(self.kind, self.who, self.decision, self.why[:WORDS_MAX], at, None, self.sure)


def suspects(workers: Iterable[Worker]) -> tuple[Suspect, ...]:
    return tuple(Suspect(worker.rank, worker.node) for worker in workers)


def link(workers: Iterable[Worker]) -> tuple[Suspect, ...]:
    """Returns the network link between the workers' two nodes. Returns an empty tuple if the workers are not on exactly
    two nodes."""
    nodes = sorted({worker.node for worker in workers})
    return (Suspect(link=" and ".join(nodes)),) if len(nodes) == 2 else ()


def files(words: str) -> tuple[Suspect, ...]:
    """Returns the first absolute path in single quotes in an error message, as a suspect. Returns an empty tuple if the
    message names no path."""
    return tuple(Suspect(file=path[:NAME_MAX]) for path in _PATH.findall(words)[:1])


def names(workers: Iterable[Worker]) -> str:
    return ", ".join(worker.place for worker in workers)


def told(events: Iterable[Event | None]) -> tuple[Event, ...]:
    return tuple({id(event): event for event in events if event}.values())[:EVIDENCE_MAX]
