"""The faults of a run: which ones struck, which ones people stopped, and what was measured of each."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.work import Work
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Timeline

_COUNTED = ("process", "node")  # prefixes of units that count victims
_GONE = " gone"  # suffix of units that count victims that were struck


def own_faults(run: Timeline) -> Iterator[FaultRecord]:
    """Yields the run's own faults. Faults of other rehearsals on the same job are left out."""
    return (fault for fault in run.faults if fault.id not in run.beside.faults)


def struck(evidence: Analysis) -> Iterator[FaultRecord]:
    return (fault for fault in own_faults(evidence.run) if fault.injected is not None)


def stopped(work: Work, fault: FaultRecord) -> int | None:
    """Returns how many ns the fault had acted when people stopped it too early; `None` if nobody stopped it early."""
    at = fault.cancelled
    if at is None or not work.has_steps or work.last_end <= at:
        return None
    lasted, planned = at - acted_at(fault), 0 if fault.lasts is None else fault.lasts.ns
    return None if fault.effects and lasted >= planned else lasted


@dataclass(frozen=True)
class Effect:
    """A measurement of a fault or of its end. `ok`: the fault's own rule accepts the measurement."""

    measured: Any  # as logged; may not be a number
    expected: Any
    unit: str
    detail: str
    ok: bool

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        unit, detail = str(told.get("unit", "")), str(told.get("detail") or "")
        return cls(told.get("measured"), told.get("expected"), unit, detail, told.get("ok") is True)

    @property
    def shown(self) -> str:
        return f"{self.measured} {self.unit}".strip()

    @property
    def acted(self) -> bool:
        """Returns True if the numbers show that the fault acted. If the unit counts processes or nodes, all must be
        affected; for other units, any part of the expected amount is enough. If 0 is expected, at most 0 may be
        measured. A fault that struck 0 of 0 victims (unit ending in "gone") did not act."""
        if not all(isinstance(each, int | float) and math.isfinite(each) for each in (self.measured, self.expected)):
            return False
        if not self.expected:
            return self.ok and self.measured <= 0 and not self.unit.endswith(_GONE)
        short = self.measured < self.expected if self.counted else self.measured <= 0 < self.expected
        return self.ok and not short

    @property
    def is_over(self) -> bool:
        """Returns True if an end was measured. All processes or nodes must be back; a rate or a time only nearly."""
        return self.acted if self.counted else self.ok

    @property
    def counted(self) -> bool:
        return self.unit.startswith(_COUNTED)
