"""A healthy script is not accused: no steps told, steps counted anew in each life, own errors and lost peers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXPECT, Logs, expecting, fault_free_of, load, remove, steps, trainers, verdict
from simulator import History, Job, Outage, simulate

from harness.judge.facts.reported import APART, NO_STEPS
from harness.judge.score import Evidence, Scorecard, Verdict, judge
from harness.timeline import joined_steps

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]


def histories(outages: list[Outage] = KILL) -> tuple[History, Logs, History, Logs]:
    run, fault_free = simulate(JOB, outages, seed=5), simulate(JOB, (), seed=99)
    return run, expecting(run.logs(), EXPECT), fault_free, fault_free.logs()


def card(run: History, logs: Logs, fault_free: History, usual: Logs) -> Scorecard:
    return judge(Evidence(load(run, logs), load(fault_free, usual)), "observed")


def without_steps(logs: Logs) -> None:
    for lines in trainers(logs):
        remove(lines, lambda line: line.get("event") in ("step", "restored") or "checkpoint" in line.get("event", ""))


@pytest.mark.parametrize("outcome", ["completed", "aborted"])
def test_a_script_that_tells_no_step_is_not_observable(outcome: str) -> None:
    run, logs, fault_free, usual = histories()
    without_steps(logs)
    logs["harness"][-1]["outcome"] = outcome
    without_steps(usual)
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is Verdict.INCONCLUSIVE, judged.reasons
    assert NO_STEPS in judged.reasons
    assert not any("step 0" in text for text in judged.reasons)


def test_a_job_that_does_no_step_although_its_fault_free_run_does_has_failed() -> None:
    run, logs, fault_free, usual = histories()
    without_steps(logs)
    logs["harness"][-1]["outcome"] = "aborted"
    assert card(run, logs, fault_free, usual).verdict is Verdict.FAIL


def test_a_command_that_fails_has_failed_though_nothing_is_told() -> None:
    run, logs, fault_free, usual = histories()
    without_steps(logs), without_steps(usual)
    logs["harness"][-1] |= {"outcome": "failed", "reason": "the command on node0 ended with 1: ImportError"}
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is Verdict.FAIL and "ImportError" in judged.reasons[0]


def counted_anew(logs: Logs, **names: Any) -> None:
    """The last lives do not know which step they restored, and count from 1."""
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        restored = next(line for line in lines if line.get("event") == "restored")
        base = restored.pop("step")
        restored.pop("source", None)
        restored |= names
        for line in lines:
            if "step" in line:
                line["step"] -= base


def test_steps_that_nobody_can_join_accuse_nobody() -> None:
    run, logs, fault_free, usual = histories()
    counted_anew(logs)
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is Verdict.INCONCLUSIVE, judged.reasons
    assert APART in judged.reasons


@pytest.mark.parametrize("name", ["content", "path"])
def test_steps_are_joined_by_the_checkpoint_that_was_loaded(name: str) -> None:
    run, logs, fault_free, usual = histories()
    for lines in trainers(logs):
        for line in lines:
            if line.get("event") == "checkpoint.committed":
                line.pop("path", None)
                line[name] = f"checkpoint-{line['step']}"
    counted_anew(logs, **{"source" if name == "path" else name: "checkpoint-10"})
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is Verdict.PASS, judged.reasons
    assert judged.evidence.run.reached_step == 40 and not judged.evidence.run.apart
    assert {each.restored_step for each in judged.evidence.run.processes} >= {10}


def test_each_restore_of_one_process_counts_from_its_own_checkpoint() -> None:
    commits = [{"event": "checkpoint.committed", "step": step, "path": f"at-{step}", "at": step} for step in (20, 30)]
    restores = [{"event": "restored", "source": f"at-{step}", "at": 100 * step} for step in (20, 30)]
    ends = np.array([2100, 2200, 3100, 3200])
    saved: Any = SimpleNamespace(events=commits, steps={"end": np.array([1]), "step": np.array([30])})
    reborn: Any = SimpleNamespace(events=restores, steps={"end": ends, "step": np.array([1, 2, 1, 2])})
    joined_steps.join([saved, reborn])
    assert reborn.steps["step"].tolist() == [21, 22, 31, 32]


def test_a_path_that_is_used_again_is_the_checkpoint_that_was_there_then() -> None:
    run, logs, fault_free, usual = histories()
    for lines in (*trainers(logs), *trainers(usual)):
        for line in lines:
            if line.get("event") == "checkpoint.committed":
                line |= {"path": "ckpt.pt"}
    counted_anew(logs, source="ckpt.pt")
    assert card(run, logs, fault_free, usual).verdict is Verdict.PASS


def test_absolute_steps_after_a_restore_without_its_step_need_no_joining() -> None:
    run, logs, _, _ = histories()
    for rank in (0, 1):
        next(line for line in trainers(logs, rank=rank, life=-1)[0] if line.get("event") == "restored").pop("step")
    assert not load(run, logs).apart
    assert len(steps(trainers(logs, rank=0, life=-1)[0])) == 30


def test_an_unexplained_death_quotes_the_first_error_of_the_worker() -> None:
    run, logs, fault_free, usual = histories([Outage(17, "crash", victim=1)])
    dead = next(lines for lines in trainers(logs, rank=1) if not any(step["step"] == 40 for step in steps(lines)))
    stamp = {key: dead[-1][key] for key in ("wall_ns", "mono_ns")}
    remove(dead, lambda line: line.get("event") == "exiting")
    dead.append({"event": "exiting", "code": 1, "reason": "error", "error": "ValueError: bad\n batch"} | stamp)
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "its first error: ValueError: bad batch" in "\n".join(judged.reasons)


def test_a_step_that_gradient_scaling_skipped_is_no_flaw() -> None:
    run, logs, fault_free, usual = histories()
    for told in (logs, usual):
        for lines in trainers(told):
            for line in (*steps(lines, 5, 5), *steps(lines, 25, 26)):
                line |= {"loss": "inf", "applied": False}
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is Verdict.PASS, judged.reasons
    assert judged.scores["loss_continuity"]["nonfinite_steps"] == 0


@pytest.mark.parametrize(
    ("first", "expected"), [(1, Verdict.INCONCLUSIVE), (2, Verdict.INCONCLUSIVE), (11, Verdict.FAIL)]
)
def test_losses_that_differ_before_any_fault_accuse_nobody(first: int, expected: Verdict) -> None:
    run, logs, fault_free, usual = histories()
    for lines in trainers(logs):
        for line in steps(lines, first):
            if first < 3 or lines in [trainers(logs, rank=rank, life=-1)[0] for rank in (0, 1)]:
                line["loss"] += 0.01
    judged = card(run, logs, fault_free, usual)
    assert judged.verdict is expected, judged.reasons
    assert any("the trainer is not deterministic" in text for text in judged.reasons) is (first < 3)


def test_two_runs_without_a_fault_that_differ_accuse_nobody() -> None:
    fault_free = fault_free_of(JOB)

    def bend(logs: Logs) -> None:
        for lines in trainers(logs):
            for line in steps(lines, 14):
                line["loss"] += 1e-6

    judged = verdict(simulate(JOB, seed=3), bend, {"loss_continuity": {"mode": "exact"}}, fault_free)
    assert judged.verdict is Verdict.INCONCLUSIVE, judged.reasons
    assert "the trainer is not deterministic" in " ".join(judged.reasons)


def test_nor_do_losses_of_their_own_that_each_rank_tells() -> None:
    run, logs, fault_free, usual = histories()
    for told, shift in ((logs, 0.01), (usual, 0.0)):
        for lines in trainers(told):
            for line in steps(lines):
                line["loss"] += shift + lines[0]["rank"]
    assert card(run, logs, fault_free, usual).verdict is Verdict.INCONCLUSIVE
