"""`expect: {diagnosis: …}`: the answers in a run's log are judged with it."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from judging import Bend, acted_as, bending, expecting, load, together, verdict
from simulator import Job, Logs, Outage, simulate

from harness.diagnosis.answer import Decision
from harness.diagnosis.bounds import Wanted
from harness.judge.score import Evidence, Expectation, Scorecard, judge
from harness.judge.verdict import Verdict
from harness.report import run_report, view
from harness.timeline.timeline import Beside

S = 10**9
EXPECT = {"right_within": "30s", "max_innocents": 0, "decision": "restart"}
HISTORY = simulate(Job(nodes=3), [Outage(12, "rank", victim=1)], seed=3)
RIGHT: dict[str, Any] = {"kind": "crash", "who": [{"rank": 1}], "decision": "restart-in-place"}


@bending
def told(logs: Logs, /, after_s: float = 0.1, **answer: Any) -> None:
    """The launcher of node 0 tells an answer, so many seconds after the fault."""
    (lines,) = (lines for name, lines in logs.items() if name.startswith("agent-node0"))
    struck = logs.told("fault.injected")
    when = {key: struck[key] + int(after_s * S) for key in ("mono_ns", "wall_ns")}
    lines.append({"event": "diagnosis", **answer, **when})
    lines[1:] = sorted(lines[1:], key=lambda line: int(line["mono_ns"]))


def lines_of(*bends: Bend, expect: Mapping[str, Any] = EXPECT) -> Mapping[str, Expectation]:
    return own(verdict(copy.deepcopy(HISTORY), together(*bends), expect={"diagnosis": dict(expect)}))


def own(card: Scorecard) -> Mapping[str, Expectation]:
    lines = (line for line in card.expectations if line.name.startswith("diagnosis."))
    return {line.name.partition(".")[2]: line for line in lines}


def verdicts(*bends: Bend, expect: Mapping[str, Any] = EXPECT) -> dict[str, Verdict]:
    return {name: line.verdict for name, line in lines_of(*bends, expect=expect).items()}


def test_a_right_answer_in_time_passes_and_is_on_the_report() -> None:
    card = verdict(copy.deepcopy(HISTORY), told(**RIGHT), expect={"diagnosis": EXPECT})
    assert card.verdict is Verdict.PASS
    (found,) = card.scores["diagnosis"]["faults"]
    assert found["grade"] == "right" and found["after_ns"] == S // 10
    report = run_report.from_scorecard(card)
    shown = {each.name: (each.bound, each.observed) for each in report.expectations}
    assert shown["diagnosis.right_within"] == ("≤ 30.00 s", "100 ms")
    assert shown["diagnosis.decision"] == ("restart", "restart-in-place")
    assert view.in_words("diagnosis.right_within: x") == "Diagnosis, right within: x"


@pytest.mark.parametrize(
    ("answer", "name", "reason"),
    [
        ({"who": [{"rank": 0}]}, "right_within", "the answer was crash of rank 0, which is wrong"),
        ({"kind": "hang"}, "right_within", "hang of rank 1, which is wrong; right is crash of rank 1"),
        ({"who": []}, "right_within", "crash of nobody, which is coarse"),
        ({"kind": "unknown", "who": []}, "right_within", "which is unsure"),
        ({"who": [{"rank": 0}]}, "max_innocents", "no fault had struck it: rank 0"),
        ({"kind": "unknown", "who": [{"node": "node0"}], "decision": "evict-node"}, "max_innocents", "it: node node0"),
        ({"kind": "none", "who": [{"node": "node0"}], "decision": "evict-node"}, "max_innocents", "it: node node0"),
        ({"after_s": -2, "kind": "unknown", "who": [], "decision": "stop"}, "max_innocents", "it: the job"),
        ({"after_s": -2, "kind": "hang", "who": [], "decision": "stop"}, "max_innocents", "it: the job"),
        ({"decision": "evict-node"}, "decision", "evict-node was decided about"),
        ({"kind": "hang"}, "decision", "no decision was told with a right answer"),
        ({"decision": None}, "decision", "no decision was told with a right answer"),
    ],
)
def test_an_answer_that_is_not_right_fails(answer: dict[str, Any], name: str, reason: str) -> None:
    line = lines_of(told(**RIGHT | answer))[name]
    assert line.verdict is Verdict.FAIL and reason in line.reason


def test_an_answer_that_comes_too_late_or_not_at_all_fails_where_the_log_is_whole() -> None:
    line = lines_of(told(0.4, **RIGHT), expect={"right_within": "200ms"})["right_within"]
    assert line.verdict is Verdict.FAIL and "400 ms after it struck and not within 0.2 s" in line.reason
    assert line.observed_value == 0.4 and line.bound_value == 0.2
    found = lines_of()
    assert [found[name].verdict for name in EXPECT] == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]
    assert found["right_within"].reason.startswith("no diagnosis within 30 s of ")


@pytest.mark.parametrize("answer", [{"who": [{"rank": 1}], "decision": "stop"}, {"decision": "stop"}, {"after_s": -2}])
def test_an_answer_that_does_not_act_or_comes_after_a_fault_accuses_no_innocent(answer: dict[str, Any]) -> None:
    assert verdicts(told(kind="unknown", **answer))["max_innocents"] is Verdict.PASS
    assert verdicts(told(-2, kind="storage", who=[], decision="ignore"))["max_innocents"] is Verdict.PASS


@bending
def loaded(logs: Logs, others: float) -> None:
    """Other programs use this share of the host's CPUs."""
    begin, end = (logs.told(event)["mono_ns"] for event in ("plan", "run.finished"))
    for at in range(begin, end, S):
        logs.put({"event": "host.load", "others": others, "mono_ns": at, "wall_ns": at})


@pytest.mark.parametrize(
    ("load", "expected"),
    [(lambda logs: None, Verdict.INCONCLUSIVE), (loaded(0.25), Verdict.INCONCLUSIVE), (loaded(0.05), Verdict.FAIL)],
)
def test_a_rank_may_be_slow_without_a_fault_unless_the_host_was_idle(load: Bend, expected: Verdict) -> None:
    assert verdicts(told(kind="straggler", who=[{"rank": 0}]), load)["max_innocents"] is expected
    assert verdicts(told(kind="crash", who=[{"rank": 0}]), load)["max_innocents"] is Verdict.FAIL


def lost(logs: Logs) -> None:
    """A line of a launcher's log is lost."""
    logs.number()
    (lines,) = (lines for name, lines in logs.items() if name.startswith("agent-node0"))
    del lines[-2]


def dropped(logs: Logs) -> None:
    """A full disk took some events of a worker."""
    logs.trainers(0, 0)[0][-1]["dropped"] = 3


def unheard(logs: Logs) -> None:
    """A rank's logs are lost, whole."""
    for name in [name for name, lines in logs.items() if name.startswith("trainer") and lines[0]["rank"] == 2]:
        del logs[name]


def cut(logs: Logs) -> None:
    """A launcher's log is lost, whole."""
    del logs[next(name for name in logs if name.startswith("agent-node2"))]


@pytest.mark.parametrize("lose", [lost, dropped, unheard, cut])
def test_where_answers_may_be_lost_their_absence_proves_nothing(lose: Bend) -> None:
    assert set(verdicts(lose).values()) == {Verdict.INCONCLUSIVE}
    wrong = verdicts(told(**RIGHT | {"who": [{"rank": 0}]}), lose)
    assert wrong["right_within"] is Verdict.INCONCLUSIVE and wrong["max_innocents"] is Verdict.FAIL
    right = verdicts(told(**RIGHT), lose)
    assert right["right_within"] is right["decision"] is Verdict.PASS
    assert right["max_innocents"] is Verdict.INCONCLUSIVE


def test_a_run_that_ends_before_the_time_is_over_proves_nothing() -> None:
    def interrupted(logs: Logs) -> None:
        logs.told("run.finished")["outcome"] = "interrupted"

    line = lines_of(interrupted)["right_within"]
    assert line.verdict is Verdict.INCONCLUSIVE and "the log ends" in line.reason


def test_without_a_fault_whose_truth_is_known_there_is_nothing_to_diagnose() -> None:
    def unknown(logs: Logs) -> None:
        acted_as(logs, "disk_nap")

    found = lines_of(told(**RIGHT), unknown)
    assert {line.verdict for line in found.values()} == {Verdict.INCONCLUSIVE}
    assert "unknown fault 'disk_nap'" in found["right_within"].reason
    assert verdicts(unknown)["max_innocents"] is Verdict.PASS
    found = own(verdict(simulate(Job(nodes=2)), expect={"diagnosis": EXPECT}))
    assert found["max_innocents"].verdict is Verdict.PASS
    for name in ("right_within", "decision"):
        assert found[name].verdict is Verdict.INCONCLUSIVE and "nothing to diagnose" in found[name].reason


@pytest.mark.parametrize(("uncertainty_ns", "expected"), [(0, Verdict.PASS), (S // 10, Verdict.INCONCLUSIVE)])
def test_near_the_limit_inexact_clocks_prove_nothing(uncertainty_ns: int, expected: Verdict) -> None:
    logs = expecting(copy.deepcopy(HISTORY).logs(), {"diagnosis": {"right_within": "150ms"}})
    told(**RIGHT)(logs)
    run = replace(load(HISTORY, logs), uncertainty_ns=uncertainty_ns)
    assert own(judge(Evidence(run), "x"))["right_within"].verdict is expected


def test_answers_about_another_rehearsal_are_not_judged() -> None:
    logs = expecting(copy.deepcopy(HISTORY).logs(), {"diagnosis": EXPECT})
    told(**RIGHT)(logs)
    run = load(HISTORY, logs)
    beside = Beside(faults=frozenset(fault.id for fault in run.faults))
    found = own(judge(Evidence(replace(run, plan=run.plan | {"faults": []}, beside=beside)), "rehearsal"))
    assert {line.verdict for line in found.values()} == {Verdict.INCONCLUSIVE}
    assert "nothing to diagnose" in found["right_within"].reason
    assert "it belongs to another rehearsal" in found["max_innocents"].reason


def test_a_benign_fault_needs_no_answer_and_no_decision() -> None:
    def paused(logs: Logs) -> None:
        acted_as(logs, "gil_hold", may=["kill"])
        logs.plan["faults"][0]["parameters"] = {"duration": "3s"}

    ignored = EXPECT | {"decision": "ignore"}
    assert set(verdicts(paused, expect=ignored).values()) == {Verdict.PASS}
    accused = lines_of(paused, told(kind="crash", who=[{"rank": 1}], decision="evict-node"), expect=ignored)
    assert accused["right_within"].verdict is Verdict.FAIL and "right is silence" in accused["right_within"].reason


def test_any_decision_may_be_expected() -> None:
    assert set(get_args(Wanted)) == {*Decision, "restart", "right"}
    for wanted, expected in (("right", Verdict.PASS), ("restart-elsewhere", Verdict.FAIL), ("roll-back", Verdict.FAIL)):
        assert verdicts(told(**RIGHT), expect={"decision": wanted}) == {"decision": expected}


def test_answers_change_no_run_that_does_not_expect_them() -> None:
    cards = [verdict(copy.deepcopy(HISTORY), bend, expect={}) for bend in (lambda logs: None, told(kind="hang"))]
    assert cards[0].verdict is cards[1].verdict and cards[0].findings == cards[1].findings
    assert "diagnosis" not in cards[1].scores
