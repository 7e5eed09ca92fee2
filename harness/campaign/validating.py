"""Files that people write, checked without running anything: a scenario, a suite, the plan of a game day."""

from __future__ import annotations

import pathlib
from typing import Literal

from harness.campaign.gameday_plan import plan_day
from harness.campaign.gate import load_entries
from harness.campaign.reading import load_scenario
from harness.judge.score import expects_something
from harness.plan.making import make_plan
from harness.spec.attached import load_attached
from harness.spec.document import Document, read_text
from harness.spec.gameday import are_strikes
from harness.spec.scenario import Scenario
from harness.spec.suite import find_blindness_check, load_suite

Kind = Literal["scenario", "suite", "game day", "strikes"]
_KEYS: dict[str, Kind] = {"faults": "scenario", "scenarios": "suite", "entries": "game day"}
_FOLDERS: dict[str, Kind] = {"suites": "suite", "gamedays": "game day"}


def kind_of(path: pathlib.Path) -> Kind:
    """By what the file holds; by its folder where that does not tell."""
    data = Document(read_text(path), str(path)).data
    if are_strikes(data):
        return "strikes"
    told = [kind for key, kind in _KEYS.items() if isinstance(data, dict) and key in data]
    return told[0] if told else _FOLDERS.get(path.absolute().parent.name, "scenario")


def check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    """What was found right, in words. Raises `UsageError` with every mistake found."""
    kind = kind_of(path)
    if kind == "suite":
        return _suite(path, scenarios)
    if kind == "strikes":
        return f"ok, {_count(len(load_attached(path).entries), 'entry', 'entries')} for a job that runs already"
    if kind == "game day":
        day = plan_day(path, 1, "local", "validate", scenarios)
        return f"ok, a game day with {_count(len(day.scenes), 'entry', 'entries')}"
    spec = load_scenario(path)
    for profile in (None, *spec.profiles):
        _plan(load_scenario(path, profile), profile)
    blind = ", but it expects nothing, so it passes whatever its faults cost"
    return "ok" if expects_something(spec.expect) else f"ok{blind}"


def _suite(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    """With all of its scenarios as it changes them, and the one that must fail."""
    suite = load_suite(path)
    entries = load_entries(path, suite, scenarios)
    _plan(load_scenario(find_blindness_check(suite, path, scenarios)), None)
    for entry, spec in entries:
        _plan(spec, entry.profile)
    return f"ok, a suite of {_count(len(entries), 'scenario', 'scenarios')}"


def _plan(spec: Scenario, profile: str | None) -> None:
    make_plan(spec, 1, "local", "validate", profile)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
