"""Defines the option `--summary`, which appends reports in Markdown to a file that a CI job shows."""

import pathlib
from collections.abc import Callable
from typing import Annotated

import typer

from harness.cli import path_arguments

_file = path_arguments.file_to_write("--summary")
SummaryOption = Annotated[
    pathlib.Path | None,
    typer.Option(help="Append the report to this file as Markdown, e.g. $GITHUB_STEP_SUMMARY.", callback=_file),
]
SUMMARY_BYTES_MAX = 1_000_000  # of one report; GitHub takes 1 MiB of a step


def summary_to(path: pathlib.Path | None) -> list[Callable[[pathlib.Path], None]]:
    """Returns a list with one function, which appends the report in a run's folder to the file `path`. Returns an empty
    list if `path` is `None`."""
    return [] if path is None else [lambda run_dir: append_summary(path, (run_dir / "report.md").read_text())]


def append_summary(path: pathlib.Path, report: str) -> None:
    """Appends a Markdown report to a file. The report is cut to `SUMMARY_BYTES_MAX`, because GitHub rejects a longer
    summary."""
    text = report.encode()
    if len(text) > SUMMARY_BYTES_MAX:
        text = text[:SUMMARY_BYTES_MAX].rpartition(b"\n")[0] + b"\n\n(cut: the whole report is in its folder)\n"
    with path.open("ab") as file:
        file.write(text + b"\n")
