"""Commands that run something: `chaos run` and `chaos gate`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer
from rich.table import Table

from harness.backends.contract import Backend, load_backend
from harness.campaign.experiment import new_run_id, run_repeatedly
from harness.campaign.fault_free import forget_twins
from harness.campaign.gate import Gate, find_suite, run_gate
from harness.cli.options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    ProfileOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
)
from harness.cli.output import STYLES, out, safe, say
from harness.cli.scenarios import plan_of
from harness.cli.terminal import show_card
from harness.errors import INTERRUPTED, ChaosError, UsageError
from harness.judge.repeats import together
from harness.judge.score import EXIT_CODES
from harness.plan.making import Plan, check_capabilities


def run(
    scenario: Annotated[str, typer.Argument(help="A name from `chaos list`, or a path to a YAML file.")] = "",
    plan: Annotated[pathlib.Path | None, typer.Option(help="A stored plan.json instead of a scenario.")] = None,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="How often; default: what the scenario says.")] = None,
    fresh_twin: Annotated[bool, typer.Option("--fresh-twin", help="Make the fault-free run anew.")] = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Run a scenario and judge it.

    Exits with 0 pass, 1 fail, 3 inconclusive or invalid, 4 this machine cannot run it.

    Example: chaos run spot-evict --seed 7
    """
    if bool(scenario) == bool(plan):
        raise UsageError("say which scenario to run, or give a stored plan with --plan FILE")
    if plan:
        first, times = _stored_plan(plan), repeat or 1
    else:
        spec, first = plan_of(scenario, backend, seed, profile, scenarios)
        times = repeat or spec.repeat
    engine = load_backend(first.backend)
    check_capabilities(first, engine.probe())
    name, title = safe(first.scenario["name"]), safe(first.scenario["title"])
    out.print(f"[bold]{name}[/] · {title} · backend {safe(first.backend)} · seed {first.seed}", soft_wrap=True)
    if fresh_twin:
        forget_twins(first, reports.resolve())
    raise typer.Exit(_rehearse(_repeats(first, times), reports.resolve(), engine))


def _repeats(plan: Plan, times: int) -> Iterator[Plan]:
    """The plan, so many times: each with a run id of its own."""
    yield plan
    for _ in range(times - 1):
        yield replace(plan, run_id=new_run_id(str(plan.scenario["name"])))


def _rehearse(plans: Iterator[Plan], reports: pathlib.Path, engine: Backend) -> int:
    """Runs them one after the other; returns the exit code."""
    cards, interrupted = run_repeatedly(plans, reports, engine, out, show_card)
    if interrupted:
        return INTERRUPTED
    result = together(cards)
    if len(cards) > 1:
        out.print(f"[bold]{len(cards)} runs: {result.verdict}[/]")
        for reason in result.reasons:
            say(f"  {reason}")
    return EXIT_CODES[result.verdict]


def _stored_plan(path: pathlib.Path) -> Plan:
    """The plan in a file, under a new run id. Raises `UsageError` for anything else."""
    try:
        plan = Plan.from_json(json.loads(path.read_text()))
        return replace(plan, run_id=new_run_id(str(plan.scenario["name"])))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ChaosError as error:
        raise UsageError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a plan of this version: {type(error).__name__}: {error}") from error


def gate(
    suite: Annotated[str, typer.Argument(help="A name in scenarios/suites/, or a path to a YAML file.")],
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Run a suite of scenarios as one yes or no, after a canary that must fail.

    Exits by the worst verdict.

    Example: chaos gate pre-launch
    """
    setting = Gate(backend, seed, reports.resolve(), scenarios, out, show_card)
    answer = run_gate(find_suite(suite, scenarios), setting)
    table = Table("verdict", "scenario", "runs", "reason", box=None, header_style="bold")
    for row in answer.rows:
        table.add_row(*map(safe, row.cells[:4]), style=STYLES[row.result.verdict])
    out.print(table)
    out.print(f"[bold]{answer.verdict.value.upper()}[/]  {safe(answer.reason)}", soft_wrap=True)
    say(f"Report: {reports / answer.run_id / 'report.html'}", "dim")
    raise typer.Exit(EXIT_CODES[answer.verdict])
