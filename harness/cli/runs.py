"""Commands on a stored run: `chaos show`, `score` and `report`."""

from __future__ import annotations

import contextlib
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Annotated

import typer

from harness.campaign.store import Store
from harness.campaign.wings import StoredKind, stored_kind_of
from harness.cli.options import REPORTS, JsonOption, ReportsOption, RunArg
from harness.cli.output import note, out, print_json
from harness.cli.terminal import print_report, print_result
from harness.errors import UsageError
from harness.judge.facts.evidence import load_evidence
from harness.judge.score import EXIT_CODES, Verdict, judge
from harness.log import untrusted_files
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
    if kind := stored_kind_of(folder):
        return _show_parts(kind, folder, json, as_markdown)
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


def score(
    run: RunArg,
    rehearsal: Annotated[
        str | None, typer.Option(help="Judge this rehearsal of the job by its own part of the log alone.")
    ] = None,
    reports: ReportsOption = REPORTS,
) -> None:
    """Judge a stored run again, from its event log alone.

    Exits like `chaos run`. The report of a rehearsal lies in a folder of its own, `rehearsal-NAME` of the run's.

    Example: chaos score last
    """
    raise typer.Exit(EXIT_CODES[_judge(Store(reports).find(run), rehearsal)])


def report(run: RunArg, reports: ReportsOption = REPORTS) -> None:
    """Write a stored run's report files again. Exits 0 whatever the verdict."""
    _judge(Store(reports).find(run), must_write=True)


def _show_parts(kind: StoredKind, folder: pathlib.Path, json: bool, as_markdown: bool) -> None:
    if json:
        print_json(kind.values(folder))
    elif as_markdown:
        out.file.write(model.read_regular(folder / "report.md").decode(errors="replace"))
    else:
        print_result(kind.read(folder), folder)


def _judge(folder: pathlib.Path, rehearsal: str | None = None, must_write: bool = False) -> Verdict:
    """Prints the verdict also where the report cannot be written, unless that is what was asked for."""
    if rehearsal is None and (kind := stored_kind_of(folder)):
        result, write = kind.judge(folder)
        with _written_if_it_can_be(folder, must_write):
            write()
            return print_result(result, folder)
        return print_result(result)
    card = judge(load_evidence(folder, rehearsal), folder.resolve().name)
    page = None
    with _written_if_it_can_be(folder, must_write):
        target = folder
        if rehearsal is not None:
            name = f"rehearsal-{urllib.parse.quote(rehearsal, safe=' ')}"  # whatever characters its name has
            untrusted_files.make_folder(folder, name)
            target = folder / name
        page = write_reports(card, target)["report.html"]
    print_report(model.from_scorecard(card), page, out)
    return card.verdict


@contextlib.contextmanager
def _written_if_it_can_be(folder: pathlib.Path, must: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if must:
            raise
        note(f"note: the report cannot be written in {folder}: {error.strerror or error}")
