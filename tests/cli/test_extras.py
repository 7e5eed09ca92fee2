"""Without an extra a command that needs it names it, and nothing is launched; everything else works."""

import pathlib
import subprocess
import sys

import pytest
from docs.test_metrics_doc import example

from harness.extras import how_to_install

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow  # whole commands
@pytest.mark.parametrize(
    ("missing", "command", "code", "told"),
    [
        ("prometheus_client", "run rank-kill --metrics :0 --reports REPORTS", 4, how_to_install("metrics")),
        ("mlflow", "export RUN --mlflow http://127.0.0.1:5000", 4, how_to_install("mlflow")),
        ("opentelemetry", "export RUN --otlp http://127.0.0.1:4318", 4, how_to_install("otel")),
        ("starlette", "gameday pre-launch --reports REPORTS", 4, f"{how_to_install('gameday')}, or run it with --no-page"),
        ("uvicorn", "gameday pre-launch --reports REPORTS", 4, f"{how_to_install('gameday')}, or run it with --no-page"),
        ("starlette", "gameday pre-launch --dry-run", 0, "Nothing was launched."),
    ],
)  # fmt: skip
def test_a_command_names_the_extra_that_it_needs(
    missing: str, command: str, code: int, told: str, tmp_path: pathlib.Path
) -> None:
    run, reports = tmp_path / "example-1", tmp_path / "reports"
    run.mkdir()
    example(run / "events")
    script = f"import sys; sys.modules[{missing!r}] = None; from harness.cli.main import main; main()"
    words = command.replace("REPORTS", str(reports)).replace("RUN", str(run)).split()
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, env={"COLUMNS": "300"}
    )
    assert done.returncode == code and told in done.stdout + done.stderr, done.stdout + done.stderr
    assert not reports.exists() or list(reports.iterdir()) == []
