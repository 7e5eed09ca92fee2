"""`make verdict-matrix`: every mutant and every healthy control, what the harness must say, and what it says.
What the real runs showed is kept in docs/verdict-matrix.json; `make docs` writes the page again from it.

RUNS='[FOLDER for runs] [PATTERN of names]'      --stored: judges what is there, runs nothing
"""

import itertools
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from mutants.bent import BROKEN
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from verdict_matrix import parallel
from verdict_matrix.catalogue import CONTROLS, MUTANTS
from verdict_matrix.parallel import Parallel
from verdict_matrix.rehearsal import NotRun, Real, run

from harness.errors import ChaosError
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.report import markdown

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "verdict-matrix.md"
KEPT = PAGE.with_suffix(".json")  # what the real runs showed; logs are judged anew for each page
INTRODUCTION = """\
# Verdict matrix

Broken trainers, faults and harnesses, and what is said about them. Made by `make verdict-matrix`; a row is right
when the verdict *and* the reason are the expected ones. *Run*: the reference trainer with this one bug, run for real
on virtual nodes against a real fault; *tp*, *ep*, *pp*: a job whose ranks hold parts of the model, one of which is
killed. *Log*: a simulated history with the bug in its event log.
"""
HEALTHY = """\
## Healthy

The same trainer without a bug, and in bad weather: it stands still now and then, its disk is slow, its host is noisy.
"""


REAL: list[Real | Parallel] = [*CONTROLS, *MUTANTS, *parallel.ROWS]


@dataclass(frozen=True)
class Row:
    name: str
    how: str
    expected: Verdict
    found: str
    reason: str
    right: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return self.name, self.how, self.expected.value, self.found, self.reason, "✓" if self.right else "✗"


NOT_RUN = "not run"
HEAD = ("Mutant", "How", "Expected", "Verdict", "Reason", "Right")


def bent_rows() -> Iterator[Row]:
    for mutant in BROKEN:
        card = mutant.judge()
        named = [text for text in card.reasons if mutant.reason in text]
        right = card.verdict is mutant.verdict and bool(named)
        yield Row(_words(mutant.name), "log", mutant.verdict, card.verdict.value, (named or card.reasons)[0], right)


def real_rows(folder: pathlib.Path, pattern: str, stored_only: bool) -> Iterator[Row]:
    for mutant in REAL:
        if not re.search(pattern, mutant.name):
            continue
        try:
            if isinstance(mutant, Parallel):
                card = parallel.run(mutant, folder, stored_only)
            else:
                card = run(mutant, folder, stored_only)
        except NotRun:
            yield Row(_words(mutant.name), mutant.how, mutant.verdict, NOT_RUN, "", False)
        except (ChaosError, AssertionError) as error:
            yield Row(_words(mutant.name), mutant.how, mutant.verdict, "did not run", str(error), False)
        else:
            reason = _reason(mutant, card).replace(f"{folder}/", "")
            yield Row(_words(mutant.name), mutant.how, mutant.verdict, card.verdict.value, reason, mutant.accepts(card))


def kept_rows() -> list[Row]:
    """A row of each real run, as it was when all of them were last made."""
    kept = {(each["name"], each["how"]): each for each in json.loads(KEPT.read_text())}
    found = []
    for mutant in REAL:
        row = Row(_words(mutant.name), mutant.how, mutant.verdict, NOT_RUN, "", False)
        found.append(replace(row, **kept.get((row.name, row.how), {})))
    return found


def keep(rows: Iterable[Row]) -> None:
    ran = [asdict(row) for row in rows if row.how != "log" and row.found != NOT_RUN]
    KEPT.write_text(json.dumps([{k: v for k, v in row.items() if k != "expected"} for row in ran], indent=1) + "\n")


def _reason(mutant: Real | Parallel, card: Scorecard) -> str:
    return next((text for text in card.reasons if re.search(mutant.reason, text)), card.reasons[0])


def _words(name: str) -> str:
    return name.replace("_", " ")


def page(rows: list[Row]) -> str:
    ran = [row for row in rows if row.found != NOT_RUN]
    healthy = [row for row in ran if row.expected is Verdict.PASS]
    broken = [row for row in ran if row not in healthy]
    caught, accused = sum(row.right for row in broken), sum(row.found == Verdict.FAIL for row in healthy)
    unclear = sum(not row.right for row in healthy) - accused
    summary = f"{caught} of {len(broken)} mutants are caught for the right reason; "
    summary += f"{accused} of {len(healthy)} healthy runs are accused, {unclear} prove nothing."
    missing = [row.name for row in rows if row not in ran]
    summary += f" Not run for this page: {', '.join(missing)}." if missing else ""
    tables = [markdown.table(HEAD, [row.cells for row in part]) for part in (broken, healthy)]
    return f"{INTRODUCTION}\n{summary}\n\n{tables[0]}\n\n{HEALTHY}\n{tables[1]}\n"


def stored() -> str:
    """The page of what is kept."""
    return page([*bent_rows(), *kept_rows()])


def main() -> int:
    given = [argument for argument in sys.argv[1:] if argument != "--stored"]
    folder = pathlib.Path(given[0]) if given else pathlib.Path(tempfile.mkdtemp(prefix="mutants-"))
    pattern = given[1] if len(given) > 1 else ""
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    rows = []
    for row in itertools.chain(bent_rows(), real_rows(folder, pattern, "--stored" in sys.argv)):
        rows.append(row)
        console.print(f"{'✓' if row.right else '✗'} {row.name}, {row.how}: {row.found}", markup=False)
    table = Table(*HEAD, header_style="bold", box=None)
    for row in rows:
        table.add_row(*map(escape, row.cells), style=None if row.right else "bold red")
    console.print(table)
    if not pattern:
        keep(rows)
        PAGE.write_text(page(rows))
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
