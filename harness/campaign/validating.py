"""Files that people write, checked without running anything: a scenario, or a file of one of the wings."""

from __future__ import annotations

import pathlib

from harness.campaign.checked_files import check_plan, load_scenario
from harness.campaign.wings import wings
from harness.judge.score import expects_something
from harness.spec.document import Document, read_text


def check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    """What was found right, in words. Raises `UsageError` with every mistake found."""
    data = Document(read_text(path), str(path)).data
    known = [kind for wing in wings() for kind in wing.files]
    # What the file holds tells its kind, else its folder does. Without a kind it is a scenario.
    if isinstance(data, dict) and not data.keys().isdisjoint({"faults", *(kind.key for kind in known)}):
        kind = None if "faults" in data else next(kind for kind in known if kind.key in data)
    else:
        kind = next((kind for kind in known if kind.folder == path.absolute().parent.name), None)
    if kind:
        return kind.check(path, scenarios)
    spec = load_scenario(path)
    for profile in (None, *spec.profiles):
        check_plan(load_scenario(path, profile), profile)
    blind = ", but it expects nothing, so it passes whatever its faults cost"
    return "ok" if expects_something(spec.expect) else f"ok{blind}"
