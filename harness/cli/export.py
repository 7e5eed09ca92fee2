"""`chaos export`: a stored run in the formats of other tools."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from harness.campaign.run_store import Store
from harness.campaign.wings import stored_kind_of
from harness.cli import path_arguments
from harness.cli.monitoring import MlflowOption, OtlpOption, logger, sender
from harness.cli.output import say
from harness.cli.shared_options import REPORTS, ReportsOption, RunArg
from harness.errors import UsageError
from harness.report import perfetto
from harness.timeline import timeline


def export(
    run: RunArg,
    perfetto_file: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--perfetto",
            help="Write a trace for ui.perfetto.dev into this file.",
            dir_okay=False,
            callback=path_arguments.file_to_write("--perfetto"),
        ),
    ] = None,
    otlp: OtlpOption = "",
    mlflow: MlflowOption = "",
    reports: ReportsOption = REPORTS,
) -> None:
    """Write a stored run in the formats of other tools. Exits 0 whatever the verdict.

    Example: chaos export last --perfetto trace.json
    """
    if perfetto_file is None and not otlp and not mlflow:
        raise UsageError("say what to write: --perfetto FILE, --otlp URL or --mlflow URI")
    send = sender(otlp) if otlp else None
    log = logger(mlflow) if mlflow else None
    folder = Store(reports).find(run)
    if stored_kind_of(folder) and not (folder / "events").is_dir():
        raise UsageError(f"{folder.name} is made of many runs: export one of the folders in it that holds events/")
    if perfetto_file is not None:
        with perfetto_file.open("w") as file:
            together = perfetto.write(timeline.load(folder), file)
        shared = f"; {together} consecutive steps share a slice" if together > 1 else ""
        say(f"{perfetto_file}: open it at ui.perfetto.dev{shared}")
    if send is not None:
        say(f"Trace {send(folder)} was sent.")
    if log is not None:
        say(f"It is run {log(folder)} of MLflow.")
