"""The options of `chaos run` and `chaos gameday` by which other people's monitoring sees a job."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import typer

from harness.campaign.campaign_observers import CampaignObserver, Together
from harness.cli import path_arguments
from harness.cli.output import say
from harness.extras import needed
from harness.judge.score import Scorecard
from harness.report import markdown, run_report

MetricsOption = Annotated[
    str,
    typer.Option(
        metavar="[ADDRESS]:PORT",
        help="Serve Prometheus metrics there meanwhile, e.g. :9464 (for this host alone). Needs the extra metrics.",
    ),
]
OtlpOption = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Send runs as OpenTelemetry spans to this collector, e.g. http://127.0.0.1:4318. Needs the extra otel.",
    ),
]
MlflowOption = Annotated[
    str,
    typer.Option(metavar="URI", help="Log runs to this MLflow, e.g. http://127.0.0.1:5000. Needs the extra mlflow."),
]
SummaryOption = Annotated[
    pathlib.Path | None,
    typer.Option(
        help="Append the report to this file as Markdown, e.g. $GITHUB_STEP_SUMMARY.",
        callback=path_arguments.file_to_write("--summary"),
    ),
]
SUMMARY_BYTES_MAX = 1_000_000  # of one report; GitHub takes 1 MiB of a step


class Telling(CampaignObserver):
    """Tells other systems of each judged run. Errors are printed, and change no verdict."""

    def __init__(self, otlp: str = "", mlflow: str = "", summary: pathlib.Path | None = None) -> None:
        self._send = sender(otlp) if otlp else None
        self._log = logger(mlflow) if mlflow else None
        self._summary = summary

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        folder = files["report.json"].parent
        if self._summary is not None:
            self._try(
                lambda path: append_summary(path, markdown.render(run_report.from_scorecard(card))), self._summary
            )
        if self._send is not None:
            self._try(self._send, folder, "Trace")
        if self._log is not None:
            self._try(self._log, folder, "Run of MLflow")

    @staticmethod
    def _try(tell: Callable[[pathlib.Path], str | None], path: pathlib.Path, what: str = "") -> None:
        try:
            told = tell(path)
            if told:
                say(f"{what}: {told}", "dim")
        except Exception as error:  # whatever breaks here, the verdict is already known
            say(f"The verdict stands, but others could not be told of it: {error}")


def sender(url: str) -> Callable[[pathlib.Path], str]:
    """Sends a run's folder to that collector, and returns the id of its trace.

    Raises `UsageError` for a URL that is none, `CannotRunError` without the extra.
    """
    with needed("--otlp", "otel"):
        from harness.monitoring import opentelemetry_spans
    opentelemetry_spans.endpoint(url)
    return lambda run_dir: opentelemetry_spans.send(run_dir, url)


def logger(uri: str) -> Callable[[pathlib.Path], str]:
    """Logs a run's folder to that MLflow, and returns the id that it has there.

    Raises `CannotRunError` without the extra.
    """
    with needed("--mlflow", "mlflow"):
        from harness.monitoring import mlflow
    return lambda run_dir: mlflow.log(run_dir, uri)


def append_summary(path: pathlib.Path, report: str) -> None:
    """Appends a report in Markdown, cut where it is too long for a job summary."""
    text = report.encode()
    if len(text) > SUMMARY_BYTES_MAX:
        text = text[:SUMMARY_BYTES_MAX].rpartition(b"\n")[0] + b"\n\n(cut: the whole report is in its folder)\n"
    with path.open("ab") as file:
        file.write(text + b"\n")


@contextlib.contextmanager
def watched(observer: CampaignObserver, metrics: str, budget: float | None = None) -> Iterator[CampaignObserver]:
    """The observer, joined by one that serves the metrics as long as this lasts, if an address is given.

    `budget`: the part of the GPU time that may be wasted, where the plan of the job does not say it.
    """
    if not metrics:
        yield observer
        return
    with needed("--metrics", "metrics", ", or leave the option out"):
        from harness.monitoring.metrics_server import serving
    with serving(metrics, budget) as (monitor, address):
        say(f"  metrics: {address}", "dim")
        yield Together(observer, monitor)
