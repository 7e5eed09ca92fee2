"""Every verdict but a pass says what to do next: a command, or a line for the scenario."""

import re
from dataclasses import replace

import numpy as np
import pytest
import report_runs
from report_runs import with_run

from harness.evidence.ledger import Ledger
from harness.judge.assumption import FRESH, assumptions
from harness.judge.score import Scorecard
from harness.judge.verdict import Doubt, Finding, Verdict
from harness.report import html_page, junit, markdown, run_report
from harness.report.next_steps import SETTLES, STEPS_MAX, _takes_s, kept_as, next_steps
from harness.timeline.timeline import Beside


def invalid() -> Scorecard:
    return replace(report_runs.spot_evict(), verdict=Verdict.INVALID, findings=())


def failing() -> Scorecard:
    return replace(report_runs.spot_evict(), verdict=Verdict.FAIL, expectations=())


def test_each_doubt_has_what_would_settle_it_and_nothing_follows_a_command() -> None:
    assert SETTLES.keys() == set(Doubt)
    # People copy the line. How long it takes stands before it.
    told = [row.settles for each in assumptions().values() for row in each.spoils] + [*SETTLES.values()]
    runs = [each for each in told if "{run}" in each]
    assert runs and [each for each in runs if not re.fullmatch(r".*: \{run\}( --[a-z-]+)*", each)] == []


@pytest.mark.parametrize("doubt", ["", *Doubt])
def test_what_is_not_known_can_be_settled_by_a_command_or_a_line(doubt: str) -> None:
    finding = Finding(Verdict.INCONCLUSIVE, "told twice", "code", doubt)
    card = replace(report_runs.spot_evict(), verdict=Verdict.INCONCLUSIVE, findings=[finding, finding])
    (step,) = next_steps(card)
    assert any(sign in step for sign in ("chaos run ", ": ", "docs/", " or "))
    assert "{run}" not in step and ("chaos run" not in step or re.search(r"\(about [^)]*\): chaos run [^()]*$", step))


def test_a_fault_that_failed_before_it_acted_is_named_with_the_lines_that_say_why() -> None:
    """The log has its kind only from the moment it acts; the plan has it always."""
    run = invalid().evidence.run
    failed = replace(run.faults[0], kind="", error="OSError: no", injected=None, effects=())
    told = " ".join(next_steps(with_run(invalid(), faults=[failed])))
    assert "the lines fault.failed of" in told and f"chaos faults {run.plan['faults'][0]['fault']} " in told


def test_one_command_is_told_once_with_what_it_needs() -> None:
    settles = ["", "Run it again on a quiet host: {run}"]
    findings = [Finding(Verdict.INCONCLUSIVE, "told", str(at), settles=text) for at, text in enumerate(settles)]
    card = replace(report_runs.spot_evict(), verdict=Verdict.INCONCLUSIVE, findings=findings)
    (step,) = next_steps(card)
    assert step.startswith("Run it again on a quiet host (about ")


@pytest.mark.parametrize("code", ["loss_continuity.against", "result.ranks_agree"])
def test_what_only_a_fault_free_run_shows_is_not_run_again_without_one(code: str) -> None:
    """The doubt stays the same, however often the same plan is run."""
    finding = Finding(Verdict.INCONCLUSIVE, "no step was done again after a restart", code, Doubt.NOT_COMPARABLE)
    card = replace(report_runs.spot_evict(), verdict=Verdict.INCONCLUSIVE, findings=[finding])
    run = card.evidence.run
    alone = with_run(card, plan={**run.plan, "expect": {"loss_continuity": {"against": "itself"}}})
    day = with_run(alone, beside=Beside(job=run))
    day = replace(day, evidence=replace(day.evidence, fault_free=None))
    for each, said in ((alone, "against: itself"), (day, "fault_free: false")):
        (step,) = next_steps(each)
        assert step.startswith("Compare it with a fault-free run") and said in step
    (step,) = next_steps(card)
    assert "chaos run " in step, "here it had one, and was held against it"


def test_a_rehearsal_that_is_run_again_takes_as_long_as_its_whole_job_and_more() -> None:
    card = replace(report_runs.spot_evict(), scores={})
    run = card.evidence.run
    window = replace(run, begin=run.end - 10**9, beside=Beside(job=run))
    evidence = replace(card.evidence, run=window, fault_free=None)
    whole_s, first_s = (run.end - run.begin) / 1e9, (int(run.progress.end[0]) - run.begin) / 1e9
    takes_s = _takes_s(replace(card, evidence=evidence))
    assert takes_s == pytest.approx(2 * whole_s + 2 * first_s), "a fault-free run, the run, the drill, a second restart"
    longer = {**run.plan, "workload": {**run.plan["workload"], "steps": run.reached_step + 1000}}
    ended = replace(window, beside=Beside(job=replace(run, plan=longer)))
    step_s = np.median(np.diff(run.progress.end)) / 1e9
    assert _takes_s(replace(card, evidence=replace(evidence, run=ended))) - takes_s == pytest.approx(2000 * step_s)


def test_a_failure_names_the_phase_the_first_error_and_the_runbook() -> None:
    card = report_runs.never_recovered()
    run = card.evidence.run
    told = [replace(each, exit_code=1, exit_reason="error") for each in run.processes]
    told = [replace(p, exit_error=f"error {n}\x1b[31m", exited=run.begin + 1000 - n) for n, p in enumerate(told)]
    failed = with_run(replace(card, verdict=Verdict.FAIL), processes=told)
    ledger = Ledger(10**10, {"productive": 38 * 10**8}, {"recompute": 5 * 10**9, "idle": 12 * 10**8})
    failed.evidence.ledger = ledger
    phase, waste, error, runbook, last = next_steps(failed)
    assert phase.startswith("In the outage of ") and "this took longest: " in phase
    assert waste == "Of the 6.2 GPU-s that faults cost, this cost most: Recompute, 5.0 GPU-s"
    assert f"error {len(told) - 1}" in error and "\x1b" not in error
    assert runbook.endswith(f"chaos faults {run.faults[0].kind}")
    assert last.endswith(f"run the same again: chaos run --plan {card.run_id}")
    for reason in ("peer lost", "completed"):
        calm = with_run(failed, processes=[replace(each, exit_reason=reason) for each in told])
        assert not any("first error" in step for step in next_steps(calm))
    own = with_run(failed, plan={**run.plan, "run_id": card.run_id})
    assert next_steps(own)[-1].endswith(f"chaos run --plan {card.run_id}")
    assert kept_as(replace(card, run_id="a-copy")) == "a-copy", "a copied run goes by the name of its folder"


def test_a_fault_that_did_not_act_is_looked_up() -> None:
    [lost] = invalid().evidence.run.faults
    two = with_run(invalid(), faults=[replace(lost, id="x", kind="hang"), lost])
    finding = Finding(Verdict.INVALID, "fault fault1 did not act as planned: measured 0", "fault.as_planned")
    for card in (invalid(), two):  # the other one acted
        assert next_steps(replace(card, findings=(finding,))) == [
            "What fault1 reported: the lines fault.effect of events/harness.jsonl in the run's folder",
            f"What the fault needs, and which backends can do it here: chaos faults {lost.kind}",
            "What this machine lacks: chaos doctor",
        ]


def test_a_fault_that_was_measured_and_did_too_little_is_not_sought_in_the_machine() -> None:
    [lost] = invalid().evidence.run.faults
    weak = replace(lost, effects=({"measured": 0, "expected": 5, "unit": "bytes", "ok": False, "at": 0},))
    node = "{node}.{incarnation}".format(**lost.targets[0])
    for faults, doctor in (([weak], False), ([weak, replace(lost, id="x")], True)):
        told = next_steps(with_run(invalid(), faults=faults))
        assert sum(f"logs/{node}.log in the run's folder" in each for each in told) == 1
        assert any("chaos doctor" in each for each in told) == doctor


def test_a_phase_is_named_only_where_the_recovery_is_what_failed_and_a_stopped_run_is_run_again() -> None:
    assert not any("most: " in step or "longest: " in step for step in next_steps(failing()))
    (step,) = next_steps(with_run(invalid(), outcome="interrupted"))
    assert step.startswith("It was stopped before its end; run it again: chaos run ")
    heal, again = next_steps(with_run(invalid(), outcome=None))
    assert heal.endswith(": chaos heal") and again.startswith("Run it again: chaos run ")


def test_what_is_to_be_copied_into_a_shell_runs_nothing_else() -> None:
    card = report_runs.spot_evict()
    for evil in ("x; touch /tmp/y", "--reports=/etc", "/tmp/evil.yaml", "a\nNext: b", "", "k" * 900):
        faults = [replace(fault, kind=f"{evil}{n or ''}") for fault in card.evidence.run.faults for n in range(50)]
        bad = with_run(card, faults=faults, plan={"run_id": evil})
        for verdict in (Verdict.INVALID, Verdict.FAIL):
            told = next_steps(replace(bad, verdict=verdict, run_id=evil))
            assert told and len(told) <= STEPS_MAX and all("\n" not in step and len(step) < 300 for step in told)
            assert not evil or all(evil not in step for step in told)


def test_every_report_tells_the_next_steps_and_a_pass_has_none() -> None:
    passed = report_runs.spot_evict()
    assert next_steps(replace(passed, verdict=Verdict.PASS)) == []
    report = run_report.from_scorecard(replace(report_runs.never_recovered(), verdict=Verdict.FAIL))
    assert report.next_steps and run_report.Report.from_json(report.to_json()) == report
    for text in (html_page.render(report), markdown.render(report), junit.render(report)):
        assert "run the same again: chaos run " in text.replace("<code>", "")


@pytest.mark.parametrize(
    ("codes", "runbook", "state"),
    [
        (["restart.no-optimizer", "loss_continuity.mode"], False, True),
        (["saves.one_writer"], False, True),
        (["recovery_time.max"], True, False),
        (["recovery_time.max", "restart.no-optimizer"], True, True),
        (["files_beside_saves.max_missing"], False, False),
        (["files_beside_saves.max_missing", "code"], True, False),
    ],
)
def test_a_state_that_did_not_come_back_or_a_file_has_no_runbook_of_a_fault(
    codes: list[str], runbook: bool, state: bool
) -> None:
    told = next_steps(replace(failing(), findings=[Finding(Verdict.FAIL, "x", code) for code in codes]))
    assert any("chaos faults" in step for step in told) is runbook
    assert any("docs/resumes.md" in step for step in told) is state


def test_what_running_again_takes_is_a_range_with_the_restarts_after_the_run() -> None:
    doubt = Finding(Verdict.INCONCLUSIVE, "x", "code", "host-idle", FRESH)
    card = replace(report_runs.spot_evict(), verdict=Verdict.INCONCLUSIVE, findings=[doubt])
    restarts = {"last_checkpoint": {"seconds": 40.0}, "second_restart": {"seconds": 20.0}}
    (short,), (long,) = (next_steps(replace(card, scores=scores)) for scores in ({}, restarts))
    low, high = (int(each) for each in re.findall(r"about (\d+) to (\d+) s", short)[0])
    assert low < high and int(re.findall(r"about (\d+) to", long)[0]) == low + 60
