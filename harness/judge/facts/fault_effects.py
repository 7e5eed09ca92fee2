"""What was measured of each fault: its effect, its end, and what it damaged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_times import stopped
from harness.judge.facts.known import OfFault
from harness.judge.facts.strikes import struck
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at

COUNTED = ("process", "node")  # how units begin that count victims
GONE = " gone"  # how units end that count victims which were struck


@dataclass(frozen=True)
class Effect:
    """`counted`: it counts processes or nodes, so all of them must be struck. `none_is_good`: where none is expected,
    none is as it should be; a fault that was to strike none struck nobody."""

    measured: Any  # as told: it may be no number
    expected: Any
    unit: str
    detail: str
    ok: bool  # by the fault's own rule
    counted: bool
    none_is_good: bool

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Effect:
        unit, detail, ok = str(told.get("unit", "")), str(told.get("detail") or ""), told.get("ok") is True
        counted, none_is_good = unit.startswith(COUNTED), not unit.endswith(GONE)
        return cls(told.get("measured"), told.get("expected"), unit, detail, ok, counted, none_is_good)

    @property
    def shown(self) -> str:
        return f"{self.measured} {self.unit}".strip()

    @property
    def is_measured(self) -> bool:
        return all(isinstance(each, int | float) and math.isfinite(each) for each in (self.measured, self.expected))

    @property
    def falls_short(self) -> bool:
        """Whether its numbers say that it did not act, whatever else is said: nothing where something was expected,
        something where nothing was; or not all of the processes or nodes."""
        if not self.is_measured:
            return True
        if not self.expected:
            return bool(self.measured > 0) or not self.none_is_good
        least = self.expected if self.counted else np.nextafter(0, 1)
        return bool(self.measured < least <= self.expected)


@dataclass(frozen=True)
class NoEffect(OfFault):
    """It struck, and no effect was measured."""


@dataclass(frozen=True)
class BeforeItsFault(OfFault):
    """Its effect was measured before it began to act."""

    early_ns: int


@dataclass(frozen=True)
class NotAsExpected(OfFault):
    effect: Effect


@dataclass(frozen=True)
class LeftAsItWas(OfFault):
    """The harness had seen the same content of a checkpoint before the fault damaged it."""

    path: str


def no_effect(evidence: Analysis) -> Iterator[NoEffect]:
    for fault in struck(evidence):
        if not fault.effects and not fault.error and not stopped(evidence.work, fault):
            yield NoEffect(fault.id)


def before_their_faults(evidence: Analysis) -> Iterator[BeforeItsFault]:
    for fault in struck(evidence):
        early = [acted_at(fault) - effect["at"] for effect in fault.effects]
        yield from (BeforeItsFault(fault.id, each) for each in early if each > evidence.run.uncertainty_ns)


def not_as_expected(evidence: Analysis) -> Iterator[NotAsExpected]:
    for fault in struck(evidence):
        effects = map(Effect.of, fault.effects)
        yield from (NotAsExpected(fault.id, effect) for effect in effects if not effect.ok or effect.falls_short)


def left_as_it_was(evidence: Analysis) -> Iterator[LeftAsItWas]:
    """The harness may see the damage before it is told. A digest of samples does not show each change."""
    whole = (event for event in reversed(evidence.run.published) if not event.get("sampled"))
    first_seen = {(event.get("path"), event.get("sha256")): event["at"] for event in whole}
    for fault in struck(evidence):
        for damage in fault.damaged:
            path, digest = str(damage.get("checkpoint")), damage.get("sha256")
            begun = damage["at"] if fault.injecting is None else fault.injecting
            if digest and first_seen.get((path, digest), NEVER) < begun:
                yield LeftAsItWas(fault.id, path)
