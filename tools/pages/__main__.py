"""What is generated of the pages in docs/, each part from its one source.

`make docs` writes it again.
"""

import pathlib
import re
from collections.abc import Callable

from conformance import table as backends
from pages import events_page, evidence_page, fault_api_page, incidents_page, reference_pages
from verdict_matrix.__main__ import stored as verdict_matrix

from benches import bugs, gates, league
from harness.forecast import published_vectors
from harness.monitoring import metrics

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def _with_table(name: str, table: str, end: str = "\n\n") -> str:
    """The page with this table in the place of the one that has the same head, and of what follows it before `end`."""
    head = table.splitlines()[0]
    text, count = re.subn(
        rf"^{re.escape(head)}\n.*?(?={end})", lambda _: table, (DOCS / name).read_text(), flags=re.S | re.M
    )
    if count != 1:
        raise ValueError(f"docs/{name}: {count} tables have the head {head!r}; one is allowed")
    return text


PAGES: dict[str, Callable[[], str]] = {  # each page that is generated, or has a generated table, as it should be
    "backends.md": lambda: _with_table("backends.md", backends.table_with_notes(), end="\n\n## "),
    "bounds.md": reference_pages.bounds,
    "commands.md": reference_pages.commands,
    "coverage.md": lambda: _with_table("coverage.md", incidents_page.table()),
    "events.md": events_page.page,
    "evidence.md": evidence_page.page,
    "fault-api.md": fault_api_page.page,
    "faults.md": reference_pages.faults,
    "forecast.md": lambda: _with_table("forecast.md", published_vectors.markdown(published_vectors.check_all())),
    "gate-statistic.md": lambda: _with_table("gate-statistic.md", gates.table(gates.kept())),
    "guarantees.md": reference_pages.guarantees,
    "league.md": lambda: league.markdown(league.stacks(()), league.Kept()),
    "live-metrics.md": lambda: _with_table("live-metrics.md", metrics.table()),
    "track-record.md": bugs.markdown,
    "verdict-matrix.md": verdict_matrix,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
