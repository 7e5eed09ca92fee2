"""The gate: its blindness check must fail, its answer is the worst one, its reports are whole."""

import json
import pathlib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest
from judging import verdict
from mutants.bent import BROKEN, JOB, KILL
from simulator import Logs, remove, simulate

from harness.campaign.checked_files import load_scenario
from harness.campaign.wings import Swept
from harness.errors import CannotRunError, ScenarioError
from harness.gate.suite_file import load_suite, parse_suite
from harness.gate.suite_run import load_entries
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
SUITE = "version: 1\nname: small\ntitle: A small gate\nscenarios: [rank-kill, {scenario: spot-evict, repeat: 3}]\n"


def test_all_passed_and_the_blindness_check_was_caught(rehearse: Any, good: Scorecard, tmp_path: pathlib.Path) -> None:
    (tmp_path / "own.yaml").write_text((SCENARIOS / "rank-kill.yaml").read_text())
    plans: list[Any] = []
    answer = rehearse(f"{SUITE}blindness_check: own\n", plans=plans)
    assert answer.verdict is Verdict.PASS
    assert [len(row.cards) for row in answer.rows] == [1, 3]
    assert plans[0].scenario.is_control and "gate" in plans[0].scenario.tags, "its run is marked"
    folder = rehearse.folder(answer)
    names = ["figures.json", "junit.xml", "report.html", "report.md", "suite.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    suite = json.loads((folder / "suite.json").read_text())
    assert suite["verdict"] == "pass" and suite["blindness_check"]["verdict"] == "fail"
    assert suite["scenarios"][1]["shares_of_bounds"]["recovery_time.max"]["runs"] == 3
    suites = ElementTree.parse(folder / "junit.xml").getroot().findall("testsuite")
    gate, *runs = suites
    assert [case.get("name") for case in gate.iter("testcase")] == ["blindness check", "rank-kill", "spot-evict"]
    assert gate.get("failures") == gate.get("errors") == "0"
    took = [float(case.get("time") or 0) for case in gate.iter("testcase")]
    assert took[0] == 0 < took[1] < took[2] and sum(took) == pytest.approx(float(gate.get("time") or 0), abs=0.01)
    assert [len(run.findall("testcase")) for run in runs] == [1 + len(good.expectations)] * 4
    assert len({run.get("name") for run in suites}) == 5 and "spot-evict, run 2 of 3" in {
        run.get("name") for run in runs
    }
    cases = [(case.get("classname"), case.get("name")) for run in suites for case in run.findall("testcase")]
    assert len(cases) == len(set(cases)), "repeats are suites of their own"


def test_a_blindness_check_that_does_not_fail_makes_the_answer_invalid(
    rehearse: Any, good: Scorecard, bad: Scorecard
) -> None:
    for check in (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID):
        answer = rehearse(SUITE, {"rank-kill": bad}, replace(good, verdict=check))
        assert answer.verdict is Verdict.INVALID
        assert "this gate proves nothing" in answer.reason and not answer.rows


@pytest.mark.parametrize("caught", [True, False], ids=["over its own", "over another one"])
def test_a_blindness_check_must_fail_over_its_own_bug(rehearse: Any, caught: bool) -> None:
    """The bundled one starts from scratch, and the suite says so."""
    asked = load_suite(SCENARIOS / "suites" / "pre-launch.yaml").blindness_reason
    suite = SUITE.replace("scenarios:", f"blindness_reason: {asked}\nscenarios:")
    others = (each.judge() for each in BROKEN if (each.name == "starts_from_scratch") is caught)
    card = next(card for card in others if card.verdict is Verdict.FAIL)
    answer = rehearse(suite, check=card)
    assert answer.verdict is (Verdict.PASS if caught else Verdict.INVALID)
    assert caught or "the blindness check failed for another reason than 'resumed from step 0'" in answer.reason


def test_a_blindness_check_that_fails_before_its_fault_strikes_says_nothing(rehearse: Any) -> None:
    def crashes(logs: Logs) -> None:
        remove(logs["harness"], lambda line: line.get("event", "").startswith("fault."))
        logs["harness"][-1].update(outcome="failed", reason="ModuleNotFoundError: No module named 'torch'")

    card = verdict(simulate(JOB, KILL, seed=5), crashes)
    assert card.verdict is Verdict.FAIL
    answer = rehearse(SUITE, check=card)
    assert answer.verdict is Verdict.INVALID and not answer.rows
    assert "the blindness check failed before fault1 struck it" in answer.reason and "No module named" in answer.reason
    gate, *_ = ElementTree.parse(rehearse.folder(answer) / "junit.xml").getroot()
    assert gate.get("errors") == "1"


def test_the_worst_scenario_decides_and_one_that_cannot_run_is_inconclusive(rehearse: Any, bad: Scorecard) -> None:
    answer = rehearse(SUITE, {"spot-evict": bad})
    assert answer.verdict is Verdict.FAIL
    assert answer.reason.startswith("1 of 2 scenarios: spot-evict; 3 of 3 runs failed")
    answer = rehearse(SUITE, {"rank-kill": CannotRunError("no such verb")})
    assert [row.result.verdict for row in answer.rows] == [Verdict.INCONCLUSIVE, Verdict.PASS]
    assert answer.verdict is Verdict.INCONCLUSIVE and "no such verb" in answer.reason


@pytest.mark.parametrize(
    ("found", "known", "wanted"),
    [
        (Verdict.PASS, "", Verdict.PASS),
        (Verdict.FAIL, "", Verdict.FAIL),
        (Verdict.INCONCLUSIVE, "", Verdict.INCONCLUSIVE),
        (Verdict.FAIL, "9 of 9 steps consumed", Verdict.PASS),
        (Verdict.FAIL, "another learning rate", Verdict.FAIL),
    ],
)
def test_a_sweep_over_the_saves_is_an_entry_like_others(
    rehearse: Any, monkeypatch: pytest.MonkeyPatch, found: Verdict, known: str, wanted: Verdict
) -> None:
    swept = Swept("resume-rank-kill-1", found, ["9 of 9 steps consumed other samples"])
    monkeypatch.setattr("harness.campaign.wings.sweep_of", lambda name: lambda *_: swept)
    entry = "scenario: rank-kill, matrix: resume"
    entry += f", known_failure: {{ticket: T-1, until: 2999-01-01, because: {known}}}" if known else ""
    suite = f"version: 1\nname: small\ntitle: A small gate\nscenarios: [rank-kill, {{{entry}}}]\n"
    answer = rehearse(suite)
    assert (answer.verdict, answer.rows[1].name) == (wanted, "matrix resume rank-kill")
    stored = json.loads((rehearse.folder(answer) / "suite.json").read_text())
    assert stored["scenarios"][1]["runs"] == [{"run_id": "resume-rank-kill-1", "verdict": found.value}]
    assert stored["scenarios"][1]["swept"] and not stored["scenarios"][0]["swept"]


def test_a_path_in_a_suite_counts_from_its_folder_wherever_the_gate_is_called(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.yaml").write_text((SCENARIOS / "rank-kill.yaml").read_text().replace("rank-kill", "mine"))
    path = tmp_path / "suite.yaml"
    path.write_text("version: 1\nname: a\ntitle: A\nscenarios: [mine.yaml, rank-kill]\n")
    assert [spec.name for _, spec in load_entries(path, load_suite(path), SCENARIOS)] == ["mine", "rank-kill"]


SUITE_OF_ONE = "version: 1\nname: own\ntitle: Own\nscenarios:\n  - scenario: rank-kill\n    overrides: "


@pytest.mark.parametrize(
    ("override", "column", "message"),
    [
        ("{workload: {steps: 0}}", 28, "workload.steps: 0 is not allowed"),
        ("{workload: {step: 5}}", 28, "workload.step: unknown key; did you mean steps?"),
        ("{workloads: {steps: 5}}", 17, "overrides.workloads: unknown key; did you mean workload?"),
        ("{faults: {other: {}}}", 26, "overrides.faults.other: unknown fault 'other'"),
        ("{faults: [1]}", 17, "overrides.faults: faults of a profile are keyed by fault id"),
        ("{faults: {kill: {when: {step: x}}}}", 40, "faults.0.when.step: 'x' is not allowed"),
        ("{expect: {recovery_time: {max: soon}}}", 42, "expect.recovery_time.max"),
        ("[1]", 5, "scenarios.0.overrides: a list is not allowed: it should be a mapping"),
        ("{}\n    repeat: 0", 0, ""),
    ],
)
def test_a_mistake_in_an_override_is_told_at_its_place_in_the_suite(override: str, column: int, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        (entry,) = parse_suite(SUITE_OF_ONE + override, "own.yaml").entries
        load_scenario(SCENARIOS / "rank-kill.yaml", None, entry.overrides)
    assert caught.value.problems[0].startswith(f"own.yaml:6:{column}: {message}" if column else "own.yaml:7:"), (
        caught.value
    )


def test_overrides_are_laid_over_a_scenario() -> None:
    over = {"workload": {"steps": 77}, "faults": {"kill": {"when": {"step": 5}}}}
    spec = load_scenario(SCENARIOS / "rank-kill.yaml", None, over)
    assert (spec.workload.steps, spec.workload.nodes, spec.faults[0].when.step) == (77, 2, 5)


def test_every_shipped_suite_can_be_read_and_the_gate_holds_every_class_of_failure() -> None:
    assert load_scenario(SCENARIOS / "suites" / "blindness-check.yaml").name == "blindness-check"
    kinds = dict[str, set[str]]()
    for path in {*(SCENARIOS / "suites").glob("*.yaml")} - {SCENARIOS / "suites" / "blindness-check.yaml"}:
        entries = load_suite(path).entries
        specs = [load_scenario(SCENARIOS / f"{each.scenario}.yaml", each.profile, each.overrides) for each in entries]
        kinds[path.stem] = {fault.kind for spec in specs for fault in spec.faults}
    classes = "preemption rank_kill node_loss nic_bandwidth checkpoint_torn_write checkpoint_corruption straggler hang"
    assert kinds["pre-launch"] >= {*classes.split(), "storage_error"}
