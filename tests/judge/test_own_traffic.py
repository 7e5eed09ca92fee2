"""The training's own traffic through network faults: missed is invalid, unmeasured is said, unslowed is a result."""

from typing import Any

import pytest
from judge.test_slowdown import JOB, slowed
from judging import Bend, bending, together, verdict
from simulator import Logs, clocks, find, simulate

from harness.judge.verdict import Verdict

ITEM = "the training's own traffic"


@bending
def told(logs: Logs, /, kind: str, **traffic: Any) -> None:
    """The fault of this kind, and what it told of the training's traffic through it."""
    lines = logs.harness
    injected = find(lines, "fault.injected")
    injected |= {"kind": kind, "kills": False, "spoils": False}
    if traffic:
        times = clocks(injected, 1)
        line = times | {"event": "fault.traffic", "fault": injected["fault"], "node": "node0", "seconds": 9.0}
        lines.insert(lines.index(injected) + 1, line | traffic)


def judged(bend: Bend, slower: float = 1.0, expect: dict[str, Any] | None = None) -> Any:
    slow: Bend = lambda logs: slowed(logs, 30, 50, slower, healed=10**9)  # noqa: E731
    return verdict(simulate(JOB, seed=1), together(slow, bend), expect=expect or {})


def test_traffic_that_went_around_the_fault_makes_the_run_invalid() -> None:
    card = judged(told("nic_latency", measured=0, least=4096, ok=False, detail="RDMA ports carried 7 bytes"), 3.0)
    assert card.verdict is Verdict.INVALID
    assert "did not meet the training's own traffic on node0: 0 bytes in 9 s" in card.reasons[0]
    assert "RDMA ports carried 7 bytes" in card.reasons[0]


@pytest.mark.parametrize("told_of", [{}, {"detail": "not measured: the backend cannot"}])
@pytest.mark.parametrize("kind", ["nic_loss", "partition"])
def test_what_was_not_measured_is_not_judged_and_said(kind: str, told_of: dict[str, Any]) -> None:
    card = judged(told(kind, **told_of), 3.0)
    assert card.verdict is not Verdict.INVALID
    assert "was not measured" in card.not_judged[ITEM]


def test_other_faults_are_not_asked_and_it_can_be_switched_off() -> None:
    assert ITEM not in judged(told("straggler"), 3.0).not_judged
    card = judged(told("nic_latency", measured=0, least=1, ok=False), 3.0, {"own_traffic": "off"})
    assert card.verdict is not Verdict.INVALID
    [traffic] = [each for each in card.guarantees if each.name == "fault.own_traffic"]
    assert (traffic.state, traffic.why) == ("not judged", "the scenario switches it off")


def test_traffic_that_lost_no_time_is_a_result() -> None:
    through = {"measured": 12_000_000, "least": 4096, "ok": True}
    assert judged(told("nic_latency", **through), 3.0).scores["own_traffic"]["lost_no_time"] == []
    found = judged(told("nic_latency", **through)).scores["own_traffic"]
    assert found["bytes"] == 12_000_000 and found["measured"] == 1
    assert "12000000 bytes of the training went through" in found["lost_no_time"][0]
