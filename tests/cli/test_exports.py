"""Exports are found by their entry points, each is an option of its name, and a missing extra is
named before anything is launched."""

import importlib.metadata
import pathlib
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from docs.test_metrics_doc import example
from typer.testing import CliRunner

from harness import plugins
from harness.cli import exports as exports_module
from harness.cli.exports import GROUP, Export, exports, offering
from harness.errors import UsageError
from harness.extras import how_to_install
from harness.plugins import entry_points

ROOT = pathlib.Path(__file__).resolve().parents[2]
MINE = Export("PLACE", "Print it.", stored=lambda value: lambda run_dir: f"{run_dir.name} went to {value}", each=True)


def clear() -> None:
    exports.cache_clear()
    entry_points.cache_clear()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the entry points."""

    def replace(*points: tuple[str, str]) -> None:
        found = [EntryPoint(name, value, GROUP) for name, value in points]
        monkeypatch.setattr(plugins, "installed", lambda: importlib.metadata.EntryPoints(found))
        clear()

    yield replace
    clear()


def test_ours_are_declared_in_pyproject() -> None:
    clear()
    assert sorted(exports()) == ["metrics", "mlflow", "otlp", "perfetto"]


def test_an_export_of_another_package_is_an_option(known: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "job-1").mkdir()
    example(tmp_path / "job-1" / "events")
    known(("mine", f"{__name__}:MINE"))
    sys.modules.pop("harness.monitoring.export_command", None)
    from harness.cli.main import make_app

    done = CliRunner().invoke(make_app(), ["export", str(tmp_path / "job-1"), "--mine", "x"])
    sys.modules.pop("harness.monitoring.export_command", None)
    assert done.exit_code == 0 and "job-1 went to x" in done.output, done.output


def test_one_that_cannot_be_loaded_is_left_out_and_named(known: Any, capfd: pytest.CaptureFixture[str]) -> None:
    known(("mine", f"{__name__}:MINE"), ("broken", "somebody.elses:EXPORT"))
    assert [*exports()] == ["mine"]
    assert "The export 'broken' of somebody.elses:EXPORT is left out: ModuleNotFoundError" in capfd.readouterr().err


def test_a_name_that_two_have_or_an_option_of_the_command_is_an_error(known: Any) -> None:
    known(("mine", f"{__name__}:MINE"), ("mine", "somebody.elses:EXPORT"))
    with pytest.raises(UsageError, match=r"'mine': somebody\.elses:EXPORT of .* and .*:MINE of"):
        exports()
    known(("seed", f"{__name__}:MINE"))

    def command(chosen: exports_module.Chosen, seed: int = 1) -> None:
        """Does nothing."""

    with pytest.raises(UsageError, match="'seed' and an option of chaos command"):
        offering(lambda export: True)(command)


@pytest.mark.slow  # whole commands
@pytest.mark.parametrize("command", ["export last", "run rank-kill --otlp http://h:1"])
def test_a_checkout_that_is_not_installed_says_so(command: str) -> None:
    done = called("import importlib.metadata as m; m.entry_points = lambda **_: m.EntryPoints();", *command.split())
    told = "none of chaos_harness.exports are known, as this package is not installed here"
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{told}: {how_to_install()}" in done.stderr


def called(before: str, *words: str) -> subprocess.CompletedProcess[str]:
    script = f"{before} from harness.cli.main import main; main()"
    command, env = [sys.executable, "-c", script, *words], {"COLUMNS": "300"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)


DAY = f"{how_to_install('gameday')}, or run it with --no-page"


@pytest.mark.slow  # whole commands
@pytest.mark.parametrize(
    ("missing", "command", "code", "told"),
    [
        ("prometheus_client", "run rank-kill --metrics :0 --reports REPORTS", 4, how_to_install("metrics")),
        ("mlflow", "export RUN --mlflow http://127.0.0.1:5000", 4, how_to_install("mlflow")),
        ("opentelemetry", "export RUN --otlp http://127.0.0.1:4318", 4, how_to_install("otel")),
        ("starlette", "gameday pre-launch --reports REPORTS", 4, DAY),
        ("uvicorn", "gameday pre-launch --dry-run", 0, "Nothing was launched."),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    missing: str, command: str, code: int, told: str, tmp_path: pathlib.Path
) -> None:
    run, reports = tmp_path / "example-1", tmp_path / "reports"
    run.mkdir()
    example(run / "events")
    words = command.replace("REPORTS", str(reports)).replace("RUN", str(run)).split()
    done = called(f"import sys; sys.modules[{missing!r}] = None;", *words)
    assert done.returncode == code and told in done.stdout + done.stderr, done.stdout + done.stderr
    assert not reports.exists() or list(reports.iterdir()) == []
