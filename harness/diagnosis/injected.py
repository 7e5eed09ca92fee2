"""The faults that were injected into a run, with their measured effects, as the grading needs them. Pure.

A fault whose effect was not measured is not graded: it may not have acted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from harness.errors import UsageError
from harness.faults.contract import build_fault
from harness.log.reading import Log
from harness.log.truth import Place, Truth
from harness.timeline.sorted_events import FaultRecord, Story

_FILE = re.compile(r"([^\s:]+/[^\s:]+)")


class Victim(NamedTuple):
    """A struck place. `rank`: `None` if the whole node was struck. `gpu`: the number of the rank's GPU on its node."""

    node: str
    rank: int | None = None
    gpu: int | None = None


@dataclass(frozen=True)
class Injected:
    """One fault that acted. `begin`: ns on the run's clock. `nodes`: node by rank at that time. `at_index_0`: whether
    the victim is rank 0 or the first node; `None`: the fault has no single victim."""

    id: str
    fault: str
    truth: Truth
    begin: int
    victims: tuple[Victim, ...]
    files: tuple[str, ...]  # damaged ones
    nodes: Mapping[int, str]
    at_index_0: bool | None


@dataclass(frozen=True)
class RunTruth:
    """What happened in a run. `not_graded`: id and reason of each fault without a known truth."""

    name: str
    log: Log
    faults: Sequence[Injected]
    not_graded: Sequence[tuple[str, str]]
    ranks: Sequence[int]

    @property
    def is_control(self) -> bool:
        """Returns True for a run in which nothing was to be injected."""
        return not self.faults and not self.not_graded

    @cached_property
    def _wall_offset_ns(self) -> int:
        clock = (self.log.harness or self.log.writers[0]).header
        return int(clock["wall_ns"]) - int(clock["at"])

    def wall_ns(self, at: int) -> int:
        return at + self._wall_offset_ns

    def moment(self, wall_ns: int | None, step: int | None) -> int | None:
        """Returns the time of an answer on the run's clock; `None` if it is not known. An answer that counts steps
        was given when the first rank ended that step."""
        if wall_ns is not None:
            return wall_ns - self._wall_offset_ns
        return None if step is None else self._first_ends.get(step)

    @cached_property
    def _first_ends(self) -> Mapping[int, int]:
        steps, ends = self.log.steps["step"], self.log.steps["end"]
        order = np.argsort(-ends, kind="stable")  # the last one of each step wins
        return dict(zip(steps[order].tolist(), ends[order].tolist(), strict=True))


def truth_of_run(name: str, log: Log) -> RunTruth:
    """Returns the truth of a run, from the plan in its log and the measured effects."""
    story = Story(log)
    planned = {str(each.get("id")): each for each in story.plan.get("faults") or ()}
    found = [(record.id, _injected(story, record, planned.get(record.id, {}))) for record in story.faults]
    found += [(each, "it was never injected") for each in planned.keys() - {name for name, _ in found}]
    faults = sorted((each for _, each in found if isinstance(each, Injected)), key=lambda fault: fault.begin)
    not_graded = [(fault, why) for fault, why in found if isinstance(why, str)]
    return RunTruth(name, log, faults, not_graded, sorted({life.rank for life in story.lives}))


def _injected(story: Story, record: FaultRecord, planned: Mapping[str, Any]) -> Injected | str:
    """Returns a fault for grading, or the reason why it is not graded."""
    fault, begin = record.kind or str(planned.get("fault") or ""), record.injected
    truth = truth_of(fault, planned.get("parameters") or {})
    if isinstance(truth, str):
        return truth
    if begin is None or not any(effect.get("ok") for effect in record.effects):
        return "its effect was not measured"
    nodes, gpus = dict[int, str](), dict[int, int]()
    for life in sorted(story.lives, key=lambda life: (life.started > begin, abs(begin - life.started))):
        nodes.setdefault(life.rank, life.key[0])  # the newest process counts, else the next one that started
        gpus.setdefault(life.rank, life.local_rank)
    victims = [
        Victim(str(target.get("node") or nodes.get(target.get("rank", -1), "")), rank, gpus.get(rank))
        if (rank := target.get("rank")) is not None
        else Victim(str(target.get("node")))
        for target in record.targets
    ]
    names = list(dict.fromkeys(str(event["node"]) for event in story.told("node.allocated")))
    if truth.either_side and len(names) == 2:
        victims = list(map(Victim, names))
    at_index_0 = None
    if len(victims) == 1 and truth.place in (Place.RANK, Place.NODE) and not truth.benign:
        rank = victims[0].rank if truth.place is Place.RANK else None
        at_index_0 = victims[0].node == names[0] if rank is None and names else rank == 0
    return Injected(record.id, fault, truth, begin, tuple(victims), tuple(_files(record)), nodes, at_index_0)


def truth_of(fault: str, parameters: Mapping[str, Any]) -> Truth | str:
    """Returns the right answers about a fault with these parameters, or why nobody knows them here."""
    try:
        truth = build_fault(fault, parameters).true_answers()
    except UsageError as error:
        return str(error)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{fault}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return truth if isinstance(truth, Truth) else f"{fault} does not say which answers are right"


def _files(record: FaultRecord) -> Iterator[str]:
    for event in record.damaged:
        yield from filter(None, (str(event["path"]), str(event.get("checkpoint") or "")))
    for effect in record.effects:
        yield from _FILE.findall(str(effect.get("detail") or ""))
