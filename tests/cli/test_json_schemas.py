"""What programs read of each command keeps its shape: keys and their types, told here once."""

import json
import pathlib
from typing import Any

import pytest
import report_runs
from command_line import chaos
from gate.test_baseline import HERE, of, runs

import harness.report
from harness.gate import baseline

Shape = Any


def shape(value: Any) -> Shape:
    """Objects by their keys, lists by their first item, everything else by its type."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "null" if value is None else type(value).__name__


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("reports")
    for name, card in {"a-1": report_runs.spot_evict(), "a-2": report_runs.double_evict()}.items():
        (folder / name / "events").mkdir(parents=True)
        (folder / name / "plan.json").write_text("{}")
        harness.report.write_reports(card, folder / name)
    baseline.keep("week", of(HERE, runs([7.0], commit="abcd", seconds=30.0)), folder)
    return folder


def told(*words: object) -> Any:
    done = chaos(*words)
    assert done.exit_code in (0, 4), done.output
    return json.loads(done.stdout)


RUN = {
    **dict.fromkeys(("backend", "begun_at", "headline", "run_id", "scenario", "seed", "verdict"), "str"),
    "commit": "null",
    "is_control": "bool",
}
MOMENT = {
    **dict.fromkeys(("backend", "begun_at", "run_id", "scenario", "verdict"), "str"),
    **dict.fromkeys(("recovery_seconds", "waste_percent_by_faults"), "float"),
    "commit": "null",
    "profile": "null",
}
LINE = {"after": "float", "before": "float", "change": "float", "name": "str"}
SECTION = {"largest": "str", "lines": [LINE], "missing": "str"}
COMPARED = {key: value for key, value in MOMENT.items() if key not in ("begun_at", "profile")}


REPORT = """schema run_id scenario title backend seed profile commit begun_at verdict reasons run faults scores metrics
expectations guarantees environment labels provenance not_judged not_judged_because next_steps kept_as"""


def test_scenarios_and_stored_runs(reports: pathlib.Path) -> None:
    assert shape(told("list", "--json")) == [{"name": "str", "tags": ["str"], "title": "str"}]
    assert shape(told("runs", "--json", "--reports", reports)) == [RUN]
    found = told("show", "a-1", "--json", "--reports", reports)
    assert sorted(found) == sorted(REPORT.split())
    assert found["schema"] == 1
    assert shape(told("history", "--json", "--reports", reports)) == {"changes": [], "runs": [MOMENT], "schema": "int"}


@pytest.mark.slow  # tries out what the engines can do
def test_faults() -> None:
    (fault, *_) = told("faults", "--json")
    assert sorted(fault) == ["about", "backends", "name", "parameters"]
    assert shape(fault["backends"])["local"] == {"lacking": "str", "works": "bool"}
    assert sorted(fault["parameters"][0]) == ["about", "choices", "default", "name", "required"]


def test_doctor() -> None:
    found = told("doctor", "--json")
    assert sorted(found) == ["backends", "faults", "findings", "left_by_killed_runs", "scenarios"]
    assert sorted(found["scenarios"][0]) == ["name", "runs", "why_not"]
    assert shape(found["findings"]) == [{"detail": "str", "needed": "bool", "ok": "bool", "what": "str"}]
    assert sorted(found["backends"]["local"]) == ["available", "missing", "summary", "verbs"]
    assert sorted(found["faults"][0]) == ["backends", "name"]


def test_comparison(reports: pathlib.Path) -> None:
    found = told("compare", "a-1", "a-2", "--json", "--reports", reports)
    assert sorted(found) == ["accounts", "after", "before", "cautions", "phases", "ranks", "schema"]
    assert found["schema"] == 1
    for section in ("phases", "accounts"):
        assert shape(found[section]) | {"largest": "str"} == SECTION, "null where nothing differs"
    assert shape(found["before"]) == COMPARED


def test_baselines(reports: pathlib.Path) -> None:
    assert shape(told("baseline", "list", "--json", "--reports", reports)) == [
        {
            **dict.fromkeys(("made_at", "name", "source"), "str"),
            "commits": ["str"],
            "scenarios": [{"runs": "int", "scenario": "str"}],
        }
    ]
    shown = told("baseline", "show", "week", "--json", "--reports", reports)
    assert sorted(shown) == ["made_at", "scenarios", "schema", "source"]
    assert sorted(shown["scenarios"][0]["runs"][0]) == [
        *("allocated_gpu_seconds", "checkpoint_stall", "commit", "recovery_time", "run_id", "seconds", "step_seconds"),
        *("verdict", "wasted_gpu_seconds"),
    ]


def test_pages_are_written_where_asked(reports: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name, words in {"trend": ["history"], "beside": ["compare", "a-1", "a-2"]}.items():
        page = tmp_path / "new" / f"{name}.html"
        done = chaos(*words, "--page", page, "--reports", reports)
        assert done.exit_code == 0 and f"Page: {page}" in done.output.replace("\n", "")
        assert "<!doctype html>" in page.read_text()
