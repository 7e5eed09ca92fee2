"""A job that is to give up when a member never comes: soon, by itself, and with a word of why."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import verdict
from scorecards import assert_verdict
from simulator import Job, Line, Logs, Outage, clocks, find, remove, simulate

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=80, every=10)
LOST = [Outage(25, "node", victim=1)]
EXPECTED = {"fail_fast": {"max": "30s", "says": "1 of 2 Nodes"}}
REASON = "the command on node0 ended with 1: launch: RendezvousTimeoutError: only 1 of 2 nodes came within 10 s"


def given_up(logs: Logs, after_s: float = 12.0, outcome: str = "failed", reason: str = REASON) -> None:
    """The replacement does not come; `after_s` after the loss the survivor's command ends, and with it the job."""
    back = next(line for line in logs.harness if line.get("incarnation") == 2)
    for name in [name for name, lines in logs.items() if lines[0]["mono_ns"] >= back["mono_ns"]]:
        del logs[name]
    for lines in logs.values():
        remove(lines, lambda line: line["mono_ns"] >= back["mono_ns"])
    node: dict[str, Any] = {"node": "node0", "incarnation": 1}
    last: list[Line] = [
        node | {"event": "process.exit", "code": 1},
        node | {"event": "node.released", "reason": outcome},
        {"event": "fault.healed", "fault": "fault1"},
        {"event": "run.finished", "outcome": outcome, "reason": reason},
    ]
    struck = logs.told("fault.injected")
    logs.harness += [clocks(struck, round(after_s * 1e9) + n) | line for n, line in enumerate(last)]


def judged(expect: dict[str, Any], **how: Any) -> Scorecard:
    return verdict(simulate(JOB, LOST, seed=5), lambda logs: given_up(logs, **how), expect)


def limit_of(card: Scorecard) -> tuple[str, str, Verdict]:
    [line] = [line for line in card.expectations if line.name == "fail_fast.max"]
    return line.bound, line.observed, line.verdict


def test_a_job_that_gives_up_in_time_and_says_why_passes() -> None:
    card = judged(EXPECTED)
    assert_verdict(card, Verdict.PASS, first="gave up 12.00 s after the fault and said why;")
    assert limit_of(card) == ("≤ 30.00 s", "12.00 s", Verdict.PASS)
    assert card.scores["fail_fast"] == {"seconds": 12.0, "gpu_seconds": pytest.approx(12.0, abs=0.1)}


@pytest.mark.parametrize(
    ("how", "expected", "reason"),
    [
        ({"after_s": 40.0}, Verdict.FAIL, "held its GPUs for 40.00 s"),
        ({"reason": "the command on node0 ended with 1: KeyError: 'lr'"}, Verdict.FAIL, "did not say '1 of 2 Nodes'"),
        ({"outcome": "aborted", "reason": "no step for 60 s"}, Verdict.FAIL, "did not give up by itself"),
        ({"outcome": "interrupted", "reason": "stopped by the user"}, Verdict.INCONCLUSIVE, "interrupted"),
    ],
)
def test_what_is_no_good_end(how: dict[str, Any], expected: Verdict, reason: str) -> None:
    card = judged(EXPECTED, **how)
    assert_verdict(card, expected, reason)
    if "outcome" in how:
        assert limit_of(card) == ("≤ 30.00 s", "it did not" if expected is Verdict.FAIL else "—", expected)


def test_a_job_that_recovers_or_is_not_asked_to_give_up_has_failed() -> None:
    card = verdict(simulate(JOB, LOST, seed=5), expect=EXPECTED)
    assert_verdict(card, Verdict.FAIL, first="the scenario expects that it gives up")
    assert limit_of(card) == ("≤ 30.00 s", "it did not", Verdict.FAIL)
    card = judged({})
    assert card.verdict is Verdict.FAIL and card.reasons[0].startswith("the job failed at step")
    assert "fail_fast" not in card.scores


def test_a_job_of_which_no_node_is_left_gave_up_nothing() -> None:
    def taken(logs: Logs) -> None:
        given_up(logs, reason="no node is left, and no replacement is planned")
        remove(logs.harness, lambda line: line.get("event") == "process.exit" and line["node"] == "node0")

    assert_verdict(verdict(simulate(JOB, LOST, seed=5), taken, {"fail_fast": {"max": "30s"}}), Verdict.INCONCLUSIVE)


def test_an_unexplained_death_is_no_good_reason_to_give_up() -> None:
    def killed(logs: Logs) -> None:
        given_up(logs)
        agent = next(lines for name, lines in logs.items() if name.startswith("agent-node0"))
        find(agent, "worker.exit")["code"] = -11

    assert verdict(simulate(JOB, LOST, seed=5), killed, EXPECTED).verdict is not Verdict.PASS


@given(st.floats(1.0, 100.0), st.integers(1, 100))
def test_the_limit_decides(after_s: float, limit_s: int) -> None:
    card = judged({"fail_fast": {"max": f"{limit_s}s"}}, after_s=after_s + 3)
    late, said = after_s + 3 > limit_s, card.reasons
    assert card.verdict is (Verdict.FAIL if late else Verdict.PASS) and (late or "fault;" in said[0]), said
