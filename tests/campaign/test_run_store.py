"""Runs found again: by what they are, whatever lies beside them."""

import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from harness.campaign.checked_files import find_plan
from harness.campaign.run_store import Store, Wanted, usable
from harness.errors import UsageError
from harness.gate import history_report
from harness.gate.history_report import moments
from harness.judge.verdict import Verdict
from harness.plan.run_plan import CONTROL, FIRST_LOOK
from harness.report import run_report
from harness.report.strict_json import json_text

PLAN: dict[str, Any] = {"scenario": {"name": "spot-evict"}, "backend": "local", "seed": 7}


def write(reports: pathlib.Path, run_id: str, begun_s: int = 0, /, plan: Any = PLAN, **values: Any) -> pathlib.Path:
    """A run as it lies in the reports folder; without a verdict it was not judged."""
    folder = reports / run_id
    (folder / "events").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    os.utime(folder / "plan.json", (begun_s, begun_s))
    if "verdict" in values:
        known = {"run_id": run_id, "scenario": "spot-evict", "backend": "local", "seed": 7}
        report = run_report.Report(**{**known, **values})
        (folder / "report.json").write_text(json_text(report.to_json()))
    return folder


@pytest.fixture
def reports(tmp_path: pathlib.Path) -> pathlib.Path:
    write(tmp_path, "a-1", 100, verdict=Verdict.PASS, commit="aaaa1111", reasons=("fine",))
    write(tmp_path, "a-2", 200, verdict=Verdict.FAIL, commit="aaaa2222", backend="docker")
    write(tmp_path, "b-1", 300, verdict=Verdict.PASS, scenario="rank-kill", begun_at="2026-11-22T08:00:00+00:00")
    write(tmp_path, "c-1", 400)
    return tmp_path


def ids(store: Store, **wanted: Any) -> list[str]:
    return [run.run_id for run in store.runs(Wanted(**wanted))]


def test_runs_are_found_by_what_they_are_the_newest_first(reports: pathlib.Path) -> None:
    store = Store(reports)
    for wanted, found in (
        ({}, "b-1 c-1 a-2 a-1"),
        ({"scenario": "rank-kill"}, "b-1"),
        ({"backend": "docker"}, "a-2"),
        ({"commit": "aaaa"}, "a-2 a-1"),
        ({"commit": "aaaa1111"}, "a-1"),
        ({"verdict": Verdict.PASS}, "b-1 a-1"),
        ({"since_s": 150}, "b-1 c-1 a-2"),
        ({"verdict": Verdict.PASS, "since_s": 150}, "b-1"),
        ({"scenario": "' OR 1=1 --"}, ""),
    ):
        assert ids(store, **wanted) == found.split(), wanted
    assert store.notes == []
    write(reports, "d-1", 500, verdict=Verdict.PASS)
    (reports / "a-1" / "report.json").unlink()
    (reports / "a-2" / "plan.json").unlink()
    assert ids(store) == ["b-1", "d-1", "c-1", "a-1"], "each answer follows the folder"
    assert ids(store, verdict=Verdict.PASS) == ["b-1", "d-1"]
    write(reports, "b-2", 9, verdict=Verdict.FAIL, scenario="rank-kill", begun_at="2026-11-22T08:00:00+00:00")
    store, copied = Store(reports), Wanted(scenario="rank-kill")
    assert len(store.runs(copied)) == 2 and [run.run_id for run in store.evidence(copied)] == ["b-2"], (
        "the worst counts"
    )
    assert "are one run, which counts once" in store.notes[0]


@pytest.mark.parametrize("judged", [{}, {"verdict": Verdict.INCONCLUSIVE}])
def test_a_first_look_is_no_run(tmp_path: pathlib.Path, judged: dict[str, Any]) -> None:
    tagged = {**PLAN, "scenario": {"name": "init", "tags": [FIRST_LOOK]}}
    look = write(tmp_path, "init-1", 900, plan=tagged, **judged)
    store = Store(tmp_path)
    told = "init-1 is a first look of chaos init, no run to be judged.*that init wrote, by default: chaos run chaos/"
    for name in ("init-1", "init", "last", str(look)):
        with pytest.raises(UsageError, match=told):
            store.find(name)
        with pytest.raises(UsageError, match=told):
            usable(name, tmp_path, lambda folder: folder, [])
    for name in ("init-1", str(look), str(look / "plan.json")):
        with pytest.raises(UsageError, match=told):
            find_plan(name, tmp_path)
    assert (store.runs(), store.evidence(), store.notes, moments(tmp_path, Wanted())) == ([], [], [], ([], []))
    write(tmp_path, "b-1", 100, verdict=Verdict.PASS)
    assert ids(store) == ["b-1"] and store.find("last").name == "b-1", "the look is newer"


def test_what_was_not_judged_or_not_read_is_said(reports: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = [run for run in Store(reports).runs() if run.run_id == "c-1"]
    assert (run.verdict, run.scenario, run.begun_at) == (None, "spot-evict", "1970-01-01T00:06:40+00:00")
    assert moments(reports, Wanted())[1] == []
    for edge in ("9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"):  # outside of the calendar
        shutil.rmtree(reports / "d-1", ignore_errors=True)
        write(reports, "d-1", 500, verdict=Verdict.PASS, begun_at=edge)
        found, notes = moments(reports, Wanted())
        assert [each.begun_at and each.run_id for each in found] == ["b-1", "a-2", "a-1"]
        assert len(notes) == 1 and notes[0].startswith(f"d-1: report.json: begun_at is {edge}")
        assert [run.begun_at and run.run_id for run in Store(reports).runs()][:2] == ["b-1", "d-1"]
    shutil.rmtree(reports / "d-1")
    monkeypatch.setattr(history_report, "READ_MAX", 2)
    assert moments(reports, Wanted())[1] == ["only the newest 2 of 3 runs were read"]


def test_a_run_without_a_step_has_neither_a_recovery_nor_a_waste(tmp_path: pathlib.Path) -> None:
    waste = {"wasted_gpu_hours": {"percent_by_faults": 0.0}}
    over, never = ({"recovery_time": {"seconds": took, "episodes": [{"seconds": took}]}} for took in (3.0, None))
    steps, none = run_report.Run(furthest_step=9), run_report.Run(furthest_step=0)
    write(tmp_path, "a", 300, verdict=Verdict.FAIL, run=none, scores=waste)
    write(tmp_path, "b", 200, verdict=Verdict.FAIL, run=steps, scores=waste | never)
    write(tmp_path, "c", 100, verdict=Verdict.FAIL, run=steps, scores=waste | over)
    write(tmp_path, "d", 50, verdict=Verdict.FAIL, run=steps, scores=waste)
    found, _ = moments(tmp_path, Wanted())
    assert [(each.recovery_s, each.waste_percent, each.never) for each in found] == [
        *((None, None, True), (None, 0.0, True), (3.0, 0.0, False), (None, 0.0, False))
    ]


def test_a_run_is_found_by_name(reports: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(reports)
    assert store.find("last") == store.find("b") == reports / "b-1"
    assert store.find(str(reports / "a-1")) == reports / "a-1"
    write(reports, "a-10", 50)
    assert store.find("a-1") == reports / "a-1", "a whole id is no beginning of another"
    with pytest.raises(UsageError, match="fits 3 runs: a-2, a-1, a-10; the newest of these is a-2, and last is"):
        store.find("a")
    with pytest.raises(UsageError, match=r"unknown run 'z'.*newest are: b-1, c-1"):
        store.find("z")
    with pytest.raises(UsageError, match="none yet"):
        Store(reports / "nowhere").find("last")
    (write(reports, "resume-1", 2_000_000_000, verdict=Verdict.PASS) / "events").rmdir()
    assert store.find("resume-1") == reports / "resume-1"
    assert store.find("last") == reports / "b-1", "a sweep has only a report"


def test_foreign_and_hostile_folders_are_passed_over_with_a_note(reports: pathlib.Path) -> None:
    (reports / "notes").mkdir()
    (reports / "file").write_text("x")
    (reports / "elsewhere").symlink_to(reports / "a-1")
    write(reports, "evil\x1b[31m", verdict=Verdict.PASS)
    for name in ("pipe", "link", "planless"):
        (write(reports, name) / "plan.json").unlink()
    os.mkfifo(reports / "pipe" / "plan.json")
    (reports / "link" / "plan.json").symlink_to("/etc/passwd")
    (reports / "planless" / "plan.json").write_text("[]")
    store = Store(reports)
    assert sorted(ids(store)) == ["a-1", "a-2", "b-1", "c-1"]
    passed_over = [note.partition(":")[0] for note in store.notes]
    assert passed_over == ["elsewhere", "evil�[31m", "link", "pipe", "planless"]
    assert not any("\x1b" in note for note in store.notes)


@pytest.mark.parametrize("content", ["{", json.dumps({"schema": 9}), None, ""])
def test_a_run_with_a_damaged_report_counts_as_not_judged(reports: pathlib.Path, content: str | None) -> None:
    (reports / "a-1" / "report.json").unlink()
    if content is None:
        os.mkfifo(reports / "a-1" / "report.json")
    elif content:
        (reports / "a-1" / "report.json").write_text(content)
    else:
        (reports / "a-1" / "report.json").symlink_to(reports / "a-2" / "report.json")
    store = Store(reports)
    assert ids(store, verdict=Verdict.PASS) == ["b-1"]
    assert {run.run_id: run.verdict for run in store.runs()}["a-1"] is None
    assert [note.partition(":")[0] for note in store.notes] == ["a-1"]
    assert store.find("a-1") == reports / "a-1"


def test_a_run_of_a_broken_trainer_is_listed_and_is_no_evidence_of_any_other(reports: pathlib.Path) -> None:
    tagged = PLAN | {"scenario": {"name": "own", "tags": ["x", CONTROL]}}
    control = write(reports, "d-1", 500, plan=tagged, verdict=Verdict.FAIL, commit="aaaa1111")
    store = Store(reports)
    assert next(run for run in store.runs() if run.run_id == "d-1").is_control and store.find("d-1") == control
    assert [run.run_id for run in store.evidence()] == ["b-1", "a-2", "a-1"]
    assert [run.run_id for run in store.evidence(Wanted(commit="aaaa1111"))] == ["a-1"]


def test_last_is_the_newest_run_that_can_be_used(reports: pathlib.Path) -> None:
    def passed(folder: pathlib.Path) -> str:
        if folder.name != "a-1":
            raise UsageError(f"{folder.name} is no ground")
        return "read"

    passed_over: list[str] = []
    assert usable("last", reports, passed, passed_over) == (reports / "a-1", "read")
    assert passed_over == ["b-1 is no ground", "c-1 is no ground", "a-2 is no ground"]
    with pytest.raises(UsageError, match="b-1 is no ground"):
        usable("b-1", reports, passed, passed_over)
    (reports / "a-1" / "plan.json").unlink()
    with pytest.raises(UsageError, match="last: none of the newest 3 runs can be used; b-1"):
        usable("last", reports, passed, [])
    with pytest.raises(UsageError, match="unknown run 'last'"):
        usable("last", reports / "nowhere", passed, [])
