"""A failure that comes late may be a timeout, and a busy host makes any timeout pass too soon."""

from dataclasses import replace

import pytest
from judge.test_second_restart import again, judged
from judge.test_whole import FAULT_FREE, JOB, KILL, drill_card, restored
from judging import EXPECT, expecting, load
from scorecards import assert_verdict
from simulator import simulate

from harness.judge.score import Evidence, judge
from harness.judge.thresholds import OTHERS_MOST, TIMEOUT_MIN_NS
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

OTHERS = "other programs took 90% of the host's CPUs then"


def ended(log: Timeline, since: int, after_ns: int, others: float) -> Timeline:
    """The log, over so long after `since`, and others took so much of the host's CPUs meanwhile."""
    end = since + after_ns
    return replace(log, end=end, host_load=[{"at": end, "others": others}])


CASES = pytest.mark.parametrize(
    ("after_ns", "others", "excused"),
    [
        (TIMEOUT_MIN_NS, 0.9, True),
        (TIMEOUT_MIN_NS, OTHERS_MOST, False),  # the host was the job's
        (TIMEOUT_MIN_NS - 1, 0.9, False),  # nothing of the job gives up so soon
    ],
)


@CASES
def test_a_second_restart_that_fails(after_ns: int, others: float, excused: bool) -> None:
    finished = {"outcome": "failed", "step": 60, "reason": "the run took longer than 300 s"}
    card = judged(ended(again(), again().begin, after_ns, others), finished)
    assert_verdict(card, *((Verdict.INCONCLUSIVE, OTHERS) if excused else (Verdict.FAIL, "took longer than 300 s")))


@CASES
def test_a_restore_drill_that_fails(after_ns: int, others: float, excused: bool) -> None:
    log = ended(restored(), restored().begin, after_ns, others)
    card = drill_card(log, outcome="failed", reason="DistNetworkError: timed out")
    assert_verdict(card, *((Verdict.INCONCLUSIVE, OTHERS) if excused else (Verdict.FAIL, "DistNetworkError")))


def test_a_restore_drill_that_starts_from_scratch_waited_for_nothing() -> None:
    card = drill_card(ended(restored(), restored().begin, TIMEOUT_MIN_NS, 0.9), outcome="scratch")
    assert_verdict(card, Verdict.FAIL, "started from scratch")


@CASES
def test_a_job_that_fails(after_ns: int, others: float, excused: bool) -> None:
    history = simulate(JOB, KILL, seed=5)
    run = load(history, expecting(history.logs(), EXPECT))
    run = ended(run, int(run.progress.end.max()), after_ns, others)  # without a step all the time
    run = replace(run, outcome="failed", outcome_reason="Connection closed by peer")
    card = judge(Evidence(run, FAULT_FREE), "x")
    assert_verdict(card, *((Verdict.INCONCLUSIVE, OTHERS) if excused else (Verdict.FAIL, "Connection closed")))
