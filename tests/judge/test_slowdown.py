"""Faults that slow the job without stopping it: from the fault until step time is back in the fault-free run's band."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judging import Bend, bent, expecting, fault_free_of, load, struck, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, simulate
from whole import stretched

from harness.evidence import ledger
from harness.evidence.usual import Slowed, Usual
from harness.judge.score import Evidence, Scorecard, judge
from harness.judge.verdict import Verdict
from harness.report import figures as figures_of
from harness.report import run_report
from harness.report.view import figures
from harness.timeline.timeline import Beside, Timeline

JOB = Job(nodes=2, steps=80, every=100)
FAULT_FREE = fault_free_of(JOB)
USUAL = Usual([FAULT_FREE])


def slowed(
    logs: Logs, first: int, last: int, factor: float, healed: int | None, across: bool = False
) -> tuple[int, int]:
    """Time runs `factor` times slower from the end of step `first` to that of step `last` (`across`: in the workers'
    last lives); a fault says it was it."""
    begin, end = ended(logs, first), ended(logs, last, -1 if across else 0)
    stretched(logs, begin, end, factor)
    struck(logs, "slow", begin, None if healed is None else begin + healed)
    return begin, end + round((end - begin) * (factor - 1))


def ended(logs: Logs, step: int, life: int = 0) -> int:
    """When the last rank had done this step."""
    return max(line["mono_ns"] for rank in (0, 1) for line in logs.steps(step, step, rank=rank, life=life))


def slow(*how: Any, outages: Sequence[Outage] = (), every: int = 100, **more: Any) -> tuple[Timeline, int, int]:
    """A run that `slowed` bent, and what that returns."""
    found: list[int] = []
    job = replace(JOB, every=every)
    run = bent(job, lambda logs: found.extend(slowed(logs, *how, **more)), outages=outages, seed=1)
    return run, found[0], found[1]


def test_from_the_fault_until_the_last_slow_step() -> None:
    run, begin, end = slow(30, 50, 3.0, healed=10**9)
    [interval] = Slowed(run, USUAL).degraded
    assert (interval.fault, interval.begin, interval.recovered) == ("slow", begin, True)
    step = 3 * USUAL.steps[2].upper
    assert end - 4 * step <= interval.end <= end, "the last steps may by chance be short enough"
    assert 2 < interval.factor < 4
    assert Slowed(run, Usual([])).degraded == [], "without a fault-free run nothing can be said"
    assert ledger.settle(run, {}, []).accounts["straggler_drag"] == 0


def test_a_fault_that_does_nothing_degrades_nothing() -> None:
    assert Slowed(slow(30, 50, 1.0, healed=10**9)[0], USUAL).degraded == []
    at_once = slow(30, 31, 1.0, healed=0)[0]
    assert Slowed(at_once, USUAL).unmeasurable == [], "it is measured by the steps after it"


@pytest.mark.parametrize("outages", [[], [Outage(31, "rank")]])
def test_one_very_long_step_counts_alone(outages: list[Outage]) -> None:
    """A kill that comes while it is slow does not make it slow for ever."""
    run, begin, end = slow(30, 31, 30.0, healed=1 if outages else 10**9, outages=outages)
    [interval] = Slowed(run, USUAL).degraded
    assert (interval.begin, interval.end, interval.recovered) == (begin, end, True)


def judged(*how: Any, expect: Any, fault_free: Timeline = FAULT_FREE, **more: Any) -> Scorecard:
    return verdict(simulate(JOB, seed=1), lambda logs: slowed(logs, *how, **more), expect, fault_free)


def test_the_time_is_judged_and_the_drag_is_booked() -> None:
    for bound, expected in (("1s", Verdict.FAIL), ("60s", Verdict.PASS)):
        card = judged(30, 50, 3.0, healed=10**9, expect={"recovery_time": {"max": bound}})
        assert card.verdict is expected, card.reasons
    waste = figures_of.scores(card)["wasted_gpu_hours"]
    assert waste["accounts"]["straggler_drag"] > 1
    assert waste["accounts_by_faults"]["straggler_drag"] == pytest.approx(waste["accounts"]["straggler_drag"], rel=0.1)


@pytest.mark.parametrize("freezes", [True, False])
def test_a_standstill_is_not_productive_without_a_fault_free_run(freezes: bool) -> None:
    """The job's own steps before the fault show how long one takes. The accounts are those beside a fault-free run."""

    def stood(logs: Logs) -> None:
        slowed(logs, 30, 31, 200.0, healed=15 * 10**9)
        logs.told("fault.injected").update(may=["stop"], freezes=freezes)
        logs.put()

    asked = {"recovery_time": {"max": "5s"}, "wasted_gpu_hours": {"max_percent_by_faults": 50}}
    card, compared = alone(stood, asked), verdict(simulate(JOB, seed=1), stood, asked, fault_free=FAULT_FREE)
    ours, theirs = (figures_of.scores(each)["wasted_gpu_hours"] for each in (card, compared))
    for part in ("accounts", "accounts_by_faults"):
        assert ours[part]["straggler_drag"] > 15, "two ranks for 9.5 s"
        assert ours[part]["straggler_drag"] == pytest.approx(theirs[part]["straggler_drag"], rel=0.1)
    told = figures_of.scores(card)["recovery_time"]
    assert told["seconds"] == pytest.approx(figures_of.scores(compared)["recovery_time"]["seconds"])
    assert told["degraded"][0]["standstill_seconds"] == pytest.approx(told["seconds"], rel=0.1)
    failed = {line.name for line in card.expectations if line.verdict is Verdict.FAIL}
    assert failed == {"recovery_time.max", "wasted_gpu_hours.max_percent_by_faults"}
    shown = {figure.name: figure for figure in figures(run_report.from_scorecard(card))}
    assert "never stopped" not in shown["Recovery time"].detail + shown["Steps again after"].detail


def test_a_freeze_counts_where_too_few_steps_came_before_it() -> None:
    """Nothing shows how long a step takes, but the harness saw the processes stand still."""

    def stood(logs: Logs) -> None:
        _, end = slowed(logs, 2, 3, 200.0, healed=10**9)
        logs.told("fault.injected").update(may=["stop"], freezes=True)
        logs.told("fault.healed")["mono_ns"] = end - 10**8
        logs.put()

    card = alone(stood, {"wasted_gpu_hours": {"max_percent_by_faults": 50}})
    booked = figures_of.scores(card)["wasted_gpu_hours"]
    assert booked["accounts"]["straggler_drag"] > 15
    assert booked["accounts_by_faults"]["straggler_drag"] == booked["accounts"]["straggler_drag"]


def test_a_slow_link_is_not_measured_by_the_jobs_own_steps() -> None:
    """A step that took very long counts as wasted; how much slower the others were nobody knows."""
    asked = {"recovery_time": {"max": "1s"}, "wasted_gpu_hours": {"max_percent_by_faults": 90}}
    card = alone(lambda logs: slowed(logs, 30, 31, 100.0, healed=10**9), asked)
    assert figures_of.scores(card)["wasted_gpu_hours"]["accounts"]["straggler_drag"] > 5
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons


def alone(bend: Bend, expect: Any) -> Scorecard:
    """Judged without a fault-free run."""
    history = simulate(JOB, seed=1)
    logs = expecting(history.logs(), expect)
    bend(logs)
    return judge(Evidence(load(history, logs)), "alone")


def test_slow_to_the_end_is_not_recovered() -> None:
    card = judged(40, 80, 3.0, healed=None, expect={"recovery_time": {"max": "1s"}})
    assert_verdict(card, Verdict.FAIL, first="slow: still")
    nobody_asked = judged(40, 80, 3.0, healed=None, expect={"recovery_time": {}})
    assert nobody_asked.verdict is Verdict.PASS
    told = r"still \d\.\d\d × its usual step time at the end; the scenario expects nothing else"
    assert re.match(told, nobody_asked.reasons[0])


@pytest.mark.parametrize("mine", [True, False])
def test_who_is_slow_over_another_rehearsals_fault_is_not_asked_for_its_end(mine: bool) -> None:
    run, _, _ = slow(40, 80, 3.0, healed=None)
    beside = Beside(faults=frozenset() if mine else frozenset({"slow"}))
    run = replace(run, beside=beside, plan=run.plan | {"expect": {"recovery_time": {"max": "1s"}}})
    lines = {line.name: line.verdict for line in judge(Evidence(run, FAULT_FREE, ()), "window").expectations}
    assert lines["recovery_time.max"] is (Verdict.FAIL if mine else Verdict.INCONCLUSIVE)  # no fault of its own struck


def moved(logs: Logs, at: int) -> None:
    """The fault strikes at this moment."""
    for number, line in enumerate([line for line in logs.harness if line.get("fault") == "slow"]):
        line["mono_ns"] = at + number
    logs.put()


ASKED = {"recovery_time": {"max": "1s"}, "wasted_gpu_hours": {"max_percent_by_faults": 1}}


@pytest.mark.parametrize(("last", "recovered"), [(80, False), (60, True)])
def test_a_job_that_was_as_slow_before_the_fault_is_not_accused(last: int, recovered: bool) -> None:
    """A busy host, and a fault-free run from when it was not: so slow is this job by itself."""
    history = simulate(JOB, seed=1)

    def busy(logs: Logs) -> None:
        begin, end = slowed(logs, 10, last, 3.0, healed=None)
        moved(logs, begin + (end - begin) // 2)

    card = verdict(history, busy, ASKED, fault_free=FAULT_FREE)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert re.search(r"took [23]\.\d\d × the time of the fault-free runs already before slow struck", card.reasons[0])
    (interval,) = figures_of.scores(card)["recovery_time"]["degraded"]
    assert interval["recovered"] is recovered and 2 < interval["slowdown_before"] < 4
    shown = next(figure for figure in figures(run_report.from_scorecard(card)) if figure.name == "Recovery time")
    assert shown.value != "Never", "that would accuse it"
    assert {line.name: line.verdict for line in card.expectations if line.verdict is not Verdict.PASS} == {
        "recovery_time.max": Verdict.INCONCLUSIVE,
        "wasted_gpu_hours.max_percent_by_faults": Verdict.INCONCLUSIVE,
    }
    wide = {"recovery_time": {"max": "60s"}, "wasted_gpu_hours": {"max_percent_by_faults": 90}}
    assert verdict(history, busy, wide, fault_free=FAULT_FREE).verdict is (
        Verdict.PASS if recovered else Verdict.INCONCLUSIVE
    )


@pytest.mark.parametrize(("slow_steps", "accused"), [(4, True), (18, False)])
def test_a_few_slow_steps_before_excuse_nothing(slow_steps: int, accused: bool) -> None:
    def bend(logs: Logs) -> None:
        slowed(logs, 40 - slow_steps, 80, 3.0, healed=None)
        moved(logs, ended(logs, 40))

    [interval] = Slowed(bent(JOB, bend, seed=1), USUAL).degraded
    assert (interval.before is None) is accused


@pytest.mark.parametrize(
    ("usual_ms", "last", "factor", "healed", "expected"),
    [
        (48, 60, 1.01, 10**9, Verdict.PASS),
        (66, 60, 1.01, 10**9, Verdict.PASS),
        (90, 80, 1.01, 10**10, Verdict.INCONCLUSIVE),
        (90, 41, 1.01, 10**6, Verdict.PASS),
        (90, 41, 1.01, 10**9, Verdict.PASS),
        (90, 80, 1.8, 10**6, Verdict.INCONCLUSIVE),
        (90, 50, 1.8, 10**9, Verdict.INCONCLUSIVE),
    ],
)
def test_a_fault_free_run_that_was_slower_than_the_job_before_the_fault_proves_nothing(
    usual_ms: int, last: int, factor: float, healed: int, expected: Verdict
) -> None:
    """In its band a fault could hide that makes this job twice as slow: but not one that was soon over, after which the
    job did its steps as before."""
    usual = fault_free_of(replace(JOB, step_ms=usual_ms))
    card = judged(40, last, factor, healed=healed, expect=ASKED, fault_free=usual)
    assert card.verdict is expected, card.reasons
    told = "did not stop progress, and its slowdown cannot be measured against the fault-free runs"
    assert (told in card.reasons[0]) is (expected is Verdict.INCONCLUSIVE)


def test_what_one_fault_leaves_slow_is_its_own_doing_and_not_the_next_ones() -> None:
    def two(logs: Logs) -> None:
        slowed(logs, 30, 80, 3.0, healed=None)
        struck(logs, "second", ended(logs, 60))

    card = verdict(simulate(JOB, seed=1), two, ASKED, FAULT_FREE)
    assert card.verdict is Verdict.FAIL
    assert card.reasons[0].startswith("recovery_time.max: slow: still"), card.reasons


def test_slow_before_and_after_a_restart_is_one_interval() -> None:
    run, begin, end = slow(20, 60, 3.0, healed=10**12, across=True, outages=[Outage(31, "rank")], every=10)
    [interval] = Slowed(run, USUAL).degraded
    assert interval.begin == begin < run.episodes[0].t_stop < run.episodes[0].end < interval.end
    assert interval.recovered and abs(interval.end - end) < 6 * USUAL.steps[2].upper


@pytest.mark.parametrize("said", [{}, {"kills": False, "stops": True}])
def test_what_stopped_the_job_is_measured_by_its_episode_alone(said: dict[str, Any]) -> None:
    def bend(logs: Logs) -> None:
        stretched(logs, ended(logs, 25), ended(logs, 60, -1), 4.0)
        logs.told("fault.injected").update(said)

    run = bent(replace(JOB, every=10), bend, outages=[Outage(31, "rank")], seed=1)
    assert run.episodes[0].faults == ("fault1",)
    assert Slowed(run, USUAL).degraded == []


def test_the_usual_sync_is_of_those_that_were_told() -> None:
    told = FAULT_FREE.steps.sync_ns
    assert USUAL.sync == np.quantile(told[told > 0], 0.95)
    silent = replace(FAULT_FREE, steps=replace(FAULT_FREE.steps, sync_ns=np.minimum(told, -1)))
    assert Usual([silent]).sync is None
    assert Usual([silent, FAULT_FREE]).sync == USUAL.sync


def test_a_kill_that_stopped_nothing_is_not_a_recovery() -> None:
    def bend(logs: Logs) -> None:
        slowed(logs, 30, 50, 1.0, healed=10**9)
        logs.told("fault.injected")["kills"] = True

    card = verdict(simulate(JOB, seed=1), bend, {"recovery_time": {"max": "60s"}}, fault_free=FAULT_FREE)
    assert_verdict(card, Verdict.INCONCLUSIVE, first="slow struck, but progress never stopped")


def test_a_fault_that_only_slows_cannot_be_judged_without_a_fault_free_run() -> None:
    run, _, _ = slow(30, 50, 3.0, healed=10**9)
    run = replace(run, plan=run.plan | {"expect": {"recovery_time": {"max": "60s"}}})
    card = judge(Evidence(run), "x")
    assert card.verdict is Verdict.INCONCLUSIVE
    assert "slow did not stop progress, and its slowdown cannot be judged without a fault-free run" in card.reasons[0]


@pytest.mark.parametrize(("factor", "expected"), [(2.5, Verdict.INCONCLUSIVE), (4.0, Verdict.FAIL)])
def test_what_a_busy_host_explains_accuses_nobody(factor: float, expected: Verdict) -> None:
    """The job is slower from a fault to its end. Slower than any busy host makes it, it has not recovered."""
    card = judged(20, JOB.steps, factor, healed=25, expect={"recovery_time": {"max": "60s"}})
    assert card.verdict is expected, card.reasons
    assert ("a busy host could also explain it" in card.reasons[0]) == (expected is Verdict.INCONCLUSIVE)
