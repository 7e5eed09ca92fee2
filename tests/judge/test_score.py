"""The Score contract: bounds, the merging of verdicts, and what is said first."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from judging import EXPECT, fault_free_of, verdict
from mutants.bent import JOB
from simulator import Logs, Outage, simulate

from harness.evidence.logs import Evidence
from harness.judge import score, weighing
from harness.judge.assumption import Assumption
from harness.judge.bounds import bounds_by_score
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import RUN, Guarantee, guarantees
from harness.judge.score import Bound, Expectation, ScoreResult, questions
from harness.judge.verdict import EXIT_CODES, Doubt, Finding, Verdict, merge, worst_first
from harness.report import figures

REASON = "the command on node0 ended with 2: can't open file 'train.py'"
ORDER = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL]


def test_the_worst_verdict_wins_and_is_said_first() -> None:
    for one, other in itertools.product(ORDER, ORDER):
        assert merge([one, other]) is ORDER[max(ORDER.index(one), ORDER.index(other))]
    assert merge([]) is Verdict.INCONCLUSIVE
    assert [EXIT_CODES[found] for found in ORDER] == [0, 3, 3, 1]
    told = [(Verdict.INCONCLUSIVE, "b"), (Verdict.FAIL, "c"), (Verdict.INVALID, "d"), (Verdict.FAIL, "a")]
    findings = [Finding(verdict, text, "") for verdict, text in told]
    assert worst_first([*findings, Finding(Verdict.FAIL, "c", "")], lambda code: ()) == ["c", "a", "d", "b"]


@pytest.mark.parametrize(
    ("observed", "found", "reason", "share"),
    [(3.0, Verdict.PASS, "", 0.75), (4.0, Verdict.PASS, "", 1.0), (5.0, Verdict.FAIL, "5.0 is more than 4.0", 1.25)],
)
def test_an_upper_bound(observed: float, found: Verdict, reason: str, share: float) -> None:
    line = Bound("x", unit="s").line(4.0, observed)
    assert line == Expectation("x", "≤ 4.0", str(observed), found, reason, share, 4.0, observed, "s")


def test_a_bound_may_have_its_own_reason_and_what_cannot_be_measured_is_no_pass() -> None:
    bound = Bound("x")
    assert (bound.line(4.0, 5.0, "too much").reason, bound.line(4.0, 3.0, "too much").reason) == ("too much", "")
    assert bound.line(0, 0) == Expectation("x", "≤ 0", "0", Verdict.PASS, "", None, 0, 0)
    told = (Verdict.INCONCLUSIVE, "there is nothing to measure", None, 4.0)
    for sign, bound in (("≤", Bound("x")), ("≥", Bound("x", least=True))):
        assert bound.line(4.0, None) == Expectation("x", f"{sign} 4.0", "—", *told, doubt=Doubt.UNMEASURED)
        assert bound.line(4.0, None, "no fault-free run").reason == "no fault-free run"


@pytest.mark.parametrize(
    ("observed", "found", "reason"),
    [(5.0, Verdict.PASS, ""), (4.0, Verdict.PASS, ""), (3.0, Verdict.FAIL, "3.0 is less than 4.0")],
)
def test_a_lower_bound(observed: float, found: Verdict, reason: str) -> None:
    line = Bound("x", unit="%", least=True).line(4.0, observed)
    assert line == Expectation("x", "≥ 4.0", str(observed), found, reason, None, 4.0, observed, "%")


def test_each_name_in_expect_is_a_question() -> None:
    assert questions().keys() == bounds_by_score().keys()


def test_a_cause_is_as_bad_as_what_it_explains_and_stands_before_it() -> None:
    fail = Verdict.FAIL
    told = [(fail, "other"), (fail, "effect"), (Verdict.INCONCLUSIVE, "cause"), (Verdict.INVALID, "odd")]
    findings = [Finding(verdict, text, text) for verdict, text in told]
    ordered = worst_first(findings, lambda code: ("cause", "never found") if code == "effect" else ())
    assert ordered == ["cause", "other", "effect", "odd"]


def test_what_guarantees_find_stands_in_the_order_of_their_families() -> None:
    """An assumption stands with its family, and between all of them where it has none."""
    places = list(map(score._place, guarantees()))
    assert places == sorted(places)
    assert score._place("saves-told") == score._place("saves.whole") > score._place("restores-told")
    assert score._place("clocks-known") == score.ELSEWHERE


def test_a_finding_without_a_reason_says_what_was_observed() -> None:
    line = Expectation("x", "≤ 4", "5", Verdict.FAIL)
    lines = [line, Expectation("y", "", "", Verdict.PASS)]
    evidence: Any = None  # nothing is held against it: no ground, no doubt
    _, told = score._weighed(ScoreResult({}, lines), evidence, by_steps=False)
    assert told == [(Verdict.FAIL, "x: 5 (allowed ≤ 4)", "x", "", "")]


def test_the_longest_recovery_is_told_wherever_it_comes() -> None:
    node_and_rank = [Outage(12, "node", victim=1), Outage(9, "rank", victim=1)]
    found = []
    for outages in (node_and_rank, node_and_rank[::-1]):
        recovery = figures.scores(verdict(simulate(JOB, outages, seed=5), expect=EXPECT))["recovery_time"]
        lengths = [episode["seconds"] for episode in recovery["episodes"]]
        assert recovery["seconds"] == max(lengths)
        found.append(lengths.index(max(lengths)))
    assert found == [0, 1]


@pytest.mark.parametrize(
    ("own_id", "faults", "told"),
    [
        ("simulated-fault-free", [], "the fault-free run failed, so nothing was injected: the job failed at step"),
        ("simulated-1", [], "a fault-free run for calibration failed, so nothing was injected: the job failed at step"),
        ("simulated", [], "the job failed at step"),
        ("simulated-fault-free", [{"id": "fault1"}], "the job failed at step"),
    ],
)
def test_a_fault_free_run_that_failed_is_called_that(own_id: str, faults: list[object], told: str) -> None:
    def bend(logs: Logs) -> None:
        logs.plan.update(run_id=own_id, faults=faults)
        logs.told("run.finished").update(outcome="failed", reason=REASON)

    card = verdict(simulate(JOB, (), seed=5), bend, expect={})
    assert card.reasons[0].startswith(told)
    assert REASON in card.reasons[0]


def test_a_guarantee_or_an_assumption_that_crashes_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(evidence: object) -> Iterator[Any]:
        raise ZeroDivisionError("odd")
        yield

    evidence = Analysis.of(Evidence(fault_free_of(JOB)))
    monkeypatch.setattr(weighing, "guarantees", lambda: {"restart.newest": Guarantee(crashes, needs_steps=False)})
    monkeypatch.setattr(weighing, "assumptions", lambda: {"clocks-known": Assumption(crashes)})
    states, found = weighing.judged(evidence, RUN)
    assert [state.state for state in states] == ["open"]
    line = crashes.__code__.co_firstlineno + 1
    words = f"its code crashed at judge/test_score.py:{line}: ZeroDivisionError: odd"
    assert [(each.verdict, each.text) for each in found] == [
        (Verdict.INCONCLUSIVE, f"{name}: {words}") for name in ("restart.newest", "clocks-known")
    ]
    silent = Guarantee(lambda evidence: iter(()), needs_steps=False, nothing=lambda evidence: next(crashes(evidence)))
    monkeypatch.setattr(weighing, "guarantees", lambda: {"restart.newest": silent})
    states, found = weighing.judged(evidence, RUN)
    assert [state.state for state in states] == ["open"] and "ZeroDivisionError" in found[0].text
