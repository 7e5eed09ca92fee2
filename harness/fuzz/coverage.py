"""Records what a search for failing schedules of faults has covered: kinds of faults by phase, and pairs of faults. A
search uses its coverage so far to choose the next schedule of faults.

A trigger does not determine the phase in which its fault acts: "2 s after a node loss" may fall into a rendezvous or a
restore. This module counts, for each form of trigger, how often faults with this trigger acted in each phase of the
job. The *promise* of a schedule estimates how much new coverage a run of the schedule will add."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from harness.fuzz.outcome import Strike

PAIR = 0.5  # worth of a new pair of faults, beside a fault in a new phase
KNOWN = 0.1  # worth of a schedule that holds a failure that is known

Schedule = Sequence[Mapping[str, Any]]


class Aim(NamedTuple):
    kind: str
    trigger: str


def aims_of(schedule: Schedule) -> list[Aim]:
    kinds = {entry["id"]: entry["fault"] for entry in schedule}
    return [Aim(entry["fault"], _form(entry["when"], kinds)) for entry in schedule]


def _form(when: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    parts = [str(when[key]) for key in ("event", "after", "phase") if key in when]
    if "following" in when:
        parts.append(f"following {kinds.get(when['following'], '')}")
    return " ".join(parts) or "step"


def pairs_of(schedule: Schedule) -> set[tuple[str, str]]:
    kinds = sorted(str(entry["fault"]) for entry in schedule)
    return set(combinations(kinds, 2))


@dataclass
class Coverage:
    """The coverage that the runs of a search have reached. `cells` counts how often each kind of fault acted in each
    phase of the job. `pairs` counts how often two kinds of faults acted in the same run."""

    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    reached: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    aimed: Counter[Aim] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)  # in how many passed runs a fault struck
    known: list[frozenset[Aim]] = field(default_factory=list)  # the aims of each failure that was found

    def add(self, schedule: Schedule, strikes: Sequence[Strike]) -> int:
        """Records a run of a schedule, and returns how many pairs (fault and phase, or two faults) are new."""
        aims = {str(entry["id"]): aim for entry, aim in zip(schedule, aims_of(schedule), strict=True)}
        self.aimed.update(aims.values())
        for strike in strikes:
            if strike.fault in aims:
                self.reached[aims[strike.fault].trigger][strike.phase] += 1
        struck = {(strike.kind, strike.phase) for strike in strikes}
        pairs = set(combinations(sorted(strike.kind for strike in strikes), 2))
        new = len(struck - self.cells.keys()) + len(pairs - self.pairs.keys())
        self.cells.update(struck)
        self.pairs.update(pairs)
        return new

    def promise(self, schedule: Schedule) -> float:
        aims = aims_of(schedule)
        told = sum(self._of(aim) for aim in set(aims))
        told += PAIR * sum(1 / (1 + self.pairs[pair]) ** 2 for pair in pairs_of(schedule))
        return told * (KNOWN if any(each <= set(aims) for each in self.known) else 1)

    def _of(self, aim: Aim) -> float:
        seen = self.reached[aim.trigger] if aim.trigger in self.reached else Counter()
        times = sum(seen.values())
        new = sum(count / (1 + self.cells[aim.kind, phase]) ** 2 for phase, count in seen.items())
        return (1 + new) / (1 + times) / (1 + self.aimed[aim])
