"""Reads a file of service level objectives. An objective selects stored runs and sets bounds for the selected runs."""

from __future__ import annotations

import pathlib
from typing import Literal

from pydantic import Field, model_validator

from harness.errors import ScenarioError, choice
from harness.faults.contract import fault_names
from harness.parameters import Parameters, Share
from harness.spec.document import Document, read_text
from harness.spec.scenario import Line, Name
from harness.units import Duration

OBJECTIVES_MAX = 100
RUNS_MIN = 20  # fewest runs; fewer have no 95th percentile


class Waste(Parameters):
    budget: Share
    scope: Literal["faults", "all"] = Field("faults", description="What faults answer for, or all that is wasted.")
    burn_rate_max: float = Field(2.0, gt=1, description="Times the budget, within the burn window.")
    burn_window: Duration = Duration("24h")


class Objective(Parameters):
    id: Name
    severity: Literal["page", "ticket"] = "ticket"
    scenarios: list[Line] = Field([], description="Only runs of these; default: all.", max_length=1000)
    faults: list[Line] = Field([], description="Only runs with a fault of one of these kinds.", max_length=100)
    window: Duration = Duration("672h")
    runs_min: int | None = Field(None, ge=1, description="Fewer judged runs are too little evidence.")
    success: Share | None = None
    recovery_p95: Duration | None = None
    waste: Waste | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Objective:
        if self.success is None and self.recovery_p95 is None and self.waste is None:
            raise ValueError("it asks for nothing: write success:, recovery_p95: or waste:")
        return self


class Slo(Parameters):
    version: Literal[1]
    name: Name
    title: Line
    objectives: list[Objective] = Field(min_length=1, max_length=OBJECTIVES_MAX)


def load_slo(path: pathlib.Path) -> Slo:
    """Reads an objectives file. Raises `ScenarioError` with all mistakes in the file, or `UsageError` if the file
    cannot be read."""
    return parse_slo(read_text(path), str(path))


def parse_slo(text: str, source: str) -> Slo:
    document = Document(text, source)
    if not isinstance(document.data, dict):
        raise ScenarioError([document.at((), "a file of objectives is a mapping that starts with version: 1")])
    slo = document.valid(Slo, document.data)
    seen: set[str] = set()
    for place, objective in enumerate(slo.objectives):
        if objective.id in seen:
            text = f"{objective.id!r} is already the id of another objective; ids are unique"
            document.problem(("objectives", place, "id"), text)
        seen.add(objective.id)
        for number, kind in enumerate(objective.faults):
            if kind not in fault_names():
                text = f"unknown fault {kind!r}; {choice(kind, fault_names())}"
                document.problem(("objectives", place, "faults", number), text)
    document.raise_problems()
    return slo
