"""The last words of a run on the terminal: verdict, headline, the scores and where the report is."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from harness.judge.score import Scorecard, Verdict
from harness.report import view

SIGNS = {Verdict.PASS: "✔", Verdict.FAIL: "✖", Verdict.INCONCLUSIVE: "?", Verdict.INVALID: "!"}
STYLES = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.INVALID: "bold magenta",
}
PLAIN_WIDTH = 200  # so that lines in a log file are not broken


def summary(card: Scorecard, report: pathlib.Path | None = None) -> Group:
    """What `print_scorecard` prints, for callers with a console of their own."""
    word = Text(f"{SIGNS[card.verdict]} {card.verdict.value.upper()}", style=STYLES[card.verdict])
    first = Text.assemble(word, "  ", Text(plain(view.headline(card))))
    others = [Text(f"  - {plain(reason)}") for reason in view.reasons(card)[1:6]]
    untold = Text(f"  Not judged: {plain(', '.join(card.not_judged))}", style="dim")
    more = [untold] if card.not_judged and card.verdict is not Verdict.PASS else []  # a pass says it in its first line
    parts: list[Text | Table] = [first, *others, *more, _figures(card)]
    if report is not None:
        parts.append(Text(f"Report: {report}", style="dim"))
    return Group(*parts)


def print_scorecard(card: Scorecard, files: Mapping[str, pathlib.Path], console: Console | None = None) -> None:
    """Prints the summary and where the HTML report of `files` is. Plain, unwrapped text when not on a terminal."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN_WIDTH, color_system=None, highlight=False)
    console.print(summary(card, files.get("report.html")))


def plain(value: str) -> str:
    """One line without control characters: a log must not steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in value)


def _figures(card: Scorecard) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_column(style="dim")
    for figure in view.figures(card):
        verdict = (
            Text(f"{SIGNS[figure.verdict]} {figure.bound}", style=STYLES[figure.verdict])
            if figure.verdict
            else Text("")
        )
        table.add_row(f"  {figure.name}", figure.value, verdict, plain(figure.detail))
    return table
