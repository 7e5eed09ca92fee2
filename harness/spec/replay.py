"""Replays a trace of node failures on a job: decides when faults act, and on which nodes.

Nodes that fail at the same time become one fault with several targets. If a trace has more nodes than the job, k failed
nodes become ⌈k · job nodes / trace nodes⌉ targets, so that at least the same share of nodes fails at once.
"""

import math
import pathlib
import random
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from harness import units
from harness.errors import ScenarioError, choice
from harness.parameters import Parameters
from harness.spec.traces import Happening, Trace, find_trace, load_trace
from harness.units import Duration, counted

MOMENTS_MAX = 1000
_S = 10**9

Speed = Annotated[
    float, BeforeValidator(units.parse_speed), WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?x$"})
]


class ReplaySpec(Parameters):
    """How a scenario replays a trace of node failures: file, speed and window."""

    trace: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="The moments and nodes of this trace: a file beside this one, or in `traces/` there."
    )
    speed: Speed = Field(1.0, description="Times as fast: 60x.")
    window: tuple[Duration, Duration] | None = Field(None, description="From when to when of the trace's own time.")
    merge_within: Duration = Field(Duration("1s"), description="Moments closer than this, once sped up, are one fault.")

    @model_validator(mode="after")
    def _belongs_to_a_trace(self) -> Self:
        if self.trace is None and (stray := self.model_fields_set & (ReplaySpec.model_fields.keys() - {"trace"})):
            raise ValueError(f"{min(stray)}: belongs to trace:")
        if self.window is not None and self.window[0].ns >= self.window[1].ns:
            raise ValueError(f"window: {self.window[0]} to {self.window[1]} is empty; write [from, to], like [1h, 3h]")
        return self

    def found(self, *folders: pathlib.Path, events: Set[str] | None = None) -> "Replay":
        """Loads the trace from the first of `folders` that has it. Raises `UsageError` if no folder has the trace."""
        assert self.trace is not None, "whoever asks has looked"
        trace = load_trace(find_trace(self.trace, *folders))
        return Replay(trace, self.speed, self.window, self.merge_within, events)


@dataclass(frozen=True)
class Strike:
    at_ns: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Replay:
    """A trace of node failures, and how to replay it. `events` names the events to replay; `None` means all."""

    trace: Trace
    speed: float
    window: tuple[Duration, Duration] | None
    merge_within: Duration
    events: Set[str] | None = None

    @property
    def happenings(self) -> list[Happening]:
        """Returns the trace's events that are replayed. Raises `ScenarioError` if the trace lacks one in `events`."""
        known, events = {each.event for each in self.trace.happenings}, self.events
        if unknown := next((each for each in sorted(events or ()) if each not in known), None):
            raise ScenarioError([f"{self.trace.name} has no event {unknown!r}; {choice(unknown, sorted(known))}"])
        begin_ns, end_ns = (each.ns for each in self.window) if self.window else (0, math.inf)
        within = (each for each in self.trace.happenings if begin_ns <= each.at_s * _S < end_ns)
        return [each for each in within if events is None or each.event in events]

    def strikes(self, nodes: int, seed: int) -> Iterator[Strike]:
        """Yields the faults for a job of this size, in order of time. If the trace names its lost nodes, and the job
        has enough nodes, the seed assigns each name to one node. If the trace has no names, the seed chooses the
        nodes."""
        dice = random.Random(f"{seed}/{self.trace.digest}")
        names = dict.fromkeys(each.node for each in self.trace.happenings)
        places = {}
        if "" not in names and len(names) <= nodes:
            places = dict(zip(names, dice.sample(range(nodes), len(names)), strict=True))
        dice = random.Random(f"{seed}/{self.trace.digest}/{sorted(self.events or ())}")
        for moment in self._moments():
            gone = {each.node for each in moment}
            many = len(moment) if "" in gone else len(gone)
            drawn = dice.sample(range(nodes), self._share(many, nodes))
            chosen = [places[name] for name in gone] if places else drawn
            yield Strike(self._at_ns(moment[0]), tuple(sorted(chosen)))

    def words(self, nodes: int) -> str:
        moments, trace = self._moments(), self.trace
        went = sum(map(len, moments))
        at = len({each.at_s for moment in moments for each in moment})
        window = "" if self.window is None else f", from {self.window[0]} to {self.window[1]}"
        said = f"{trace.name} ({trace.format}, SHA-256 {trace.digest[:16]}…), {self.speed:g} times as fast{window}: "
        said += f"{counted(went, 'node')} went at {counted(at, 'moment')}, replayed as {counted(len(moments), 'fault')}"
        if merged := at - len(moments):
            said += f"; {counted(merged, 'moment')} came within {self.merge_within} after another one: merged with it"
        if trace.nodes > nodes:
            said += f"; of {trace.nodes} nodes there, k stand for ⌈k · {nodes}/{trace.nodes}⌉ here"
        return said

    def _share(self, gone: int, nodes: int) -> int:
        return min(nodes, -(-gone * nodes // max(self.trace.nodes, nodes)))

    def _at_ns(self, each: Happening) -> int:
        begin_ns = self.window[0].ns if self.window else 0
        return round((each.at_s * _S - begin_ns) / self.speed)

    def _moments(self) -> list[list[Happening]]:
        found: list[list[Happening]] = []
        for each in self.happenings:
            if found and self._at_ns(each) - self._at_ns(found[-1][0]) < max(1, self.merge_within.ns):
                found[-1].append(each)
            else:
                found.append([each])
        if not 0 < len(found) <= MOMENTS_MAX:
            many = f"{counted(len(found), 'moment')} in the window; 1 to {MOMENTS_MAX:,} are replayed"
            raise ScenarioError([f"{self.trace.name}: {many}"])
        return found
