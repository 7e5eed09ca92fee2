"""Defines the commands `chaos history` (shows stored runs over time) and `chaos compare` (compares two stored runs)."""

from __future__ import annotations

import pathlib
import time
from typing import Annotated

import typer
from rich.table import Table

from harness.campaign.run_store import Store, Wanted
from harness.campaign.wings import stored_kind_of
from harness.cli.listing import OfBackend, OfCommit, OfVerdict, Since, print_runs
from harness.cli.output import STYLES, note, out, print_json, print_table, safe, say, write_page
from harness.cli.shared_options import REPORTS, JsonOption, PageOption, ReportsOption
from harness.errors import ChaosError, UsageError, choice
from harness.gate import history_report, slo, two_runs_report
from harness.gate.slo_file import load_slo
from harness.gate.two_runs_difference import starts_by_rank
from harness.judge.verdict import EXIT_CODES, Verdict, merge
from harness.report import run_report
from harness.report.words import one_line, percent, seconds
from harness.timeline import timeline

MET = {Verdict.PASS: "met", Verdict.FAIL: "missed", Verdict.INCONCLUSIVE: "not known", Verdict.INVALID: "not known"}


def history(
    scenario: Annotated[str, typer.Argument(help="Only the runs of this scenario.")] = "",
    backend: OfBackend = None,
    commit: OfCommit = None,
    verdict: OfVerdict = None,
    since: Since = None,
    page: PageOption = None,
    slo: Annotated[
        pathlib.Path | None, typer.Option("--slo", help="Hold the runs against the objectives in this file.")
    ] = None,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Show verdicts, recovery and waste over time, and what changed.

    With --slo, exits 0 if every objective is met, 1 if one is missed, 3 if there is too little evidence.

    Example: chaos history spot-evict --since 30d --page trend.html
    """
    wanted = Wanted(scenario or None, backend, commit, verdict, since)
    if slo is not None:
        if page is not None or verdict is not None:
            raise UsageError("--slo looks at all verdicts and draws no page: leave out --verdict and --page")
        raise typer.Exit(_objectives(slo, reports, wanted, json))
    found, notes = history_report.moments(reports, wanted)
    for line in notes:
        note(f"note: {line}")
    if page is not None:
        write_page(page, history_report.render(found, scenario))
    if json:
        print_json(history_report.to_json(found))
        return
    if found:
        _print(found)
    else:
        known = sorted({run.scenario for run in Store(reports).runs()})
        hint = ""
        if scenario and scenario not in known:
            others = one_line(choice(scenario, known)) if known else f"no run is stored in {reports}"
            hint = f"; {one_line(scenario)} has no stored run: {others}"
        out.print(f"no judged run matches{hint}", markup=False, soft_wrap=True)
    if page is not None:
        say(f"Page: {page}", "dim")


def _objectives(path: pathlib.Path, reports: pathlib.Path, wanted: Wanted, json: bool) -> int:
    held, notes = slo.hold(load_slo(path), reports, wanted, time.time())
    for line in notes:
        note(f"note: {line}")
    if json:
        print_json(slo.to_json(held))
    for each in [] if json else held:
        for answer in each.answers:
            sign = f"[{STYLES[answer.verdict]}]{MET[answer.verdict]:10}[/]"
            figure = "not measured" if answer.observed is None else f"{answer.observed:.4g} {answer.unit}"
            bound = f"{answer.bound:.4g} {answer.unit}"
            burn = "" if answer.burn_rate is None else f", burn rate {answer.burn_rate:.2g}"
            line = (
                f"{each.objective.id} ({each.objective.severity}), {answer.figure}: {figure}, objective {bound}{burn}"
            )
            out.print(f"{sign} {safe(line)}; {safe(answer.reason)}", soft_wrap=True)
    return EXIT_CODES[merge(each.verdict for each in held)]


def _print(found: list[history_report.Moment]) -> None:
    figures = {"recovery": lambda each: seconds(each.recovery_s), "waste": lambda each: percent(each.waste_percent)}
    print_runs(found, figures)
    for one in history_report.series_of(found):
        for figure in history_report.FIGURES:
            for change in one.changes(figure):
                say(f"{one.name} on {one.backend}: {history_report.change_words(one, figure, change)}")


def compare(
    first: Annotated[str, typer.Argument(help="A run's folder, its id or the beginning of it.")],
    second: Annotated[str, typer.Argument(help="The other run, or 'last'.")] = "last",
    page: PageOption = None,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Say which phase, rank and waste explain how two runs differ.

    Exits 0 even if the runs differ.

    Example: chaos compare spot-evict-20261121 last --page compare.html
    """
    found = compare_runs(first, second, reports)
    if page is not None:
        write_page(page, two_runs_report.render(found))
    if json:
        print_json(two_runs_report.to_json(found))
        return
    for sentence in two_runs_report.sentences(found):
        say(sentence)
    for line in [two_runs_report.DIFFERENT, *(f"  {each}" for each in found.cautions)] if found.cautions else ():
        say(line)
    for section in found.sections:
        if section.lines:
            table = Table(section.title, "first", "second", "change", box=None, header_style="bold")
            for row in two_runs_report.rows(section):
                table.add_row(*map(safe, row))
            print_table(table)
    if page is not None:
        say(f"Page: {page}", "dim")


def compare_runs(first: str, second: str, reports: pathlib.Path) -> two_runs_report.Compared:
    """Compares two stored runs. Raises `UsageError` if a run is missing or unjudged, or if both are the same run."""
    folders = [Store(reports).find(name) for name in (first, second)]
    if folders[0].resolve() == folders[1].resolve():
        raise UsageError(f"both are run {folders[0].name}; name two runs")
    for folder in folders:
        if stored_kind_of(folder):
            raise UsageError(f"{folder} is no run of one scenario; see chaos show {folder}")
        if not (folder / "report.json").exists():
            raise UsageError(f"{folder.name} was not judged yet; judge it with: chaos score {folder}")
    before, after = (run_report.read(folder / "report.json") for folder in folders)
    try:
        first_run, second_run = map(timeline.load, folders)
    except (ChaosError, OSError) as error:
        return two_runs_report.compare(before, after, None, f"an event log cannot be read ({error})")
    ranks = starts_by_rank(first_run), starts_by_rank(second_run)
    return two_runs_report.compare(before, after, ranks, plans=(first_run.plan, second_run.plan))
