"""A rank whose memory leaks must be named before it ends, where the scenario asks for it."""

from typing import Any

import pytest
from judging import EXPECT, acted_as, verdict
from simulator import Job, Logs, Outage, clocks, put, simulate, steps

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.node.emitter.strikes import LEAKING

JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(30, "rank", victim=1)]
FORESEEN = EXPECT | {"memory_growth": {"foreseen": True}}


def leaking(logs: Logs, told_s: float | None, suspect: int = 1, early: int | None = None) -> None:
    """The kill was that of a leak, which rank 0 told of `told_s` after the fault's begin, or never. Rank `early` told
    of one at step 20."""
    injected = acted_as(logs, "memory_leak", leaks=True, stops=True)
    alarm = {"event": "anomaly", "kind": "memory", "detail": "it grows", "suspect": suspect}
    if told_s is not None:
        put(logs.trainers(rank=0, life=0)[0], alarm | clocks(injected, round(told_s * 1e9)))
    if early is not None:
        lines = logs.trainers(rank=early, life=0)[0]
        put(lines, alarm | clocks(steps(lines, 20, 20)[0], 1))


MEASURED = 16 * 2**20  # bytes/s


@pytest.mark.parametrize(
    ("told", "begun", "foreseen"),
    [
        (None, True, True),
        (MEASURED, True, True),
        (MEASURED // 6, True, True),  # the mean over a window that began before the leak
        (0, True, True),  # in a coarse unit
        (MEASURED * 4, True, True),
        (1, False, True),  # no rate is measured without the begin of the leak
        (1, True, False),
        (MEASURED // 1001, True, False),
        (MEASURED * 5, True, False),
        (10**18, True, False),
    ],
)
def test_an_alarm_about_another_rate_foresees_no_leak(told: int | None, begun: bool, foreseen: bool) -> None:
    def measured(logs: Logs) -> None:
        leaking(logs, 0.0)
        injected, effect = logs.told("fault.injected"), logs.told("fault.effect")
        took_ns = effect["mono_ns"] - injected["mono_ns"]
        effect.update(measured=MEASURED * took_ns / 1e9, unit="bytes taken")
        next(iter(logs.all("anomaly"))).update({} if told is None else {"rate_bytes": told})
        if begun:
            put(logs.trainers(rank=1, life=0)[0], {"event": "failpoint", "name": LEAKING} | clocks(injected))

    card = verdict(simulate(JOB, KILL, seed=5), measured, FORESEEN)
    assert card.verdict is (Verdict.PASS if foreseen else Verdict.FAIL), card.reasons
    assert foreseen or "the trainer did not say so, told another rate" in card.reasons[0]


def judged(expect: dict[str, Any] = FORESEEN, *how: Any) -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), lambda logs: leaking(logs, *(how or [None])), expect)


@pytest.mark.parametrize("early", [None, 1], ids=["no_other", "another_teller_before"])
def test_a_leak_that_is_told_of_before_the_rank_ends_was_foreseen(early: int | None) -> None:
    card = judged(FORESEEN, 0.0, 1, early)
    assert card.verdict is Verdict.PASS, card.reasons
    assert card.scores["memory_growth"]["seconds_until_told"] == {"rank 1": pytest.approx(0, abs=0.01)}


NEVER, LATE, ANOTHER, BEFORE_TOO = (None, 1, None), (60.0, 1, None), (0.0, 0, None), (0.0, 1, 0)


@pytest.mark.parametrize("how", [NEVER, LATE, ANOTHER, BEFORE_TOO], ids=["never", "late", "another", "before_too"])
def test_a_leak_that_nobody_told_of_in_time_fails(how: tuple[float | None, int, int | None]) -> None:
    card = judged(FORESEEN, *how)
    assert card.verdict is Verdict.FAIL
    assert "the memory of rank 1 leaked until it ended, and the trainer did not say so" in card.reasons[0]


def test_what_comes_back_has_survived_and_without_a_leak_nothing_could_be_foreseen() -> None:
    assert judged(EXPECT).verdict is Verdict.PASS
    card = verdict(simulate(JOB, KILL, seed=5), expect=FORESEEN)
    assert card.verdict is Verdict.INCONCLUSIVE and "no rank's memory leaked" in card.reasons[0]
    assert "memory_growth" not in verdict(simulate(JOB, KILL, seed=5), expect=EXPECT).scores
