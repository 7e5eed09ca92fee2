"""Logging to MLflow, by its own client, against a server in this process that speaks its REST API."""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from docs.test_metrics_doc import example
from http_servers import Asked, serving

from harness.errors import ChaosError
from harness.evidence.logs import load_evidence
from harness.judge.score import judge
from harness.monitoring import mlflow
from harness.report import write_reports

ROOT = pathlib.Path(__file__).resolve().parents[2]
Calls = list[tuple[str, dict[str, Any]]]


@contextlib.contextmanager
def tracking(artifacts: pathlib.Path, status: int = 200) -> Iterator[tuple[str, Calls]]:
    """A tracking server: its address, and what it was asked, in order."""
    calls: Calls = []
    info = {"run_id": "r1", "run_uuid": "r1", "experiment_id": "7", "status": "RUNNING"}
    info |= {"artifact_uri": artifacts.as_uri()}
    run = {"run": {"info": info, "data": {}}}
    answers = {"experiments/create": {"experiment_id": "7"}, "runs/create": run, "runs/get": run, "runs/update": {"run_info": info}}  # fmt: skip

    def answer(asked: Asked) -> tuple[int, Any]:
        name = asked.path.partition("?")[0].partition("/mlflow/")[2]
        calls.append((name, json.loads(asked.body or b"{}")))
        if name == "experiments/get-by-name":
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
        return status, answers.get(name, {})

    with serving(answer) as address:
        yield address, calls


@pytest.fixture
def run_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = tmp_path / "example-1"
    folder.mkdir()
    example(folder / "events")
    write_reports(judge(load_evidence(folder), folder.name), folder)
    return folder


@pytest.mark.filterwarnings("ignore")  # those of MLflow's own imports
def test_a_run_is_logged_with_its_figures_losses_and_report(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with tracking(tmp_path / "artifacts") as (url, calls):
        assert mlflow.log(run_dir, url) == "r1"
    asked = dict(calls)
    assert asked["experiments/create"]["name"] == "chaos/example"
    assert asked["runs/create"]["run_name"] == "example-1"
    assert asked["runs/update"]["status"] == "FINISHED"
    batches = [body for name, body in calls if name == "runs/log-batch"]
    metrics = {each["key"]: each["value"] for body in batches for each in body.get("metrics", ())}
    assert metrics["recovery_time.seconds"] == 14 and metrics["ledger.productive"] > 0
    losses = [(each["step"], each["value"]) for body in batches for each in body["metrics"] if each["key"] == "loss"]
    assert losses == [(step, pytest.approx(5 - step / 10)) for step in range(1, 7)]
    assert {each["key"] for each in batches[0]["tags"]} == {"verdict", "reason"}
    assert {each.name for each in (tmp_path / "artifacts").iterdir()} == {"report.html", "report.json", "report.md"}


@pytest.mark.filterwarnings("ignore")
def test_a_server_that_refuses_or_a_store_that_cannot_be_used_is_an_error(
    run_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with tracking(tmp_path, 400) as (url, _):
        for place in (url, f"{tmp_path}/mlruns", f"sqlite:///{tmp_path}/runs.db", "nothing://x"):
            with pytest.raises(ChaosError, match="did not take the run"):
                mlflow.log(run_dir, place)
