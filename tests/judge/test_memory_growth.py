"""A rank whose memory leaks must be named before it ends, where the scenario asks for it."""

from typing import Any

import pytest
from judging import EXPECT, acted_as, verdict
from simulator import Job, Logs, Outage, clocks, simulate

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(30, "rank", victim=1)]
FORESEEN = EXPECT | {"memory_growth": {"foreseen": True}}


def leaking(logs: Logs, told_s: float | None, suspect: int = 1) -> None:
    """The kill was that of a leak, which the trainer told of `told_s` after the fault's begin, or never."""
    injected = acted_as(logs, "memory_leak", leaks=True, stops=True)
    if told_s is not None:
        lines = logs.trainers(rank=0, life=0)[0]
        stamp = clocks(injected, round(told_s * 1e9))
        alarm = stamp | {"event": "anomaly", "kind": "memory", "detail": "it grows", "suspect": suspect}
        lines[1:] = sorted([*lines[1:], alarm], key=lambda line: line["mono_ns"])


def judged(expect: dict[str, Any] = FORESEEN, told_s: float | None = None, suspect: int = 1) -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), lambda logs: leaking(logs, told_s, suspect), expect)


def test_a_leak_that_is_told_of_before_the_rank_ends_was_foreseen() -> None:
    card = judged(told_s=0.0)
    assert card.verdict is Verdict.PASS, card.reasons
    assert card.scores["memory_growth"]["seconds_until_told"] == {"rank 1": pytest.approx(0, abs=0.01)}


@pytest.mark.parametrize(("told_s", "suspect"), [(None, 1), (60.0, 1), (0.0, 0)], ids=["never", "late", "another"])
def test_a_leak_that_nobody_told_of_in_time_fails(told_s: float | None, suspect: int) -> None:
    card = judged(told_s=told_s, suspect=suspect)
    assert card.verdict is Verdict.FAIL
    assert "the memory of rank 1 leaked until it ended, and the trainer did not say so" in card.reasons[0]


def test_what_comes_back_has_survived_and_without_a_leak_nothing_could_be_foreseen() -> None:
    assert judged(EXPECT).verdict is Verdict.PASS
    card = verdict(simulate(JOB, KILL, seed=5), expect=FORESEEN)
    assert card.verdict is Verdict.INCONCLUSIVE and "no rank's memory leaked" in card.reasons[0]
    assert "memory_growth" not in verdict(simulate(JOB, KILL, seed=5), expect=EXPECT).scores
