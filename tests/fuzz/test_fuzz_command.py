"""The command `chaos fuzz`: what it refuses, how it exits, and what it leaves."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fuzz.stand_in import EVERYTHING, Bug, StandIn
from typer.testing import CliRunner

from harness.backends.local.backend import LocalBackend
from harness.cli.main import make_app
from harness.errors import UsageError
from harness.fuzz import fuzz_command, strategies
from harness.fuzz.schedules import Schedule
from harness.run.stop import stop

Chaos = Callable[..., Any]
BUGS = (Bug("rank_kill"), Bug("node_loss"), Bug("hang"), Bug("preemption"))


@pytest.fixture
def chaos(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Chaos:
    """Runs the command on a job that is none, with these bugs. It takes long to find out which faults can be drawn."""
    monkeypatch.setattr(LocalBackend, "probe", lambda self: EVERYTHING)
    monkeypatch.setattr(strategies, "fault_names", lambda: [bug.kind for bug in BUGS])

    def run(*words: str, bugs: tuple[Bug, ...] = (), noise: float = 0.0, stops: bool = False) -> Any:
        class Runs(StandIn):
            def __init__(self, *_: object):
                super().__init__(bugs, noise)

            @property
            def count(self) -> int:
                return len(self.runs)

            def __call__(self, schedule: Schedule) -> Any:
                if stops:
                    stop.ask()
                return super().__call__(schedule)

        monkeypatch.setattr(fuzz_command, "RealRuns", Runs)
        try:
            result = CliRunner().invoke(make_app(), ["fuzz", *words, "--reports", str(tmp_path / "reports")])
        finally:
            stop._asked_at = None  # it is the request of the whole process
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_it_exits_by_what_was_found_and_the_same_command_goes_on(chaos: Chaos, tmp_path: pathlib.Path) -> None:
    assert chaos("--runs", "2").exit_code == 0
    found = chaos("--runs", "60", "--findings", "1", "--json", bugs=BUGS)
    told = json.loads(found.stdout)
    assert (found.exit_code, told["verdict"], len(told["found"])) == (1, "fail", 1)
    assert sum(told["runs"].values()) > 2
    folder = tmp_path / "reports" / "fuzz-reference-1"
    assert (folder / "found-1.yaml").is_file()
    assert json.loads((folder / "fuzz.json").read_text()) == told
    again = chaos("--findings", "1", "--runs", "1")
    assert again.exit_code == 1 and "goes on after" in again.stderr
    shown = CliRunner().invoke(make_app(), ["show", "fuzz-reference-1", "--reports", str(tmp_path / "reports")])
    assert shown.exit_code == 0 and "1 failure found" in shown.stdout
    valid = CliRunner().invoke(make_app(), ["validate", str(folder / "found-1.yaml")])
    assert valid.exit_code == 0, valid.stdout


def test_it_knows_nothing_without_a_judged_run_and_says_when_it_was_stopped(chaos: Chaos) -> None:
    assert chaos("--runs", "2", noise=1.0).exit_code == 3
    assert chaos("--seed", "2", stops=True).exit_code == 130


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--budget", "soon"], "--budget soon: "),
        (["--trainer", "nobody"], "--trainer nobody: unknown trainer"),
        (["no-such-scenario"], "unknown scenario 'no-such-scenario'"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    words: list[str], told: str, chaos: Chaos, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(UsageError, match=told):
        chaos(*words)
    assert not (tmp_path / "reports").exists()


def test_another_job_does_not_go_on_with_a_search(chaos: Chaos, tmp_path: pathlib.Path) -> None:
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("version: 1\nname: mine\ntitle: Mine\nworkload: {steps: 50}\n")
    assert chaos(str(scenario), "--runs", "1").exit_code == 0
    scenario.write_text("version: 1\nname: mine\ntitle: Mine\nworkload: {steps: 60}\n")
    with pytest.raises(UsageError, match=r"search.jsonl:1: it is of another job, seed or backend; remove the folder"):
        chaos(str(scenario), "--runs", "1")


def test_without_hypothesis_it_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; from harness.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "fuzz"], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and done.stderr.startswith("error: chaos fuzz needs hypothesis: pip install ")
