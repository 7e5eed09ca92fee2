"""Commands of a game day: `chaos gameday PLAN.yaml`, `chaos gameday resume` and `chaos gameday note`."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from harness.backends.contract import load_backend
from harness.campaign.experiment import new_run_id
from harness.campaign.gameday_plan import plan_day
from harness.cli.options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
)
from harness.cli.output import say
from harness.plan.gameday import schedule
from harness.spec.gameday import find_gameday


def run(
    plan: Annotated[str, typer.Argument(help="A name in scenarios/gamedays/, or a path to a YAML file.")],
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the schedule with times; start nothing.")] = False,
    step_time: Annotated[
        float, typer.Option(min=0, help="With --dry-run: seconds that a step takes, to turn steps into times.")
    ] = 0.0,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Run a game day: a schedule of scenarios on one job that keeps running.

    Exits with 0 pass, 1 fail, 3 inconclusive or invalid, 4 this machine cannot run it.

    Example: chaos gameday pre-launch --dry-run
    """
    load_backend(backend)
    path = find_gameday(plan, scenarios)
    day = plan_day(path, seed, backend, new_run_id(path.stem), scenarios)
    if dry_run:
        say(f"{day.name}: {day.title} · backend {backend} · seed {seed}")
        for line in schedule(day, step_time or None):
            say(line)
        say("Times are the earliest ones. Nothing was launched.")
        return


class PlanFirst(TyperGroup):
    """`chaos gameday PLAN.yaml` is short for `chaos gameday run PLAN.yaml`."""

    def parse_args(self, context: typer.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(context, args)


def make_group() -> typer.Typer:
    group = typer.Typer(
        cls=PlanFirst, no_args_is_help=True, help="A schedule of scenarios on one job that keeps running."
    )
    group.command("run")(run)
    return group
