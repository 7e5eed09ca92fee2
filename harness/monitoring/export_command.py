"""Defines `chaos export`, which writes a stored run in the formats of other tools."""

from __future__ import annotations

from harness.campaign.run_store import Store
from harness.campaign.wings import stored_kind_of
from harness.cli.exports import GROUP, Chosen, exports, offering, writers
from harness.cli.output import say
from harness.cli.shared_options import REPORTS, ReportsOption, RunArg
from harness.errors import UsageError
from harness.plugins import not_installed


@offering(lambda export: export.stored is not None)
def export(run: RunArg, chosen: Chosen, reports: ReportsOption = REPORTS) -> None:
    """Write a stored run in other formats. Exits 0 whatever the verdict.

    Example: chaos export last --perfetto trace.json
    """
    if not chosen:
        known = (f"--{name} {each.metavar}" for name, each in exports().items() if each.stored)
        raise UsageError(not_installed(GROUP) or f"say what to write: {', '.join(known)}")
    ready = writers(chosen)
    folder = Store(reports).find(run)
    if stored_kind_of(folder) and not (folder / "events").is_dir():
        raise UsageError(f"{folder.name} is made of many runs: export one of the folders in it that holds events/")
    for write in ready:
        say(write(folder))
