"""The plan of a game day from its file: scenarios and traces are looked up, and everything is checked at once."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from harness.campaign.checked_files import load_scenario
from harness.errors import UsageError, choice
from harness.gameday.day_file import Rehearse, Replay, load_gameday
from harness.gameday.day_plan import DayPlan, make_day
from harness.gameday.trace import Happening, load_trace
from harness.spec.document import short
from harness.spec.scenario import Scenario, find_beside

TRACES = "traces"


def plan_day(path: pathlib.Path, seed: int, backend: str, run_id: str, scenarios: pathlib.Path) -> DayPlan:
    """Raises `ScenarioError` with every mistake found in the plan, its scenarios and its traces."""
    spec, document = load_gameday(path)

    def load(each: Rehearse) -> Scenario:
        return load_scenario(find_beside(each.scenario, path.parent, scenarios), each.profile, each.overrides)

    def trace(replay: Replay) -> Sequence[Happening]:
        return load_trace(find_trace(replay.trace, path.parent))

    return make_day(spec, document, seed, backend, run_id, load, trace)


def find_trace(name: str, folder: pathlib.Path) -> pathlib.Path:
    for path in (folder / name, folder / TRACES / name):
        if os.path.lexists(path):
            return path
    known = sorted(path.name for place in (folder, folder / TRACES) for path in place.glob("*.csv"))
    hint = choice(name, known) if known else "the shipped ones are in scenarios/gamedays/traces"
    raise UsageError(f"unknown trace {short(name)!r}: it is neither in {folder} nor in {folder / TRACES}; {hint}")
