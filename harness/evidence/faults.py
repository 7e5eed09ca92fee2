"""Tells which faults of a run were injected, which ones a user stopped early, and which effects of faults were
measured."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from harness.evidence.logs import Evidence
from harness.evidence.work import Work
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Timeline

_COUNTED = ("process", "node")  # prefixes of units that count victims
_GONE = " gone"  # suffix of units that count victims that were struck


def own_faults(run: Timeline) -> Iterator[FaultRecord]:
    """Yields the faults of this run, without the faults of other rehearsals (other fault tests in the same job)."""
    return (fault for fault in run.faults if fault.id not in run.beside.faults)


def struck(evidence: Evidence) -> Iterator[FaultRecord]:
    return (fault for fault in own_faults(evidence.run) if fault.injected is not None)


def stopped(work: Work, fault: FaultRecord) -> int | None:
    """Returns how long (ns) a fault had acted when a user stopped it too early, or `None` if no user stopped it."""
    at = fault.cancelled
    if at is None or not work.has_steps or work.last_end <= at:
        return None
    lasted, planned = at - acted_at(fault), 0 if fault.lasts is None else fault.lasts.ns
    return None if fault.effects and lasted >= planned else lasted


@dataclass(frozen=True)
class Effect:
    measured: Any  # as logged; may not be a number
    expected: Any
    unit: str
    detail: str
    ok: bool  # the fault's own rule accepts the measurement

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        unit, detail = str(told.get("unit", "")), str(told.get("detail") or "")
        return cls(told.get("measured"), told.get("expected"), unit, detail, told.get("ok") is True)

    @property
    def shown(self) -> str:
        return f"{self.measured} {self.unit}".strip()

    @property
    def acted(self) -> bool:
        """Returns True if the fault acted: it hit all planned victims or, if an amount such as a delay in ms was
        measured, the amount is above 0. If the expected amount is 0, the measured amount must not be above 0. Returns
        False if a fault had no planned victims (`expected` is 0 and `unit` ends in "gone")."""
        if not all(isinstance(each, int | float) and math.isfinite(each) for each in (self.measured, self.expected)):
            return False
        if not self.expected:
            return self.ok and self.measured <= 0 and not self.unit.endswith(_GONE)
        short = self.measured < self.expected if self.counted else self.measured <= 0 < self.expected
        return self.ok and not short

    @property
    def is_over(self) -> bool:
        """Returns True if the effect ended: all hit processes or nodes are back or, for other effects, `ok` is True."""
        return self.acted if self.counted else self.ok

    @property
    def counted(self) -> bool:
        return self.unit.startswith(_COUNTED)
