"""Defines `chaos explore`, which tries a job's restore on states of its checkpoint folder that a crash can leave."""

from __future__ import annotations

import pathlib
from typing import Annotated, Literal

import typer
from rich.table import Table

from harness.backends.contract import load_backend
from harness.campaign.checked_files import load_plan
from harness.cli.output import note, out, print_json, print_table, safe, say
from harness.cli.scenarios import plan_of
from harness.cli.shared_options import (
    REPORTS,
    SCENARIOS,
    JsonOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
    seconds_of,
)
from harness.errors import INTERRUPTED, ChaosError, UsageError
from harness.explore import explore_report, recorded_job
from harness.explore.exploration import Exploration, Setting, explore, make_state, state_of
from harness.explore.file_systems import PROFILES
from harness.judge.verdict import EXIT_CODES
from harness.plan.capabilities import check_capabilities
from harness.report import write_files
from harness.report.strict_json import json_text, strict
from harness.run.stop import stop

USUAL = ["ext4", "nfs"]  # what most clusters save on; both promise more than POSIX does


def explore_(
    what: Annotated[Literal["checkpoint"], typer.Argument(help="checkpoint: the folder in which the job saves.")],
    scenario: Annotated[str, typer.Argument(help="The scenario whose workload is used.")] = "checkpoint-corrupt-latest",
    profile: Annotated[
        list[str] | None,
        typer.Option(help="The file system: posix, ext4, nfs, s3; may be given again. Default: ext4 and nfs."),
    ] = None,
    budget: Annotated[str, typer.Option(help="Begin no further restore after this time.")] = "10m",
    states: Annotated[int, typer.Option(min=0, help="Restore from so many states at most; 0: from all.")] = 0,
    state: Annotated[
        str | None, typer.Option(metavar="RUN/ID", help="Make this state of a stored exploration; restore nothing.")
    ] = None,
    into: Annotated[pathlib.Path | None, typer.Option(help="An empty or new folder for the state.")] = None,
    seed: SeedOption = 1,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Try the job's restore on each state that a crash during a save may leave.

    The job runs on the local backend until it has removed an old save, or has saved eight times, and each operation on
    its checkpoint folder is recorded. The file system (`--profile`) decides which of the recorded operations a crash
    may lose. Exits 1 if a restore loads a wrong state, crashes, or loses a finished save without reporting it. Exits 3
    if a state was not tried or cannot be judged.

    Example: chaos explore checkpoint my-scenario.yaml --profile ext4 --budget 5m
    """
    if (state is None) != (into is None):
        raise UsageError("--state RUN/ID and --into FOLDER belong together")
    if state is not None and into is not None:
        made = _make_again(state, into, reports)
        say(f"{state}: made in {made}")
        return
    names = list(dict.fromkeys(profile or USUAL))
    if unknown := [name for name in names if name not in PROFILES]:
        raise UsageError(f"--profile {unknown[0]}: choose from: {', '.join(PROFILES)}")
    _, plan = plan_of(scenario, "local", seed, None, scenarios)
    plan = plan.again(plan.run_id.replace(plan.scenario.name, f"explore-{plan.scenario.name}", 1))
    engine = load_backend("local")
    check_capabilities(plan.without_faults(plan.run_id), engine.probe())
    found = explore(plan, Setting(reports, engine, stop, note, seconds_of("--budget", budget), names, states))
    folder = reports / found.run_id
    told = strict(explore_report.plain(found))  # file names may be no UTF-8
    write_files({explore_report.JSON: json_text(told), explore_report.PAGE: explore_report.page(found)}, folder)
    if json:
        print_json(told)
    else:
        _print(found, folder)
    raise typer.Exit(INTERRUPTED if found.interrupted else EXIT_CODES[found.verdict])


def _make_again(name: str, into: pathlib.Path, reports: pathlib.Path) -> pathlib.Path:
    run, _, identity = name.rpartition("/")
    folder, kind = reports / run / "base", identity.partition("-")[0]
    if not run or not (folder / "plan.json").is_file():
        raise UsageError(f"--state {name}: no exploration {run!r} in {reports}; write RUN/ID as the report shows it")
    if kind not in PROFILES:
        raise UsageError(f"--state {name}: {identity!r} is no state; write one like ext4-12")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UsageError(f"--into {into}: is not empty; name an empty or a new folder")
    recorded = recorded_job.load(load_plan(folder / "plan.json"), folder)
    profile, found = state_of(recorded, kind, identity)
    try:
        into.mkdir(parents=True, exist_ok=True)
        make_state(recorded, profile, found, into)
    except OSError as error:
        raise ChaosError(f"{into}: the state cannot be made: {error.strerror}") from error
    return into


def _print(found: Exploration, folder: pathlib.Path) -> None:
    table = Table(*explore_report.HEAD, box=None, header_style="bold")
    for row in explore_report.cells(found):
        table.add_row(*map(safe, row))
    print_table(table)
    for words, lines in explore_report.bad_states(found):
        say(words, "bold red")
        for line in lines:
            say(f"  {line}")
    for fact in explore_report.facts(found):
        say(fact)
    verdict = found.verdict.value.upper()
    out.print(f"[bold]{verdict}[/]  report: {safe(folder / explore_report.PAGE)}", soft_wrap=True)
