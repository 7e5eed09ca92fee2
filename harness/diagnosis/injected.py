"""Finds the faults that were injected into a run, with their measured effects, to grade diagnoses of the run.

A fault without a measured effect is not graded, because the fault may have had no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from harness.errors import UsageError
from harness.faults.contract import build_fault
from harness.log.reading import Log
from harness.log.truth import Place, Truth
from harness.timeline.sorted_events import FaultRecord, Story
from harness.timeline.timeline import Timeline

ELSEWHERE = "it belongs to another rehearsal"
_FILE = re.compile(r"([^\s:]+/[^\s:]+)")


class Victim(NamedTuple):
    """A rank, node or GPU that a fault hit. `rank` is `None` for a whole node. `gpu` is a GPU's number on the node."""

    node: str
    rank: int | None = None
    gpu: int | None = None


@dataclass(frozen=True)
class Injected:
    """One injected fault that had an effect. `begin` is in ns on the run's clock. `nodes` maps each rank to its node
    when the fault began. `at_index_0` is True if the victim is rank 0 or the first node, and `None` without a single
    victim."""

    id: str
    fault: str
    truth: Truth
    begin: int
    victims: tuple[Victim, ...]
    files: tuple[str, ...]  # damaged ones
    nodes: Mapping[int, str]
    at_index_0: bool | None


@dataclass(frozen=True)
class RunFaults:
    """The injected faults of a run, with which diagnosers' answers are compared. `not_graded` holds the id of each
    fault that cannot be graded, and the reason. `wall_offset_ns` is the answers' clock minus the run's clock."""

    name: str
    faults: Sequence[Injected]
    not_graded: Sequence[tuple[str, str]]
    wall_offset_ns: int = 0

    @property
    def is_control(self) -> bool:
        return not self.faults and not self.not_graded

    def moment(self, wall_ns: int | None, step: int | None) -> int | None:
        """Returns the time of a diagnoser's answer in ns on the run's clock, or `None` if the time is unknown."""
        return None if wall_ns is None else wall_ns - self.wall_offset_ns


@dataclass(frozen=True)
class RunTruth(RunFaults):
    log: Log = field(kw_only=True, repr=False)
    ranks: Sequence[int] = field(kw_only=True)

    def wall_ns(self, at: int) -> int:
        return at + self.wall_offset_ns

    def moment(self, wall_ns: int | None, step: int | None) -> int | None:
        """Returns the time of a diagnoser's answer in ns on the run's clock, or `None` if the time is unknown. For an
        answer with a step number, the time is when the first rank ended the step."""
        if wall_ns is None and step is not None:
            return self._first_ends.get(step)
        return super().moment(wall_ns, step)

    @cached_property
    def _first_ends(self) -> Mapping[int, int]:
        steps, ends = self.log.steps["step"], self.log.steps["end"]
        order = np.argsort(-ends, kind="stable")  # the last one of each step wins
        return dict(zip(steps[order].tolist(), ends[order].tolist(), strict=True))


class _Life(NamedTuple):
    rank: int
    node: str
    gpu: int
    started: int


def truth_of_run(name: str, log: Log) -> RunTruth:
    story = Story(log)
    lives = [_Life(life.rank, life.key[0], life.local_rank, life.started) for life in story.lives]
    nodes = [str(event["node"]) for event in story.told("node.allocated")]
    clock = (log.harness or log.writers[0]).header
    return RunTruth(
        name,
        *_truths(story.plan, story.faults, lives, nodes),
        int(clock["wall_ns"]) - int(clock["at"]),
        log=log,
        ranks=sorted({life.rank for life in lives}),
    )


def faults_of(run: Timeline) -> RunFaults:
    """Returns the injected faults of a run, or of one fault test in a run with several fault tests."""
    lives = [_Life(each.rank, each.node, each.local_rank, each.started) for each in run.processes]
    others = {each.id for each in run.beside.earlier} | run.beside.faults
    mine = [each for each in run.faults if each.id not in others]
    found, not_graded = _truths(run.plan, mine, lives, run.nodes)
    return RunFaults("", found, [*not_graded, *((each, ELSEWHERE) for each in sorted(others))])


def _truths(
    plan: Mapping[str, Any], records: Sequence[FaultRecord], lives: Sequence[_Life], nodes: Sequence[str]
) -> tuple[list[Injected], list[tuple[str, str]]]:
    """Returns the faults that can be graded, sorted by time, and the ids of all other faults, each with the reason."""
    planned = {str(each.get("id")): each for each in plan.get("faults") or ()}
    names = list(dict.fromkeys(nodes))
    found = [(record.id, _injected(record, planned.get(record.id, {}), lives, names)) for record in records]
    found += [(each, "it was never injected") for each in planned.keys() - {name for name, _ in found}]
    faults = sorted((each for _, each in found if isinstance(each, Injected)), key=lambda fault: fault.begin)
    return faults, [(fault, why) for fault, why in found if isinstance(why, str)]


def _injected(
    record: FaultRecord, planned: Mapping[str, Any], lives: Sequence[_Life], names: Sequence[str]
) -> Injected | str:
    fault, begin = record.kind or str(planned.get("fault") or ""), record.injected
    truth = truth_of(fault, planned.get("parameters") or {})
    if isinstance(truth, str):
        return truth
    if begin is None or not any(effect.get("ok") for effect in record.effects):
        return "its effect was not measured"
    nodes, gpus = dict[int, str](), dict[int, int]()
    for life in sorted(lives, key=lambda life: (life.started > begin, abs(begin - life.started))):
        nodes.setdefault(life.rank, life.node)  # the newest process counts, else the next one that started
        gpus.setdefault(life.rank, life.gpu)
    victims = [
        Victim(str(target.get("node") or nodes.get(target.get("rank", -1), "")), rank, gpus.get(rank))
        if (rank := target.get("rank")) is not None
        else Victim(str(target.get("node")))
        for target in record.targets
    ]
    if truth.either_side and len(names) == 2:
        victims = list(map(Victim, names))
    at_index_0 = None
    if len(victims) == 1 and truth.place in (Place.RANK, Place.NODE) and not truth.benign:
        rank = victims[0].rank if truth.place is Place.RANK else None
        at_index_0 = victims[0].node == names[0] if rank is None and names else rank == 0
    return Injected(record.id, fault, truth, begin, tuple(victims), tuple(_files(record)), nodes, at_index_0)


def truth_of(fault: str, parameters: Mapping[str, Any]) -> Truth | str:
    """Returns the right diagnosis of a fault with these parameters, or a text that says why no diagnosis is known."""
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
