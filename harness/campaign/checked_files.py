"""Reads and checks scenarios and stored plans, with the bounds that are set under `expect:`."""

import pathlib
from collections.abc import Mapping
from typing import Any

from harness.errors import UsageError
from harness.judge.bounds import OF_A_PLUGIN, bounds_by_score
from harness.plan import stored
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.plugins import entry_points
from harness.spec import scenario
from harness.spec.expected_scores import Allowed, ScoreBounds
from harness.spec.scenario import Scenario

PLAN = "plan.json"
ASKED_PLAN = "asked-plan.json"  # plan that was asked for, if a failed fault-free run stands in the run's place


def score_bounds() -> ScoreBounds:
    """Returns the allowed values of each name under `expect:`. A plug-in's guarantee may be set to `off`."""
    theirs = dict.fromkeys(entry_points("chaos_harness.guarantees"), OF_A_PLUGIN)
    bounds_by_name = {**theirs, **bounds_by_score()}
    return {name: Allowed(bounds, bool(bounds.by_default)) for name, bounds in bounds_by_name.items()}


def load_scenario(
    path: pathlib.Path, profile: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Reads a scenario's file. Raises `ScenarioError` with all mistakes, or `UsageError` for an unknown profile."""
    return scenario.load_scenario(path, profile, overrides, score_bounds())


def check_plan(spec: Scenario, profile: str | None) -> None:
    """Raises `UsageError` if no plan can be made from the scenario."""
    make_plan(spec, 1, "local", "validate", profile)


def load_plan(path: pathlib.Path) -> Plan:
    """Reads a stored plan. Raises `ScenarioError` with all mistakes in the plan."""
    return stored.load_plan(path, score_bounds())


def find_plan(name: str, reports: pathlib.Path) -> pathlib.Path:
    """Returns the path of a plan. `name` is the path itself, or the folder, the id or the beginning of the id of a run.
    The name `last` stands for the newest run."""
    given = pathlib.Path(name)
    from harness.campaign.run_store import Store, refuse_first_look

    if given.exists() and not given.is_dir():
        refuse_first_look(given.parent)
        return given
    folder = given if (given / PLAN).exists() else Store(reports).find(name)
    refuse_first_look(folder)
    if not (folder / PLAN).exists():
        raise UsageError(f"{folder}: it has no {PLAN}, which is the plan that would be run again")
    return folder / (ASKED_PLAN if (folder / ASKED_PLAN).exists() else PLAN)
