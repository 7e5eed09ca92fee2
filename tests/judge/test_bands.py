"""Which fault-free runs may be compared with, and that every rank is."""

from collections.abc import Callable
from typing import Any

import pytest
from judging import ENVELOPE, EXPECT, Bend, bending, bent, expecting, load, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, simulate

from harness.evidence.logs import Evidence
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]


@bending
def loss(logs: Logs, change: Callable[[dict[str, Any]], object], rank: int | None = None, first: int = 1) -> None:
    for line in logs.steps(first, rank=rank):
        line["loss"] = change(line)


def judged(bend: Bend, fault_free: Timeline | None = None, expect: Any = None, **more: Any) -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), bend, expect, fault_free, **more)


def as_it_is(logs: Logs) -> None:
    """Nothing is bent."""


@pytest.mark.parametrize(
    ("bend", "outages", "why"),
    [
        (lambda logs: logs.harness[-1].update(outcome="failed"), [], "did not finish"),
        (lambda logs: logs.lose("step", step=range(31, 1000)), [], "did not finish"),
        (as_it_is, [Outage(17, "crash")], "restarted"),
        (as_it_is, [Outage(17, "rollback")], "restarted"),
        (as_it_is, KILL, "a fault struck it"),
        (loss(lambda line: "nan", first=12), [], "not a number"),
        (loss(lambda line: "nan" if line["step"] in (7, 9, 11) else line["loss"]), [], "not a number"),
    ],
)
def test_no_band_is_drawn_from_a_run_that_was_disturbed(bend: Bend, outages: list[Outage], why: str) -> None:
    other = bent(JOB, bend, outages=outages, seed=3)
    run = load(simulate(JOB, KILL, seed=5))
    assert why in Evidence(run).flaw(other)
    card = verdict(simulate(JOB, KILL, seed=5), expect=ENVELOPE, calibration=[other])
    assert card.verdict is Verdict.INCONCLUSIVE and why in card.reasons[0]


@pytest.mark.parametrize(
    "bend",
    [
        as_it_is,
        loss(lambda line: None if line["step"] == 20 else line["loss"]),
        loss(lambda line: None if line["step"] % 5 else line["loss"]),
        loss(lambda line: None, rank=1),
    ],
)
def test_a_hole_or_a_sparse_loss_is_no_flaw(bend: Bend) -> None:
    assert Evidence(load(simulate(JOB, KILL, seed=5))).flaw(bent(JOB, bend)) == ""


def test_a_hole_in_a_calibration_run_does_not_open_the_band() -> None:
    hole = bent(JOB, loss(lambda line: None if line["step"] == 12 else line["loss"] * (1 + 1e-9)), seed=3)
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), expect=ENVELOPE, calibration=[hole]), Verdict.PASS)
    astray = loss(lambda line: line["loss"] * 1.3, first=20)
    others = [hole, bent(JOB, seed=4), bent(JOB, seed=5)]
    assert verdict(simulate(JOB, KILL, seed=6), astray, ENVELOPE, calibration=others).verdict is Verdict.FAIL


def test_a_hole_in_the_fault_free_run_hides_nothing_and_accuses_nobody() -> None:
    fault_free = bent(JOB, loss(lambda line: None if line["step"] == 12 else line["loss"]))
    assert judged(as_it_is, fault_free).verdict is Verdict.PASS
    off = loss(lambda line: line["loss"] + 1e-12, first=25)
    assert judged(off, fault_free).verdict is Verdict.FAIL


def own(line: dict[str, Any]) -> float:
    return float(line["loss"]) + 0.01 * (1 + line["step"] % 3)


def test_every_rank_that_tells_its_own_loss_is_compared() -> None:
    local = loss(own, rank=1)
    fault_free = bent(JOB, local)
    assert judged(local, fault_free).verdict is Verdict.PASS

    def stale(logs: Logs) -> None:
        for line in logs.steps(15, rank=1, life=-1):
            line["loss"] *= 1.01

    card = judged(together(local, stale), fault_free)
    assert card.verdict is Verdict.FAIL
    assert "at step 15 the loss of rank 1 differs from the same rank of the fault-free run" in card.reasons[0]
    assert any("disagree on the loss" in reason for reason in judged(stale).reasons), "without a fault they agree"
    repeats = [bent(JOB, local, seed=seed) for seed in (1, 2, 3)]
    for bend, found in ((local, Verdict.PASS), (together(local, stale), Verdict.FAIL)):
        assert judged(bend, fault_free, ENVELOPE, calibration=repeats).verdict is found


def test_without_a_fault_free_run_the_run_shows_whether_ranks_tell_losses_of_their_own() -> None:
    def disagreements(bend: Bend) -> list[Verdict]:
        logs = expecting(simulate(JOB, KILL, seed=5).logs(), EXPECT)
        bend(logs)
        card = judge(Evidence(load(simulate(JOB, KILL, seed=5), logs)), "alone")
        return [finding.verdict for finding in card.findings if "disagree on the loss" in finding.text]

    assert disagreements(loss(own, rank=1)) == [Verdict.INCONCLUSIVE], "a broken trainer's may look like that, too"
    assert disagreements(loss(own, rank=1, first=25)) == [Verdict.FAIL], "they told the same before the fault"


def test_a_loss_that_never_changes_proves_nothing() -> None:
    def constant(logs: Logs) -> None:
        for line in logs.steps():
            line |= {"loss": 1.0, "grad_norm": 1.0}

    assert_verdict(judged(constant, bent(JOB, constant)), Verdict.INCONCLUSIVE, first="never change")
