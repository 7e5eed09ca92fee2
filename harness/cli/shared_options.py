"""Defines arguments and options that several commands share."""

import math
import os
import pathlib
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from harness.backends.contract import backend_names
from harness.cli import default_folders, path_arguments
from harness.errors import UsageError
from harness.report import commands
from harness.run.gpu_hours import GpuCap
from harness.spec.scenario import Labels
from harness.units import parse_duration_ns

ScenarioArg = Annotated[str, typer.Argument(help="A name from `chaos list`, or a path to a YAML file.")]
RunArg = Annotated[str, typer.Argument(help="A run's folder, its id or the beginning of it, or 'last'.")]
BackendOption = Annotated[str, typer.Option(help=f"Where the nodes are; one of: {', '.join(backend_names())}.")]
SeedOption = Annotated[int, typer.Option(help="The seed of every random choice.")]
ProfileOption = Annotated[str | None, typer.Option(help="A profile of the scenario, e.g. cluster.")]
REPORTS = default_folders.reports()
SCENARIOS = default_folders.scenarios()
commands.here.docs = default_folders.docs()
in_use = REPORTS  # of the command that runs: named when its disk is full


def _note_reports(folder: pathlib.Path) -> pathlib.Path:
    global in_use
    in_use = path_arguments.folder("--reports")(folder)
    commands.here.reports = _given(folder, os.environ.get("CHAOS_REPORTS"), REPORTS)
    return folder


def _note_scenarios(folder: pathlib.Path) -> pathlib.Path:
    commands.here.scenarios = _given(folder, os.environ.get("CHAOS_SCENARIOS"), SCENARIOS)
    return path_arguments.folder("--scenarios")(folder)


def _given(folder: pathlib.Path, set_to: str | None, default: pathlib.Path) -> str:
    usual = pathlib.Path(set_to or default).absolute()
    return "" if folder.absolute() == usual else str(folder.absolute())


ReportsOption = Annotated[
    pathlib.Path,
    typer.Option(help="Where runs are kept.", envvar="CHAOS_REPORTS", show_default="reports/", callback=_note_reports),
]
ScenariosOption = Annotated[
    pathlib.Path,
    typer.Option(
        help="Where scenarios are.", envvar="CHAOS_SCENARIOS", show_default="shipped", callback=_note_scenarios
    ),
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", help="key=value for the report, like team=vision; several are allowed.")
]
GpuHoursOption = Annotated[
    float | None,
    typer.Option("--max-gpu-hours", help="Stop when all jobs of this command used so much; never a pass then."),
]
_page_file = path_arguments.file_to_write("--page")
PageOption = Annotated[
    pathlib.Path | None,
    typer.Option("--page", help="Also write an HTML page to this file.", dir_okay=False, callback=_page_file),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]


def labels_of(given: list[str] | None) -> dict[str, str]:
    """Converts the texts `key=value` of the option --label to a mapping. Raises `UsageError` for a text of another
    form."""
    labels = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--label {text}: write key=value, like team=vision")
        labels[key] = value
    try:
        return TypeAdapter(Labels).validate_python(labels)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(f"--label {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error


def seconds_of(option: str, text: str) -> float:
    """Parses a duration such as `10m` into seconds. Raises `UsageError` for a text of another form."""
    try:
        return parse_duration_ns(text) / 1e9
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def cap_of(gpu_hours: float | None) -> GpuCap | None:
    """Returns the limit on GPU-hours, or `None` without a limit. Raises `UsageError` for a limit that is not above
    0."""
    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        raise UsageError(f"--max-gpu-hours {gpu_hours:g}: it must be above 0")
    return None if gpu_hours is None else GpuCap(gpu_hours, "--max-gpu-hours")
