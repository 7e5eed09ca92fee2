"""Prints the result of a run on the terminal: verdict, headline, figures, and the path of the report."""

import pathlib
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from harness.campaign.wings import Result
from harness.cli.output import SIGNS, STYLES, out, safe, say, unwrapped
from harness.judge.verdict import Verdict
from harness.report import view
from harness.report.commands import step_here
from harness.report.run_report import Report
from harness.report.words import BEYOND, one_line


def summary(report: Report, page: pathlib.Path | None = None) -> Group:
    word = Text(f"{SIGNS[report.verdict]} {report.verdict.value.upper()}", style=STYLES[report.verdict])
    first = Text.assemble(word, "  ", Text(one_line(view.headline(report))))
    others = [Text(f"  - {one_line(reason)}") for reason in view.reasons(report)[1:6]]
    if report.not_judged and report.verdict is not Verdict.PASS:  # a run that passed says it in its first line
        others.append(Text(f"  Not judged: {one_line(', '.join(report.not_judged))}", style="dim"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_column(style="dim")
    for figure in view.figures(report):
        verdict = Text("")
        if figure.verdict:
            verdict = Text(f"{SIGNS[figure.verdict]} {one_line(figure.bound)}", style=STYLES[figure.verdict])
        table.add_row(f"  {figure.name}", Text(one_line(figure.value)), verdict, Text(one_line(figure.detail)))
    parts: list[Text | Table] = [first, *others, table]
    # Not wrapped: a command is copied in one piece, and a list of names may be long.
    whole: dict[str, Any] = {"no_wrap": True, "overflow": "ignore"}
    parts += [Text(one_line(each), "dim", **({} if each == BEYOND else whole)) for each in view.beyond(report)]
    parts += [Text(f"Next: {one_line(step_here(step))}", **whole) for step in report.next_steps]
    if page is not None:
        parts.append(Text(f"Report: {page}", style="dim"))
    return Group(*parts)


def print_report(report: Report, page: pathlib.Path | None, console: Console) -> None:
    unwrapped(console).print(summary(report, page), crop=False)


def print_result(result: Result, folder: pathlib.Path | None = None) -> Verdict:
    for part in result.parts:
        sign = f"[{STYLES[part.verdict]}]{part.verdict.value:13}[/]" if part.verdict else f"{'not judged':13}"
        out.print(f"  {sign} {safe(part.name)}: {safe((part.reasons or [''])[0])}", soft_wrap=True)
    reason = safe((result.reasons or [""])[0])
    out.print(f"[{STYLES[result.verdict]}]{result.verdict.value.upper()}[/]  {reason}", soft_wrap=True)
    for step in result.next_steps:
        say(f"Next: {one_line(step_here(step))}")
    pages = [folder / name for name in ("report.html", "report.md")] if folder is not None else []
    for page in [each for each in pages if each.exists()][:1]:
        say(f"Report: {page}", "dim")
    return result.verdict
