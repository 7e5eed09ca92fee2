"""`chaos diagnose` and `chaos explain-failure`, as they are called."""

import json
import pathlib
from typing import Any

import pytest
from command_line import chaos
from simulator import Job, Outage, simulate

from harness.diagnosis.diagnose_command import diagnose
from harness.diagnosis.explain_command import explain_failure
from harness.errors import EventLogError, UsageError
from harness.plan.run_plan import FIRST_LOOK


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[str]:
    """Three runs with a fault, with one fault-free run beside each, which two of them share."""
    folders = [tmp_path / f"run-{victim}" for victim in range(3)]
    for victim, folder in enumerate(folders):
        simulate(Job(nodes=3), [Outage(after=12, kind="rank", victim=victim)], seed=victim).write(folder)
        simulate(Job(nodes=3), seed=victim // 2).write(folder / "fault-free")
    return [*map(str, folders)]


def in_json(*words: str) -> Any:
    """The answer of a command, as it is called."""
    done = chaos(*words, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_the_baseline_is_graded_on_stored_runs_also_in_a_table_for_people(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = in_json("diagnose", *runs)
    assert told["runs"] == 5 and told["controls_not_accused"]["hits"] == 2
    assert told["all"]["recall"]["hits"] == 3 and told["all"]["recall"]["interval"][1] == 1
    assert [each["grade"] for each in told["faults"]] == ["right"] * 3 and not told["innocents"]
    assert told["at_index_0"]["hits"] == 1 and told["wasted_gpu_hours"] == "not measured"
    diagnose(runs, read="rank_0")
    shown = capsys.readouterr().out
    assert "5 runs, 2 of them without a fault; 5 answers" in shown
    assert "Innocents accused: 4 (rank 0 in run-0/fault-free; rank 0 in run-1; rank 0 in run-2" in shown
    assert "recall" in shown and "crash" in shown and "not measured" in shown


def test_answers_of_a_file_in_each_run(runs: list[str]) -> None:
    for victim, run in enumerate(runs):
        line = {"kind": "crash", "who": [{"rank": 1}], "decision": "restart-in-place"}
        pathlib.Path(run, "diagnosis.jsonl").write_text(json.dumps(line) + "\n" if victim else "")
    told = in_json("diagnose", *runs, "--answers", "{run}/diagnosis.jsonl")
    assert [each["grade"] for each in told["faults"]] == ["missing", "right", "wrong"] and told["runs"] == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"read": "torchelastic"}, "--read torchelastic: name its file with --answers"),
        ({"answers": "a.jsonl"}, "with several runs write {run}"),
        ({"answers": "{run}/a", "read": "baseline"}, "--read baseline: unknown reader of answers"),
        ({"within": "soon"}, "--within soon: 'soon' is not a duration"),
        ({"answers": "{run}/none.jsonl"}, "none.jsonl: it cannot be read"),
    ],
)
def test_mistakes_of_a_call_are_told(more: dict[str, Any], said: str, runs: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        diagnose(runs, **more)
    assert said in str(caught.value)


def test_a_run_that_cannot_be_read_is_passed_over(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path(runs[1], "events", "harness.jsonl").write_text("nonsense\n")
    diagnose(runs, json=True)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["runs"] == 4 and "passed over" in shown.err and "harness.jsonl" in shown.err
    pathlib.Path(runs[0], "events", "harness.jsonl").write_text("nonsense\n")
    with pytest.raises(UsageError, match="no run is left"):
        diagnose(runs[:1], answers="{run}/d")
    plan = {"scenario": {"name": "init", "tags": [FIRST_LOOK]}, "backend": "local", "seed": 1}
    pathlib.Path(runs[1], "plan.json").write_text(json.dumps(plan))
    diagnose(runs, json=True)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["runs"] == 3 and "is a first look of chaos init" in shown.err
    with pytest.raises(UsageError, match="unknown run"):
        diagnose([*runs, "nobody"])


def test_the_first_thing_that_broke_is_explained(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    explain_failure(runs[2])
    shown = capsys.readouterr().out
    assert shown.startswith("What broke first, ") and "who    rank 2, node node2" in shown and "signal 9" in shown
    assert "launcher of node2: worker.exit" in shown and "restart the workers where they are" in shown
    (incident,) = in_json("explain-failure", runs[2])["incidents"]
    assert incident["kind"] == "crash" and incident["who"] == [{"rank": 2, "node": "node2"}] and incident["evidence"]


def test_a_healthy_run_has_nothing_to_explain(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    explain_failure(f"{runs[0]}/fault-free")
    assert capsys.readouterr().out == "Nothing broke, as far as 3 workers and their launchers tell.\n"
    with pytest.raises(EventLogError):
        pathlib.Path(runs[0], "events", "harness.jsonl").write_text("nonsense\n")
        explain_failure(runs[0])
