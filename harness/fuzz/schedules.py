"""Handles schedules of faults, each of which lists the faults of one run in the format of a scenario file. All
schedules of a search are for the same job (`Base`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import yaml
from pydantic import ValidationError

from harness.errors import ScenarioError
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.spec.scenario import Scenario, parse_scenario
from harness.trainers.contract import Workload

Entry = Mapping[str, Any]
"""One fault as written under `faults:`, with `id`, `fault`, `when`, `target` and its parameters."""

Schedule = Sequence[Entry]

SHARED = {"expect", "abort", "limits", "price_per_gpu_hour"}  # beside the workload
OF_AN_ENTRY = ("id", "fault", "when", "target")
LASTS_S_MAX = 20.0  # duration of one fault
NAME_MAX = 40  # characters of the base's name in the names of runs


def parameters_of(entry: Entry) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in OF_AN_ENTRY}


def key_of(schedule: Schedule) -> str:
    return json.dumps(schedule, sort_keys=True)


def renamed(schedule: Schedule) -> list[dict[str, Any]]:
    """Renames the faults of a schedule to f1, f2, … in their order."""
    names = {entry["id"]: f"f{number}" for number, entry in enumerate(schedule, 1)}
    found = []
    for entry in schedule:
        when = dict(entry["when"])
        if "following" in when:
            when["following"] = names[when["following"]]
        found.append({**entry, "id": names[entry["id"]], "when": when})
    return found


def without(schedule: Schedule, gone: int) -> list[dict[str, Any]]:
    """Returns the schedule without one of its faults. A fault that was triggered by the removed fault gets the trigger
    of the removed fault."""
    lost = schedule[gone]
    kept = [dict(entry) for place, entry in enumerate(schedule) if place != gone]
    for entry in kept:
        if entry["when"].get("following") == lost["id"]:
            entry["when"] = lost["when"]
    return renamed(kept)


@dataclass(frozen=True)
class Base:
    """The job on which a search tries its schedules of faults. The faults in the job's own scenario are ignored."""

    spec: Scenario
    seed: int
    backend: str

    @cached_property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = {"workload": _short(self.spec.workload)}
        return values | self.spec.model_dump(mode="json", include=SHARED, exclude_defaults=True)

    @property
    def name(self) -> str:
        return f"fuzz-{self.spec.name}"[:NAME_MAX].rstrip("-")

    @cached_property
    def digest(self) -> str:
        """Returns a hash of everything that affects the outcome of a schedule, except the trainer's files."""
        told = json.dumps([self.values, self.seed, self.backend], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def text(self, schedule: Schedule, name: str = "", title: str = "Faults drawn at random") -> str:
        head = {"version": 1, "name": name or self.name, "title": title}
        written = {**head, **self.values, "faults": [dict(entry) for entry in schedule]}
        plain = json.loads(json.dumps(written))
        return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)

    def plan(self, schedule: Schedule, run_id: str = "fuzz") -> Plan:
        """Returns the plan of a run with the faults in `schedule`. Raises `ScenarioError` if the faults cannot be
        planned, last too long, or take more nodes than a job can lose."""
        spec = parse_scenario(self.text(schedule), "schedule.yaml")
        plan = make_plan(spec, self.seed, self.backend, run_id)
        left = [fault for fault in plan.faults if fault.action.replaced() is False or fault.action.sticks]
        gone = {node for fault in left for node in fault.nodes()}
        if plan.workload.nodes - len(gone) < plan.workload.min_nodes:
            raise ScenarioError(["the job cannot lose so many nodes for good"])
        for fault in plan.faults:
            if (lasts := fault.action.lasts()) is not None and lasts.s > LASTS_S_MAX:
                raise ScenarioError([f"fault {fault.id} lasts {lasts}; at most {LASTS_S_MAX:g} s are drawn"])
        return plan

    def allows(self, schedule: Schedule) -> bool:
        try:
            self.plan(schedule)
        except (ScenarioError, ValidationError):
            return False
        return True


class _Dumper(yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _short(workload: Workload) -> dict[str, Any]:
    values: dict[str, Any] = workload.model_dump(mode="json")
    for name in values.keys() - {"trainer", "nodes", "steps"}:
        fewer = {key: value for key, value in values.items() if key != name}
        with contextlib.suppress(ValidationError):
            if Workload.model_validate(fewer) == workload:
                values = fewer
    return values


def of_trainer(base: Base, trainer: Any) -> Base:
    workload = base.spec.workload.model_copy(update={"trainer": trainer})
    return replace(base, spec=base.spec.model_copy(update={"workload": workload}))
