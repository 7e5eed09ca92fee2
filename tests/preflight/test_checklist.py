"""The checklist before a launch: only stored evidence answers, the newest one, and a gate of this commit alone is green."""

import json
import os
import pathlib
import xml.etree.ElementTree as ElementTree
from typing import Any

import command_line
import pytest
from judging import edit, stored

from harness.campaign.wings import Item
from harness.matrix import sweep
from harness.matrix.moments import Moment
from harness.matrix.resume_comparison import Finding, Kind
from harness.matrix.sweep import Sweep, Tried
from harness.plan.run_plan import CONTROL
from harness.preflight.checklist import Answer, checklist
from harness.preflight.checks.contract import check_names

HERE, ELSEWHERE = "a" * 40, "b" * 40
SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "reports" / "sample" / "report.json"


@pytest.fixture(autouse=True)
def _commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.trainers.shared.checkout.commit_of", lambda here: HERE)


def asked(reports: pathlib.Path) -> dict[Item, Answer]:
    return {each.item: each for each in checklist(reports, reports)[1]}


def write(reports: pathlib.Path, path: str, values: Any, at_s: float = 1e9) -> None:
    file = reports / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    os.utime(file, (at_s, at_s))


def run(
    reports: pathlib.Path,
    name: str,
    commit: str = HERE,
    begun_at: str = "2020-11-24T00:00:00+00:00",
    trainer: Any = "reference",
    **more: Any,
) -> None:
    values = json.loads(SAMPLE.read_text()) | {"run_id": name, "commit": commit, "begun_at": begun_at} | more
    write(reports, f"{name}/report.json", values)
    plan = {"scenario": {"name": "x"}, "backend": "local", "seed": 1, "workload": {"trainer": trainer}}
    write(reports, f"{name}/plan.json", plan)


def gate(
    reports: pathlib.Path, name: str, verdict: str = "pass", at_s: float = 1e9, commit: str = HERE, **part: Any
) -> None:
    run(reports, f"{name}-run", commit)
    row: dict[str, Any] = {"scenario": "x", "title": "x", "verdict": verdict, "reasons": ["why"]}
    row |= {"runs": [{"run_id": f"{name}-run", "verdict": verdict}]}
    of = {"in_suite": 1, "selected": 1, "tag": "", "backend": "local", "seed": 1, "digest": "d", "names": ["x"]} | part
    values = {"schema": 1, "suite": "pre-launch", "title": "t", "run_id": name, "verdict": verdict, "reason": "because"}
    write(reports, f"{name}/suite.json", values | {"blindness_check": row, "scenarios": [row], "part": of}, at_s)


def day(
    reports: pathlib.Path,
    name: str,
    verdict: str,
    at_s: float = 1e9,
    alerts: str | None = "pass",
    runbook: str | None = "https://x",
) -> None:
    acts: list[dict[str, Any]] = [{"name": "rank lost", "verdict": verdict, "reasons": [], "runbook": runbook}]
    values = {"verdict": verdict, "reasons": ["the day's reason"], "rehearsals": acts, "sides": {"alerts": alerts}}
    write(reports, f"{name}/gameday-report.json", values)
    write(reports, f"{name}/gameday.json", {}, at_s)
    write(reports, f"{name}/plan.json", {"workload": {"trainer": "reference"}})
    write(reports, f"{name}/rehearsals/rank lost/report.json", {"commit": HERE})


def swept(reports: pathlib.Path, name: str, wrong: str = "", complete: bool = True, at_s: float = 1e9) -> None:
    found = (Finding(Kind.SAMPLES, wrong),) if wrong else ()
    tried = [Tried(Moment("the first save", 20, 20), "20", found, 5, 1.0, {Kind.SAMPLES.name: 5})]
    write(reports, f"{name}/plan.json", {}, at_s)
    code = {"trainer_commit": HERE, "trainer_diff": "clean"}
    sweep.store(Sweep(name, "mine", "0", code, tried=tried, complete=complete), reports / name)


def preflight(reports: pathlib.Path, name: str, **more: Any) -> None:
    checks = [{"name": each, "title": each, "verdict": "pass", "judged": {"words": "well"}} for each in check_names()]
    values = {"schema": 1, "run_id": name, "scenario": "x", "backend": "local", "commit": HERE, "checks": checks}
    write(reports, f"{name}/preflight.json", values | more)
    asked = {"plan": {"workload": {"trainer": "reference"}}, "checks": check_names()}
    write(reports, f"{name}/asked.json", asked)
    (reports / name / "events").mkdir(exist_ok=True)


def test_evidence_answers_each_item_and_without_it_nothing_is_answered(tmp_path: pathlib.Path) -> None:
    assert {each.answer for each in asked(tmp_path).values()} == {"not tried"}
    assert "chaos gate SUITE" in asked(tmp_path)[Item.GATE].why
    preflight(tmp_path, "preflight-1", faults=True)
    assert asked(tmp_path)[Item.CLUSTER].answer == "not tried"
    run(tmp_path, "canary", faults=[])
    gate(tmp_path, "gate-1")
    day(tmp_path, "day-1", "pass")
    swept(tmp_path, "sweep-1")
    preflight(tmp_path, "preflight-2")
    found = asked(tmp_path)
    assert {item: each.answer for item, each in found.items()} == dict.fromkeys(Item, "yes")
    assert all(each.same_commit and each.proof and each.proof.folder.is_dir() for each in found.values())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"commit": ELSEWHERE}, "green, but on bbbbbbbb; here is aaaaaaaa"),
        ({"commit": f"{HERE}-dirty"}, "green, but on aaaaaaaa*"),
        ({"commit": ""}, "green, but on a commit that is not told"),
        ({"verdict": "fail"}, "fail: pre-launch on local: because"),
        ({"verdict": "inconclusive"}, "inconclusive: "),
    ],
)
def test_a_gate_that_is_not_green_on_this_commit_is_no(tmp_path: pathlib.Path, more: dict[str, Any], told: str) -> None:
    gate(tmp_path, "gate-1", **more)
    answer = asked(tmp_path)[Item.GATE]
    assert answer.answer == "no" and answer.why.startswith(told)


def test_changed_files_are_no_commit_nor_is_that_of_a_gate_of_which_a_run_is_gone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate(tmp_path, "gate-1")
    values = json.loads((tmp_path / "gate-1" / "suite.json").read_text())
    values["scenarios"][0]["runs"].append({"run_id": "gone", "verdict": "pass"})
    write(tmp_path, "gate-1/suite.json", values)
    assert asked(tmp_path)[Item.GATE].why.startswith("green, but on a commit that is not told")
    monkeypatch.setattr("harness.trainers.shared.checkout.commit_of", lambda here: f"{HERE}-dirty")
    gate(tmp_path, "gate-1", commit=f"{HERE}-dirty")
    assert asked(tmp_path)[Item.GATE].answer == "no"


def test_the_newest_answers(tmp_path: pathlib.Path) -> None:
    gate(tmp_path, "gate-old", at_s=1.75e9)
    gate(tmp_path, "gate-new", "fail", at_s=1.76e9)
    gate(tmp_path, "gate-part", at_s=1.77e9, tag="quick")  # a part of a suite is no gate
    day(tmp_path, "day-old", "fail", at_s=1.75e9)
    day(tmp_path, "day-new", "pass", at_s=1.76e9, alerts=None, runbook=None)
    swept(tmp_path, "sweep-1", at_s=1.77e9)
    swept(tmp_path, "sweep-2", "other samples", at_s=1.78e9)
    swept(tmp_path, "sweep-3", complete=False, at_s=1.79e9)
    gate(tmp_path, "gate-of-the-future", at_s=9e9)
    found = asked(tmp_path)
    told = {item: (each.answer, each.proof.folder.name) for item, each in found.items() if each.proof}
    assert told[Item.GATE] == ("no", "gate-new")
    assert told[Item.GAME_DAY] == ("yes", "day-new")
    assert told[Item.ALERTS] == ("yes", "day-old")  # the newest that was told to look at alerts
    assert told[Item.RUNBOOKS] == ("no", "day-new") and "rank lost" in found[Item.RUNBOOKS].why
    assert told[Item.RESUMES] == ("no", "sweep-2")


def test_runs_answer_what_they_judged(tmp_path: pathlib.Path) -> None:
    run(tmp_path, "with-a-fault")
    found = asked(tmp_path)
    assert [each.answer for each in found.values()] == ["yes", "yes", "yes", *["not tried"] * 5]
    assert found[Item.DRY_RUN].why == "the fault-free run of this one"
    run(tmp_path, "with-a-fault", not_judged=["last checkpoint", "samples of each rank"], run={"fault_free": False})
    assert {each.answer for each in asked(tmp_path).values()} == {"not tried"}
    # Its drill may have restored the last save, and its second restart have done other steps.
    run(tmp_path, "with-a-fault", verdict="fail", reasons=["second restart: at step 101 its loss is another"])
    found = asked(tmp_path)
    assert (found[Item.RESUMES].answer, found[Item.DRY_RUN].answer) == ("no", "not tried")
    assert "second restart: at step 101" in found[Item.RESUMES].why
    later = "2020-11-25T00:00:00+00:00"
    short = {"rank_samples_min": 3, "rank_samples_max": 9, "batches_short": 2}
    run(tmp_path, "canary", begun_at=later, faults=[], verdict="fail", metrics=short)
    found = asked(tmp_path)
    assert (found[Item.DATA].answer, found[Item.DRY_RUN].answer) == ("no", "no")
    assert "2 batches were short" in found[Item.DATA].why
    told: dict[str, Any] = {"scores": {"last_checkpoint": {"outcome": "restored"}}, "not_judged": []}
    run(tmp_path, "mine", begun_at=later.replace("25", "26"), **told, verdict="pass")
    run(tmp_path, "broken", begun_at=later.replace("25", "27"), **told, verdict="fail")
    assert asked(tmp_path)[Item.RESUMES].answer == "no"
    edit(tmp_path / "broken" / "plan.json", lambda plan: plan.update(scenario={"name": "own", "tags": [CONTROL]}))
    answer = asked(tmp_path)[Item.RESUMES]
    assert answer.answer == "yes" and answer.proof and answer.proof.folder.name == "mine", "a gate's blindness check"


@pytest.mark.parametrize(
    ("most", "faults", "answer"),
    [(1600, [], "yes"), (1640, [], "yes"), (2528, [], "no"), (2528, None, "not tried")],
    ids=["even", "short-last-batch", "uneven", "uneven-with-a-fault"],
)
def test_ranks_with_far_fewer_samples_are_not_balanced_though_the_run_passed(
    tmp_path: pathlib.Path, most: int, faults: list[Any] | None, answer: str
) -> None:
    more: dict[str, Any] = {} if faults is None else {"faults": faults}
    run(tmp_path, "canary", metrics={"rank_samples_min": 1600, "rank_samples_max": most, "batches_short": 0}, **more)
    found = asked(tmp_path)[Item.DATA]
    assert found.answer == answer and ("37 % fewer" in found.why) == (answer == "no")


def test_the_checklist_says_which_trainers_its_evidence_is_of(tmp_path: pathlib.Path) -> None:
    def said() -> str:
        return command_line.chaos("preflight", "--checklist", "--reports", str(tmp_path)).output

    run(tmp_path, "canary", faults=[])
    gate(tmp_path, "gate-1")
    day(tmp_path, "day-1", "pass")
    preflight(tmp_path, "preflight-1")
    assert said().startswith("The evidence is of the reference trainer.\n")
    run(tmp_path, "own", begun_at="2020-11-25T00:00:00+00:00", trainer={"torchrun": "train.py"}, faults=[])
    assert said().startswith("The evidence is of different trainers:\n  torchrun train.py: checkpoints resume, data")
    assert "  the reference trainer: monitoring delivers alerts, gate green on this commit, game day held" in said()


@pytest.mark.parametrize("name", ["suite.json", "gameday-report.json", "resume.json", "report.json"])
def test_what_cannot_be_read_is_no_evidence_nor_what_its_log_denies(tmp_path: pathlib.Path, name: str) -> None:
    for content in (b"", b"\xff" * 100, b"[" * 10**5, b'{"verdict": "pass"}'):
        write(tmp_path, "x/plan.json", {})
        write(tmp_path, "x/gameday.json", {})
        (tmp_path / "x" / name).write_bytes(content)
        assert {each.answer for each in asked(tmp_path).values()} == {"not tried"}
    if name == "report.json":
        stored(tmp_path / "run-1", begun_at="2020-11-24T00:00:00+00:00")
        edit(tmp_path / "run-1" / name, lambda report: report.update(faults=[]))
        assert asked(tmp_path)[Item.DRY_RUN].answer == "not tried", "its log has a fault"


def test_scripts_read_exit_codes_json_and_junit(tmp_path: pathlib.Path) -> None:
    def chaos(*words: str, code: int) -> str:
        result = command_line.chaos("preflight", "--checklist", "--reports", str(tmp_path), *words)
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    chaos(code=3)
    gate(tmp_path, "gate-1", commit=ELSEWHERE)
    file = tmp_path / "junit.xml"
    told = json.loads(chaos("--json", "--junit", str(file), code=1))
    assert (told["schema"], told["verdict"], told["commit"]) == (1, "fail", HERE)
    (item,) = (each for each in told["items"] if each["item"] == Item.GATE)
    assert item["age_s"] > 0
    assert (item["answer"], item["evidence"]) == ("no", str(tmp_path / "gate-1"))
    assert (item["commits"], item["same_commit"]) == ([ELSEWHERE], False)
    (suite,) = ElementTree.parse(file).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("1", "4")
    run(tmp_path, "canary", faults=[])
    gate(tmp_path, "gate-2", at_s=1.2e9)
    day(tmp_path, "day-1", "pass")
    preflight(tmp_path, "preflight-1")
    assert "yes" in chaos(code=0)
