"""What ends a job early: a stop that is asked for, the cap on GPU time, and patience with one that stands still."""

import os
import pathlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import verdict
from mutants.bent import JOB, KILL
from simulator import simulate

from harness.backends.contract import load_backend
from harness.campaign import experiment
from harness.cli.shared_options import cap_of, labels_of
from harness.errors import ScenarioError, UsageError
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.plan.making import make_plan
from harness.plan.run_plan import Abort, Plan
from harness.run import stop as module
from harness.run.gpu_hours import GpuCap
from harness.run.job import Outcome, RunningJob
from harness.run.live_progress import LiveProgress
from harness.run.stop import StopRequest
from harness.spec.scenario import parse_scenario


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    request = StopRequest()
    request.on_signals()
    yield request
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupts(number: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_only_asks_while_somebody_attends_unless_it_comes_again_later(
    stop: StopRequest, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stop.attended():
        with stop.attended():  # it can be nested
            pass
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # as `timeout` does: once to the process, once to its group
        monkeypatch.setattr(module, "INSISTS_AFTER_S", -1.0)
        interrupts(number)
    assert stop.asked and stop.reason == "stopped by the user"
    interrupts(number)


S = 10**9


def planned(text: str) -> Plan:
    return make_plan(parse_scenario(f"version: 1\nname: small\ntitle: X\n{text}", "small.yaml"), 1, "local", "small-1")


CAPPED = planned("labels: {team: vision}\nlimits: {gpu_hours: 0.5}\n")


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 10**12)), max_size=50))
def test_a_cap_is_reached_exactly_when_the_hours_are_used(rounds: list[tuple[int, int]]) -> None:
    cap = GpuCap(0.01, "limits")
    for gpus, lasted_ns in rounds:
        cap.book(gpus, lasted_ns)
    assert cap.reached == (sum(gpus * ns for gpus, ns in rounds) >= 36 * 10**9)


def test_the_plan_holds_the_cap_and_the_labels_and_reads_them_back() -> None:
    plan = CAPPED.labelled({"project": "x"})
    again = Plan.from_json(plan.to_json())
    assert again.limits.gpu_hours == 0.5 and again.scenario.labels == {"team": "vision", "project": "x"}
    assert again.scenario.file_digest is not None and len(again.scenario.file_digest) == 64


def test_a_capped_job_ends_as_one_that_was_interrupted() -> None:
    job = RunningJob.__new__(RunningJob)
    job._caps, job._booked_ns = [GpuCap(1.0, "limits"), GpuCap(0.001, "--max-gpu-hours")], 0
    job.plan = CAPPED
    job.cluster = type("Two", (), {"nodes": [type("Node", (), {"alive": True})] * 2})()
    assert job._capped(10**9) is None
    outcome = job._capped(2 * 10**9)
    assert outcome == Outcome(
        "capped", "the cap of 0.001 GPU-hours (--max-gpu-hours) was reached, so the job was stopped"
    )
    assert outcome.told == "interrupted"


def test_no_further_run_begins_once_the_cap_is_reached(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card: Scorecard = replace(verdict(simulate(JOB, KILL, seed=5)), verdict=Verdict.INCONCLUSIVE)
    stop = StopRequest()
    stop.cap = GpuCap(1.0, "--max-gpu-hours")
    began = []

    def pretend(plan: Plan, *_: object) -> tuple[pathlib.Path, bool]:
        began.append(plan)
        assert stop.cap
        stop.cap.book(1, 3600 * 10**9)
        return tmp_path, False

    monkeypatch.setattr(experiment, "run_experiment", pretend)
    monkeypatch.setattr(experiment, "load_evidence", lambda _: card.evidence)
    monkeypatch.setattr(experiment, "judge", lambda *_: card)
    monkeypatch.setattr(experiment, "write_reports", lambda *_: {})
    plan = CAPPED
    cards, interrupted = experiment.run_repeatedly([plan] * 3, tmp_path, load_backend("local"), stop=stop)
    assert len(began) == len(cards) == 1 and not interrupted


def test_a_cap_is_above_zero_and_a_label_is_a_key_and_a_value() -> None:
    for hours in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="--max-gpu-hours"):
            cap_of(hours)
    assert labels_of(["team=vision", "project=a=b"]) == {"team": "vision", "project": "a=b"}
    for text in ("team", "=x", "team=", "te am=x", "team=a\nb"):
        with pytest.raises(UsageError, match="--label"):
            labels_of([text])


def test_a_limit_on_idle_time_is_the_scenarios_own_or_one_that_its_start_widens() -> None:
    abort = planned("").abort
    limits = abort.if_not_started_for_ns, abort.idle_ns_max(5 * S), abort.idle_ns_max(50 * S)
    assert limits == (600 * S, 60 * S, 150 * S)
    assert Abort.model_validate(abort.model_dump(mode="json")) == abort
    own = planned("abort: {if_no_step_for: 60s, if_not_started_for: 20m}").abort
    assert (own.if_not_started_for_ns, own.idle_ns_max(50 * S)) == (1200 * S, 60 * S)


def test_a_trigger_beyond_the_last_step_of_the_fault_free_run_is_an_error() -> None:
    fault = "{id: k, fault: rank_kill, when: {step: 90}, target: {rank: 0}}"
    plan = planned(f"workload: {{trainer: {{command: [a]}}}}\nfaults: [{fault}]")
    assert plan.workload.steps is None and plan.with_steps(91).workload.steps == 91
    with pytest.raises(ScenarioError, match="fault k: step 90 is never reached; the fault-free run did 90 steps"):
        plan.with_steps(90)


def test_who_ended_badly_is_named_when_the_job_is_given_up(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node1.1.log").write_text("step 7\nValueError: no such shard\n")
    progress = LiveProgress(last_step_ns=10)
    nodes = [SimpleNamespace(name="node1", incarnation=1)]
    job: Any = SimpleNamespace(progress=progress, run_dir=tmp_path, cluster=SimpleNamespace(nodes=nodes))

    def tell(code: int, now_ns: int, node: str = "node1", incarnation: int = 1) -> str:
        header = {"role": "agent", "node": node, "incarnation": incarnation}
        progress.absorb(header, {"event": "worker.exit", "code": code}, now_ns)
        return RunningJob._failed_worker(job)

    assert tell(0, 11) == ""
    said = "; before that a worker on node1 ended with 1: ValueError: no such shard (logs/node1.1.log)"
    assert tell(1, 12) == said
    assert tell(-15, 13) == said, "the launcher ends the others because of the first one"
    progress.last_step_ns = 20
    assert RunningJob._failed_worker(job) == "", "the job went on after it"
    assert tell(3, 21, "../../etc/passwd") == tell(3, 22, "node1", 2) == "", "a launcher may say anything"


def test_who_did_not_end_with_the_others_is_named_when_the_job_is_given_up() -> None:
    progress = LiveProgress()

    def tell(role: str, node: str, event: dict[str, object]) -> str:
        rank = int(node.removeprefix("node"))
        header = {"role": role, "node": node, "incarnation": 1, "pid": 5, "rank": rank, "world_size": 3}
        progress.absorb(header, event, 1)
        return progress.stuck()

    def ended(rank: int, pid: int = 5) -> str:
        return tell("agent", f"node{rank}", {"event": "worker.exit", "rank": rank, "pid": pid, "code": 0})

    for rank in range(3):
        tell("trainer", f"node{rank}", {"event": "step", "step": 120})
    stuck = "stuck in exiting after step 120"
    assert tell("trainer", "node0", {"event": "exiting"}) == stuck, "nobody saw a worker end"
    assert ended(0) == f"{stuck}; rank 1 on node1 and 1 more did not end as the others did"
    assert ended(2, pid=4) == ended(0), "that was an earlier process of this rank"
    assert ended(2) == f"{stuck}; rank 1 on node1 did not end as the others did"
    assert ended(1) == stuck
