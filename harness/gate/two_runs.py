"""Two stored runs, read to be compared."""

from __future__ import annotations

import pathlib

from harness.campaign.store import Store
from harness.errors import ChaosError, UsageError
from harness.gate.two_runs_difference import starts_by_rank
from harness.gate.two_runs_report import Compared, compare
from harness.report import model
from harness.timeline import timeline


def compare_runs(first: str, second: str, reports: pathlib.Path) -> Compared:
    """Raises `UsageError` for a run that is not there or was not judged yet, or for one run given twice."""
    store = Store(reports)
    folders = [store.find(name) for name in (first, second)]
    if folders[0].resolve() == folders[1].resolve():
        raise UsageError(f"both are run {folders[0].name}; name two runs")
    judged = []
    for folder in folders:
        if not (folder / "report.json").exists():
            raise UsageError(f"{folder} was not judged yet; judge it with: chaos score {folder.name}")
        judged.append(model.read(folder / "report.json"))
    before, after = judged
    try:
        ranks = starts_by_rank(timeline.load(folders[0])), starts_by_rank(timeline.load(folders[1]))
    except (ChaosError, OSError) as error:
        return compare(before, after, None, f"an event log cannot be read ({error})")
    return compare(before, after, ranks)
