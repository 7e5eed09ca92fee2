"""Arguments and options that several commands share."""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys
from typing import Annotated

import typer

from harness.cli import places

ScenarioArg = Annotated[str, typer.Argument(help="A name from `chaos list`, or a path to a YAML file.")]
RunArg = Annotated[str, typer.Argument(help="A run's folder, its id or the beginning of it, or 'last'.")]
BackendOption = Annotated[str, typer.Option(help="Where the nodes are: local, docker, slurm or kubernetes.")]
SeedOption = Annotated[int, typer.Option(help="The seed of every random choice.")]
ProfileOption = Annotated[str | None, typer.Option(help="A profile of the scenario, e.g. cluster.")]
ReportsOption = Annotated[
    pathlib.Path, typer.Option(help="Where runs are kept.", envvar="CHAOS_REPORTS", show_default="reports/")
]
ScenariosOption = Annotated[
    pathlib.Path, typer.Option(help="Where scenarios are looked up.", envvar="CHAOS_SCENARIOS", show_default="shipped")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]

REPORTS = places.reports()
SCENARIOS = places.scenarios()


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"chaos-harness {importlib.metadata.version('chaos-harness')}\n")
        raise typer.Exit


def chaos(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What stands before the name of a command."""
