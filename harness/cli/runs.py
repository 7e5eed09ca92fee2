"""Commands on a stored run: `chaos show`, `score` and `report`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from harness.campaign.store import Store
from harness.cli.options import REPORTS, JsonOption, ReportsOption, RunArg
from harness.cli.output import out, print_json
from harness.cli.terminal import print_report
from harness.errors import UsageError
from harness.judge.evidence import load_evidence
from harness.judge.score import EXIT_CODES, Verdict, judge
from harness.report import markdown, model, write_reports


def show(
    run: RunArg,
    json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request: Markdown.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Show a stored run from its report.json, without judging it again.

    Exits 0 whatever the verdict.

    Example: chaos show last
    """
    folder = Store(reports).find(run)
    if not (folder / "report.json").exists():
        raise UsageError(f"{folder} was not judged yet; judge it with: chaos score {folder.name}")
    report = model.read(folder / "report.json")
    if json:
        print_json(report.to_json())
    elif as_markdown:
        out.file.write(markdown.render(report))
    else:
        page = folder / "report.html"
        print_report(report, page if page.exists() else None, out)


def score(run: RunArg, reports: ReportsOption = REPORTS) -> None:
    """Judge a stored run again, from its event log alone.

    Exits like `chaos run`.

    Example: chaos score last
    """
    raise typer.Exit(EXIT_CODES[_judge(Store(reports).find(run))])


def report(run: RunArg, reports: ReportsOption = REPORTS) -> None:
    """Write a stored run's report files again. Exits 0 whatever the verdict."""
    _judge(Store(reports).find(run))


def _judge(folder: pathlib.Path) -> Verdict:
    card = judge(load_evidence(folder), folder.resolve().name)
    files = write_reports(card, folder)
    print_report(model.from_scorecard(card), files["report.html"], out)
    return card.verdict
