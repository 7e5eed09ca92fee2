"""Defines `chaos validate` and `chaos schema`. Editors and commit hooks call these commands often, so the commands do
not load the code that judges runs."""

import json
import pathlib
import sys
from typing import Annotated

import typer

from harness.campaign.checked_files import check_plan, load_scenario, score_bounds
from harness.cli.output import say
from harness.cli.shared_options import SCENARIOS, ScenariosOption
from harness.errors import UsageError
from harness.judge.bounds import expects_something
from harness.spec.document import Document, read_text
from harness.spec.scenario import find_scenario
from harness.spec.schema import json_schema


def validate(
    files: Annotated[list[str], typer.Argument(help="Files of scenarios, suites or game days; or names of scenarios.")],
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Check scenarios with all profiles, suites and plans of game days. Runs nothing.

    The content of a file, or else its folder, shows whether it is a scenario, a suite or a game day.

    Example: chaos validate my-scenario.yaml
    """
    problems: list[str] = []
    for name in files:
        try:
            path = find_scenario(name, scenarios)
            say(f"{path}: {check(path, scenarios)}")
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))


def check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    """Checks a scenario, suite or plan of a game day, and returns `ok` or a remark. Raises `UsageError` with all
    mistakes in the file."""
    data = Document(read_text(path), str(path)).data
    if not isinstance(data, dict) or "faults" not in data:  # its keys tell its kind, else its folder does
        from harness.campaign.wings import wings

        known = [kind for wing in wings() for kind in wing.files]
        held = [kind for kind in known if isinstance(data, dict) and kind.key in data]
        if kinds := held or [kind for kind in known if kind.folder == path.absolute().parent.name]:
            return kinds[0].check(path, scenarios)
    spec = load_scenario(path)
    for profile in (None, *spec.profiles):
        check_plan(load_scenario(path, profile), profile)
    blind = ", but it expects nothing, so it passes whatever its faults cost"
    return "ok" if expects_something(spec.expect) else f"ok{blind}"


def schema(events: Annotated[bool, typer.Option("--events", help="Of the event log.")] = False) -> None:
    """Print the JSON Schema of scenario files or, with --events, of the event log."""
    if events:
        from harness.log import checked_lines  # which imports numpy

    found = checked_lines.json_schema() if events else json_schema(score_bounds())
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
