"""Every verdict but a pass says what to do next: a command, or a line for the scenario."""

import re
from dataclasses import replace

import numpy as np
import pytest
import report_runs

from harness.evidence.ledger import Ledger
from harness.judge.assumption import FRESH, assumptions
from harness.judge.verdict import Doubt, Finding, Verdict
from harness.report import html_page, junit, markdown, run_report
from harness.report.next_steps import SETTLES, STEPS_MAX, _takes_s, kept_as, next_steps
from harness.timeline.timeline import Beside


def test_each_doubt_has_what_would_settle_it() -> None:
    assert SETTLES.keys() == set(Doubt)


def test_nothing_follows_a_command_that_settles_a_doubt() -> None:
    """People copy the line. How long it takes stands before it."""
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
    card = report_runs.spot_evict()
    run = card.evidence.run
    failed = replace(run.faults[0], kind="", error="OSError: no", injected=None, effects=())
    evidence = replace(card.evidence, run=replace(run, faults=[failed]))
    told = " ".join(next_steps(replace(card, verdict=Verdict.INVALID, findings=[], evidence=evidence)))
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
    run, itself = card.evidence.run, {"loss_continuity": {"against": "itself"}}
    alone = replace(card.evidence, run=replace(run, plan={**run.plan, "expect": itself}))
    (step,) = next_steps(replace(card, evidence=alone))
    assert step.startswith("Compare it with a fault-free run") and "against: itself" in step
    day = replace(alone, run=replace(alone.run, beside=Beside(job=run)), fault_free=None)
    (step,) = next_steps(replace(card, evidence=day))
    assert step.startswith("Compare it with a fault-free run") and "fault_free: false" in step
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
    told = [
        replace(
            each, exit_error=f"error {row}\x1b[31m", exited=run.begin + 1000 - row, exit_code=1, exit_reason="error"
        )
        for row, each in enumerate(run.processes)
    ]
    evidence = replace(card.evidence, run=replace(run, processes=told))
    evidence.ledger = Ledger(10**10, {"productive": 38 * 10**8}, {"recompute": 5 * 10**9, "idle": 12 * 10**8})
    phase, waste, error, runbook, last = next_steps(replace(card, verdict=Verdict.FAIL, evidence=evidence))
    assert phase.startswith("In the outage of ") and "this took longest: " in phase
    assert waste == "Of the 6.2 GPU-s that faults cost, this cost most: Recompute, 5.0 GPU-s"
    assert f"error {len(told) - 1}" in error and "\x1b" not in error
    assert runbook.endswith(f"chaos faults {run.faults[0].kind}")
    assert last.endswith(f"run the same again: chaos run --plan {card.run_id}")
    for reason in ("peer lost", "completed"):
        others = [replace(each, exit_reason=reason) for each in told]
        calm = replace(card.evidence, run=replace(run, processes=others))
        assert not any("first error" in step for step in next_steps(replace(card, verdict=Verdict.FAIL, evidence=calm)))
    own = replace(run, plan={**run.plan, "run_id": card.run_id})
    steps = next_steps(replace(card, verdict=Verdict.FAIL, evidence=replace(card.evidence, run=own)))
    assert steps[-1].endswith(f"chaos run --plan {card.run_id}")


def test_a_fault_that_did_not_act_is_looked_up() -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.INVALID)
    [lost] = card.evidence.run.faults
    two = replace(card.evidence, run=replace(card.evidence.run, faults=[replace(lost, id="x", kind="hang"), lost]))
    invalid = Finding(Verdict.INVALID, "fault fault1 did not act as planned: measured 0", "fault.as_planned")
    for evidence in (card.evidence, two):  # the other one acted
        assert next_steps(replace(card, evidence=evidence, findings=(invalid,))) == [
            "What fault1 reported: the lines fault.effect of events/harness.jsonl in the run's folder",
            f"What the fault needs, and which backends can do it here: chaos faults {lost.kind}",
            "What this machine lacks: chaos doctor",
        ]


def test_a_fault_that_was_measured_and_did_too_little_is_not_sought_in_the_machine() -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.INVALID, findings=())
    [lost] = card.evidence.run.faults
    weak = replace(lost, effects=({"measured": 0, "expected": 5, "unit": "bytes", "ok": False, "at": 0},))
    node = "{node}.{incarnation}".format(**lost.targets[0])
    for faults, doctor in (([weak], False), ([weak, replace(lost, id="x")], True)):
        told = next_steps(replace(card, evidence=replace(card.evidence, run=replace(card.evidence.run, faults=faults))))
        assert sum(f"logs/{node}.log in the run's folder" in each for each in told) == 1
        assert any("chaos doctor" in each for each in told) == doctor


def test_a_phase_is_named_only_where_the_recovery_is_what_failed_and_a_stopped_run_is_run_again() -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.FAIL, expectations=())
    assert not any("most: " in step or "longest: " in step for step in next_steps(card))
    run = replace(card.evidence.run, outcome="interrupted")
    stopped = replace(card, verdict=Verdict.INVALID, evidence=replace(card.evidence, run=run))
    (step,) = next_steps(stopped)
    assert step.startswith("It was stopped before its end; run it again: chaos run ")
    killed = replace(stopped, evidence=replace(card.evidence, run=replace(card.evidence.run, outcome=None)))
    heal, again = next_steps(killed)
    assert heal.endswith(": chaos heal") and again.startswith("Run it again: chaos run ")


def test_a_missing_file_has_no_runbook_of_a_fault() -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.FAIL, expectations=())
    missing, other = Finding(Verdict.FAIL, "x", "files_beside_saves.max_missing"), Finding(Verdict.FAIL, "y", "code")
    for findings, has_one in (([missing], False), ([missing, other], True)):
        assert any("chaos faults" in step for step in next_steps(replace(card, findings=findings))) is has_one


def test_what_is_to_be_copied_into_a_shell_runs_nothing_else() -> None:
    card = report_runs.spot_evict()
    for evil in ("x; touch /tmp/y", "--reports=/etc", "/tmp/evil.yaml", "a\nNext: b", "", "k" * 900):
        faults = [replace(fault, kind=f"{evil}{n or ''}") for fault in card.evidence.run.faults for n in range(50)]
        run = replace(card.evidence.run, faults=faults, plan={"run_id": evil})
        for verdict in (Verdict.INVALID, Verdict.FAIL):
            told = next_steps(replace(card, verdict=verdict, run_id=evil, evidence=replace(card.evidence, run=run)))
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
    ],
)
def test_a_state_that_did_not_come_back_has_no_runbook_of_a_killed_rank(
    codes: list[str], runbook: bool, state: bool
) -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.FAIL, expectations=())
    told = next_steps(replace(card, findings=[Finding(Verdict.FAIL, "x", code) for code in codes]))
    assert any("chaos faults" in step for step in told) is runbook
    assert any("docs/resumes.md" in step for step in told) is state


def test_what_running_again_takes_is_a_range_with_the_restarts_after_the_run() -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.INCONCLUSIVE)
    card = replace(card, findings=[Finding(Verdict.INCONCLUSIVE, "x", "code", "host-idle", FRESH)])
    (short,) = next_steps(replace(card, scores={}))
    (long,) = next_steps(
        replace(card, scores={"last_checkpoint": {"seconds": 40.0}, "second_restart": {"seconds": 20.0}})
    )
    low, high = (int(each) for each in re.findall(r"about (\d+) to (\d+) s", short)[0])
    assert low < high and int(re.findall(r"about (\d+) to", long)[0]) == low + 60


def test_a_copied_run_goes_by_the_name_of_its_folder() -> None:
    assert kept_as(replace(report_runs.spot_evict(), run_id="a-copy")) == "a-copy"
