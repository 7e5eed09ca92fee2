"""A healthy script is not accused: no steps told, steps counted anew in each life, own errors and lost peers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXPECT, SAVES, Bend, bending, bent, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, find, simulate, steps

from harness.evidence.reported import APART, NO_STEPS
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.timeline import joined_steps

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]


def judged(*bends: Bend, usual: Bend | None = None, outages: list[Outage] = KILL) -> Scorecard:
    """`usual`: what is bent in the fault-free run as well, and in the run before all else."""
    always = [usual] if usual else []
    return verdict(simulate(JOB, outages, seed=5), together(*always, *bends), EXPECT, bent(JOB, *always))


def without_steps(logs: Logs) -> None:
    logs.lose("step", "restored", *SAVES)


def ended(outcome: str, reason: str = "") -> Bend:
    return lambda logs: logs.harness[-1].update(outcome=outcome, reason=reason)


@pytest.mark.parametrize("outcome", ["completed", "aborted"])
def test_a_script_that_tells_no_step_is_not_observable(outcome: str) -> None:
    card = judged(ended(outcome), usual=without_steps)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert NO_STEPS in card.reasons
    assert not any("step 0" in text for text in card.reasons)


def test_a_job_that_does_no_step_or_whose_command_fails_has_failed() -> None:
    assert judged(without_steps, ended("aborted")).verdict is Verdict.FAIL
    card = judged(ended("failed", "the command on node0 ended with 1: ImportError"), usual=without_steps)
    assert card.verdict is Verdict.FAIL and "ImportError" in card.reasons[0]


@bending
def counted_anew(logs: Logs, /, **names: Any) -> None:
    """The last lives do not know which step they restored, and count from 1."""
    for lines in logs.last_lives():
        restored = find(lines, "restored")
        base = restored.pop("step")
        restored.pop("source", None)
        restored |= names
        for line in lines:
            line |= {"step": line["step"] - base} if "step" in line else {}


def test_steps_that_nobody_can_join_accuse_nobody() -> None:
    card = judged(counted_anew())
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert APART in card.reasons


@pytest.mark.parametrize("name", ["content", "path"])
def test_steps_are_joined_by_the_checkpoint_that_was_loaded(name: str) -> None:
    def named(logs: Logs) -> None:
        for line in logs.all("checkpoint.committed"):
            line.pop("path")
            line[name] = f"checkpoint-{line['step']}"

    card = judged(named, counted_anew(**{"source" if name == "path" else name: "checkpoint-10"}))
    assert card.verdict is Verdict.PASS, card.reasons
    assert card.evidence.run.reached_step == 40 and not card.evidence.run.apart
    assert {each.restored_step for each in card.evidence.run.processes} >= {10}


def test_each_restore_of_one_process_counts_from_its_own_checkpoint() -> None:
    commits = [{"event": "checkpoint.committed", "step": step, "path": f"at-{step}", "at": step} for step in (20, 30)]
    restores = [{"event": "restored", "source": f"at-{step}", "at": 100 * step} for step in (20, 30)]
    ends = np.array([2100, 2200, 3100, 3200])
    saved: Any = SimpleNamespace(events=commits, steps={"end": np.array([1]), "step": np.array([30])})
    reborn: Any = SimpleNamespace(events=restores, steps={"end": ends, "step": np.array([1, 2, 1, 2])})
    joined_steps.join([saved, reborn])
    assert reborn.steps["step"].tolist() == [21, 22, 31, 32]


def test_a_path_that_is_used_again_is_the_checkpoint_that_was_there_then() -> None:
    def to_one_path(logs: Logs) -> None:
        change(logs.all("checkpoint.committed"), path="ckpt.pt")

    assert judged(counted_anew(source="ckpt.pt"), usual=to_one_path).verdict is Verdict.PASS


def test_absolute_steps_after_a_restore_without_its_step_need_no_joining() -> None:
    def untold(logs: Logs) -> None:
        for lines in logs.last_lives():
            find(lines, "restored").pop("step")
            assert len(steps(lines)) == 30

    assert not bent(JOB, untold, outages=KILL, seed=5).apart


def test_an_unexplained_death_quotes_the_first_error_of_the_worker() -> None:
    def fails(logs: Logs) -> None:
        find(logs.trainers(rank=1, life=0)[0], "exiting").update(reason="error", error="ValueError: bad\n batch")

    card = judged(fails, outages=[Outage(17, "crash", victim=1)])
    assert_verdict(card, Verdict.INCONCLUSIVE, "its first error: ValueError: bad batch")


def test_a_step_that_gradient_scaling_skipped_is_no_flaw() -> None:
    card = judged(usual=lambda logs: change((*logs.steps(5, 5), *logs.steps(25, 26)), loss="inf", applied=False))
    assert card.verdict is Verdict.PASS, card.reasons
    assert card.scores["loss_continuity"]["nonfinite_steps"] == 0


@pytest.mark.parametrize(
    ("first", "expected"), [(1, Verdict.INCONCLUSIVE), (2, Verdict.INCONCLUSIVE), (11, Verdict.FAIL)]
)
def test_losses_that_differ_before_any_fault_accuse_nobody(first: int, expected: Verdict) -> None:
    def differ(logs: Logs) -> None:
        for lines in logs.trainers() if first < 3 else logs.last_lives():
            change(steps(lines, first), loss=lambda line: line["loss"] + 0.01)

    card = judged(differ)
    assert card.verdict is expected, card.reasons
    assert any("the trainer is not deterministic" in text for text in card.reasons) is (first < 3)


def test_two_runs_without_a_fault_that_differ_accuse_nobody() -> None:
    def bend(logs: Logs) -> None:
        change(logs.steps(14), loss=lambda line: line["loss"] + 1e-6)

    card = verdict(simulate(JOB, seed=3), bend, {"loss_continuity": {"mode": "exact"}})
    assert_verdict(card, Verdict.INCONCLUSIVE, "the trainer is not deterministic")


def test_nor_do_losses_of_their_own_that_each_rank_tells() -> None:
    def off(logs: Logs) -> None:
        change(logs.steps(), loss=lambda line: line["loss"] + 0.01)

    def own(logs: Logs) -> None:
        change(logs.steps(rank=1), loss=lambda line: line["loss"] + 1)

    assert judged(off, usual=own).verdict is Verdict.INCONCLUSIVE
