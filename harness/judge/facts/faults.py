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
    """Yields the run's faults without those of other rehearsals on the same job."""
    return (fault for fault in run.faults if fault.id not in run.beside.faults)


def struck(evidence: Analysis) -> Iterator[FaultRecord]:
    return (fault for fault in own_faults(evidence.run) if fault.injected is not None)


def stopped(work: Work, fault: FaultRecord) -> int | None:
    """Returns how many ns after it began to act people stopped the fault too early; `None` if they did not."""
    at = fault.cancelled
    if at is None or not work.has_steps or work.last_end <= at:
        return None
    lasted, planned = at - acted_at(fault), 0 if fault.lasts is None else fault.lasts.ns
    return None if fault.effects and lasted >= planned else lasted


@dataclass(frozen=True)
class Effect:
    """A measurement of a fault or of its end. `ok`: as expected, by the fault's own rule."""

    measured: Any  # as told: may be no number
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
        """Returns True if its numbers show that it acted: on all processes or nodes if these are counted, else on a
        part of the expected amount. If nothing was expected, it must have struck none."""
        if not all(isinstance(each, int | float) and math.isfinite(each) for each in (self.measured, self.expected)):
            return False
        if not self.expected:
            return self.ok and self.measured <= 0 and not self.unit.endswith(_GONE)
        short = self.measured < self.expected if self.counted else self.measured <= 0 < self.expected
        return self.ok and not short

    @property
    def is_over(self) -> bool:
        """Returns True if an end was measured. A rate or a time may be nearly what it was; no process may be left."""
        return self.acted if self.counted else self.ok

    @property
    def counted(self) -> bool:
        return self.unit.startswith(_COUNTED)
