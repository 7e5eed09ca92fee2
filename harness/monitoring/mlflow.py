"""Defines the export `mlflow`, which logs a judged run as a run of MLflow, with its figures, losses and report."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.cli.exports import Export
from harness.errors import ChaosError
from harness.evidence import losses
from harness.report import run_report
from harness.report.run_report import Report
from harness.report.words import one_line
from harness.timeline import timeline

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

METRICS_AT_ONCE = 1000  # that one call takes
LOSSES_MAX = 20_000
TEXT_MAX = 500  # of a parameter
FILES = ("report.html", "report.json", "report.md")


def log(run_dir: pathlib.Path, uri: str) -> str:
    """Logs a judged run into the experiment with its scenario's name. Returns MLflow's id of the new run.

    Raises `ChaosError` if the run has no report, or if MLflow does not accept the run.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    report = run_report.read(run_dir / "report.json")
    curve = losses.surviving(timeline.load(run_dir).steps)
    now_ms = int(time.time() * 1000)
    every = max(1, math.ceil(len(curve.step) / LOSSES_MAX))
    pairs = zip(curve.step[::every].tolist(), curve.loss[::every].tolist(), strict=True)
    told = [Metric("loss", loss, now_ms, step) for step, loss in pairs if math.isfinite(loss)]
    try:
        return _log(MlflowClient(tracking_uri=uri), run_dir, report, told)
    except (MlflowException, OSError, ImportError) as error:  # a store in a database needs further packages
        raise ChaosError(f"MLflow at {uri} did not take the run: {one_line(error)[:TEXT_MAX]}") from error


def _log(client: MlflowClient, run_dir: pathlib.Path, report: Report, losses: list[Metric]) -> str:
    from mlflow.entities import Param, RunTag

    name = f"chaos/{report.scenario}"
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known is not None else client.create_experiment(name)
    logged = str(client.create_run(experiment, run_name=report.run_id).info.run_id)
    told = {"backend": report.backend, "seed": str(report.seed), "commit": report.commit or ""}
    params = [Param(key, one_line(value)[:TEXT_MAX]) for key, value in told.items() if value]
    tags = [RunTag("verdict", report.verdict.value), RunTag("reason", one_line((report.reasons or [""])[0])[:TEXT_MAX])]
    client.log_batch(logged, metrics=_figures(report), params=params, tags=tags)
    for at in range(0, len(losses), METRICS_AT_ONCE):
        client.log_batch(logged, metrics=losses[at : at + METRICS_AT_ONCE])
    for file in FILES:
        if (run_dir / file).is_file():
            client.log_artifact(logged, str(run_dir / file))
    client.set_terminated(logged)
    return logged


def _figures(report: Report) -> list[Metric]:
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    found = {"metrics": report.metrics, **report.scores}
    pairs = [(f"{score}.{name}", value) for score, values in found.items() for name, value in values.items()]
    accounts = report.scores.get("wasted_gpu_hours", {}).get("accounts", {})
    pairs += [(f"ledger.{name}", value) for name, value in accounts.items()]
    return [
        Metric(name, float(value), now_ms, 0)
        for name, value in pairs
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]


def _stored(uri: str) -> Callable[[pathlib.Path], str]:
    import mlflow  # noqa: F401 - says at once whether the extra is there

    return lambda run_dir: f"Run {log(run_dir, uri)} of MLflow."


EXPORT = Export("URI", "Log runs to this MLflow, e.g. http://127.0.0.1:5000.", "mlflow", stored=_stored, each=True)
