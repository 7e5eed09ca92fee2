"""What a judged run comes to for a search, by its event log; and one real run."""

import json
import pathlib

import pytest
from judging import acted_as, verdict
from simulator import Job, Logs, Outage, simulate
from typer.testing import CliRunner

from harness.cli.main import make_app
from harness.errors import CannotRunError
from harness.fuzz.outcome import Outcome
from harness.fuzz.real_runs import outcome_of
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=40, every=10)
SCENARIO = """\
version: 1
name: small
title: Small
workload: {nodes: 1, ranks_per_node: 2, steps: 80, checkpoint: {every_steps: 20}, restore_drill: false,
  args: [--layers, "1", --width, "32", --compute-s, "0"]}
abort: {if_no_step_for: 2m, wall_clock: 5m}
"""


def outcome(*outages: Outage, bend: object = None) -> Outcome:
    return outcome_of(verdict(simulate(JOB, outages, seed=5), bend or (lambda logs: None), {}))  # type: ignore[arg-type]


def test_a_strike_has_the_phase_in_which_the_job_was() -> None:
    found = outcome(Outage(17, "rank", victim=1))
    assert (found.verdict, found.codes) == (Verdict.PASS, ())
    assert [each.phase for each in found.strikes] == ["running"]
    twice = outcome(Outage(17, "node", victim=1, again="restore"))
    assert [each.phase for each in twice.strikes] == ["running", "restore"]
    assert {each.kind for each in twice.strikes} and twice.cells == {(s.kind, s.phase) for s in twice.strikes}


def test_a_failure_is_known_by_its_codes() -> None:
    def other_losses(logs: Logs) -> None:
        for lines in logs.last_lives():
            for line in lines:
                line.update({"step": line["step"] + 1} if line.get("event") == "restored" else {})

    found = outcome(Outage(17, "rank", victim=1), bend=other_losses)
    assert found.verdict is Verdict.FAIL and found.codes and found.reason
    assert found.is_same_failure(frozenset(found.codes)) and not found.is_same_failure(frozenset({"another"}))


def test_a_fault_without_its_effect_is_no_strike() -> None:
    found = outcome(Outage(17, "rank"), bend=lambda logs: logs.told("fault.effect").update(measured=0, ok=False))
    assert found.verdict is Verdict.INVALID and found.strikes == () and found.unacted


def test_a_fault_that_outlasts_the_last_step_accuses_nobody() -> None:
    def failed(logs: Logs) -> None:
        logs.told("run.finished").update(outcome="failed", reason="no space left")

    def too_late(logs: Logs) -> None:
        failed(logs)
        acted_as(logs, "storage_full", kills=False, stops=True, spoils=True)

    assert outcome(Outage(17, "rank"), bend=failed).verdict is Verdict.FAIL
    late = outcome(Outage(17, "rank"), bend=too_late)
    assert late.verdict is Verdict.INCONCLUSIVE and late.reason.startswith("fault fault1 still acted")


def test_a_job_that_fails_without_a_fault_is_no_finding() -> None:
    with pytest.raises(CannotRunError, match="does not complete without a fault"):
        outcome()


@pytest.mark.slow
def test_a_search_runs_real_jobs_and_goes_on(tmp_path: pathlib.Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    words = ["fuzz", str(tmp_path / "small.yaml"), "--runs", "1", "--faults", "1", "--reports", str(tmp_path), "--json"]
    for runs in (1, 2):
        result = CliRunner().invoke(make_app(), words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        told = json.loads(result.stdout)
        assert sum(told["runs"].values()) == runs
    assert result.exit_code in (0, 3) and told["found"] == []
    assert told["covered"] or set(told["runs"]) <= {"invalid", "inconclusive"}
