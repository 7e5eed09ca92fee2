"""Prints the output of commands. Text from a scenario, a log or a node is never used as markup, and never controls the
terminal."""

import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.errors import UsageError
from harness.judge.verdict import Verdict
from harness.report import write_files
from harness.report.strict_json import json_text, strict
from harness.report.words import one_line, plain

SIGNS = {Verdict.PASS: "✔", Verdict.FAIL: "✖", Verdict.INCONCLUSIVE: "?", Verdict.INVALID: "!"}
STYLES = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.INVALID: "bold magenta",
}

PLAIN_WIDTH = 200

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def safe(value: object) -> str:
    """Returns a value as one line of text, escaped so that the terminal library (rich) finds no markup in the text."""
    return escape(one_line(value))


def say(line: str, style: str = "") -> None:
    out.print(Text(plain(line), style=style), soft_wrap=True)


def unwrapped(console: Console) -> Console:
    """Returns the console of a terminal unchanged. For other output, returns a console so wide that rows of tables are
    not wrapped."""
    if console.is_terminal:
        return console
    return Console(file=console.file, width=PLAIN_WIDTH, color_system=None, highlight=False)


def print_table(table: Table) -> None:
    unwrapped(out).print(table)


def print_rows(head: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    table = Table(*head, box=None, header_style="bold")
    for row in rows:
        table.add_row(*map(safe, row))
    print_table(table)


def print_figures(head: Sequence[str], rows: Iterable[Iterable[object]], all_text: bool = False) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(safe(name), justify="left" if all_text or place == 0 else "right")
    for row in rows:
        table.add_row(*map(safe, row))
    print_table(table)


def note(line: str) -> None:
    """Prints a remark on standard error, so that standard output holds only the result."""
    err.print(Text(one_line(line), style="dim"), soft_wrap=True)


def print_json(values: Any) -> None:
    sys.stdout.write(json_text(strict(values)))


def write_page(page: pathlib.Path, text: str) -> None:
    """Writes an HTML page to the file of the option --page. Raises `UsageError` if the file cannot be written."""
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_files({page.name: text}, page.parent)
    except OSError as error:
        raise UsageError(f"--page {str(page)!r}: it cannot be written: {error.strerror}") from None


def mark(ok: bool) -> str:
    return "[green]✓[/]" if ok else "[red]✗[/]"
