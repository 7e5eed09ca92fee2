"""Defines the command `chaos fuzz`, which searches for small schedules of faults that a job does not survive."""

from __future__ import annotations

import pathlib
import time
from typing import Annotated

import typer

from harness.backends.contract import load_backend
from harness.campaign import restarts
from harness.campaign.checked_files import PLAN, load_scenario, score_bounds
from harness.cli.output import note, out, print_json, safe, say
from harness.cli.shared_options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    JsonOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
    seconds_of,
)
from harness.errors import INTERRUPTED, CannotRunError, UsageError
from harness.fuzz import fuzz_report
from harness.fuzz.real_runs import RealRuns
from harness.fuzz.schedules import Base, of_trainer
from harness.fuzz.search import Search
from harness.fuzz.search_log import SearchLog
from harness.fuzz.strategies import space_of
from harness.judge.verdict import EXIT_CODES
from harness.report import write_files
from harness.report.strict_json import json_text
from harness.run.stop import stop
from harness.spec.scenario import find_scenario, parse_scenario
from harness.trainers.contract import build_trainer

USUAL = """\
version: 1
name: reference
title: The reference trainer on two nodes
workload: {nodes: 2, steps: 200, checkpoint: {every_steps: 20}, data: {shards: 8}}
abort: {if_no_step_for: 60s, wall_clock: 5m}
"""


def fuzz(
    scenario: Annotated[
        str, typer.Argument(help="The scenario whose job and bounds are used; default: the reference trainer.")
    ] = "",
    trainer: Annotated[str | None, typer.Option(help="Another trainer for that workload, by its name.")] = None,
    budget: Annotated[str, typer.Option(help="Begin no further run after this time.")] = "30m",
    runs: Annotated[int, typer.Option(min=0, help="Make so many runs at most; 0: no limit.")] = 0,
    findings: Annotated[int, typer.Option(min=1, help="End after so many different failures.")] = 3,
    faults: Annotated[int, typer.Option(min=1, max=20, help="The most faults of one run.")] = 3,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Search for schedules of faults that a job does not survive.

    Draws faults, parameters, moments and targets at random. Prefers schedules that can cover a fault in a new phase of
    the job, or a new pair of faults. Repeats each failure, makes the failing schedule smaller, and writes a scenario
    that replays the failure. The same command continues a search that was stopped. Exits 0 if no failure was found, 1
    if one was found, and 3 if no run could be judged.

    Example: chaos fuzz my-scenario.yaml --budget 30m --seed 7
    """
    seconds = seconds_of("--budget", budget)
    base = _base(scenario, trainer, backend, seed, scenarios)
    engine = load_backend(backend)
    capability = engine.probe()
    if not capability.available:
        raise CannotRunError(f"backend {backend}: {capability.summary}")
    space = space_of(base, capability, faults)
    folder = reports.resolve() / f"{base.name}-{seed}"
    if not folder.exists():
        restarts.own_folder(folder)
        write_files({PLAN: json_text(base.plan([], folder.name).to_json())}, folder)
    log = SearchLog(folder, base)
    try:
        made, until = RealRuns(base, reports.resolve(), engine, stop, note), time.monotonic() + seconds
        search = Search(
            space,
            log,
            made,
            lambda: not stop.asked and time.monotonic() < until and not (runs and made.count >= runs),
            note,
            findings,
        )
        if log.runs:
            note(f"{folder}: goes on after {len(log.runs)} runs")
        with stop.attended():
            search.go()
        result = fuzz_report.Result(search, folder, stop.asked)
        write_files(result.files() | {fuzz_report.JSON: json_text(result.plain())}, folder)
    finally:
        log.close()
    if json:
        print_json(result.plain())
    else:
        for line in result.lines():
            say(line)
        out.print(f"[bold]{result.verdict.value.upper()}[/]  {safe(result.why)}; {safe(folder)}", soft_wrap=True)
    raise typer.Exit(INTERRUPTED if result.interrupted else EXIT_CODES[result.verdict])


def _base(scenario: str, trainer: str | None, backend: str, seed: int, scenarios: pathlib.Path) -> Base:
    spec = parse_scenario(USUAL, "usual.yaml", scores=score_bounds())
    if scenario:
        spec = load_scenario(find_scenario(scenario, scenarios))
    base = Base(spec, seed, backend)
    if trainer is None:
        return base
    try:
        return of_trainer(base, build_trainer(trainer))
    except ValueError as error:
        raise UsageError(f"--trainer {trainer}: {error}") from error
