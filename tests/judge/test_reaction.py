"""A fault that demands that its node be left is answered by somebody, or the run is no bare pass."""

from typing import Any

import pytest
from judging import struck, verdict
from simulator import Job, Logs, Outage, clocks, simulate, steps

from harness.faults.contract import build_fault, fault_names
from harness.judge.verdict import Verdict

QUIET = Job(nodes=2, ranks_per_node=1, steps=60, every=8)


def sick(logs: Logs, says: str = "", **told: Any) -> None:
    """A GPU of rank 1 is sick from step 25 to step 30; `says`: the kind of a rank's diagnosis at step 27."""
    lines = logs.trainers(rank=1)[0]
    done = {each["step"]: each for each in steps(lines)}
    target = [{"node": lines[0]["node"], "incarnation": 1, "rank": 1}]
    must = {"kind": "gpu_health", "targets": target, "may": ["stop"], "must_leave": True} | told
    struck(logs, "ecc", done[25]["mono_ns"], healed=done[30]["mono_ns"], **must)
    if says:
        lines.insert(lines.index(done[27]) + 1, {"event": "diagnosis", "kind": says} | clocks(done[27]))


def test_nobody_reacted_and_the_node_trained_to_the_end() -> None:
    card = verdict(simulate(QUIET, [], 3), sick, expect={})
    assert card.verdict is Verdict.INCONCLUSIVE
    assert any("nobody reacted to fault ecc (gpu_health): node1 still trained at the end" in r for r in card.reasons)


@pytest.mark.parametrize("expect", [{}, {"reaction": "off"}])
def test_a_fault_with_which_a_node_may_go_on_demands_nothing(expect: dict[str, Any]) -> None:
    off = "reaction" in expect
    card = verdict(simulate(QUIET, [], 3), lambda logs: sick(logs, must_leave=off), expect=expect)
    assert card.verdict is Verdict.PASS, card.reasons


def test_who_reports_it_or_starts_again_has_reacted() -> None:
    card = verdict(simulate(QUIET, [], 3), lambda logs: sick(logs, says="gpu"), expect={})
    assert card.verdict is Verdict.PASS, card.reasons
    card = verdict(simulate(QUIET, [Outage(33, "rank", victim=1)], 3), sick, expect={})
    assert not any("nobody reacted" in reason for reason in card.reasons), card.reasons


def test_a_report_from_before_the_fault_is_no_reaction() -> None:
    def early(logs: Logs) -> None:
        sick(logs)
        lines = logs.trainers(rank=1)[0]
        (done,) = steps(lines, 10, 10)
        lines.insert(lines.index(done) + 1, {"event": "diagnosis", "kind": "gpu"} | clocks(done))

    assert verdict(simulate(QUIET, [], 3), early, expect={}).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("said", "step", "right"),
    [
        ({"kind": "none"}, 27, Verdict.INCONCLUSIVE),
        ({"kind": "straggler", "who": [{"rank": 0}]}, 27, Verdict.INCONCLUSIVE),  # an innocent
        ({"kind": "gpu", "who": [{"rank": 1}]}, 60, Verdict.INCONCLUSIVE),  # when all is done
        ({"kind": "gpu", "who": [{"rank": 1}]}, 27, Verdict.PASS),
        ({"kind": "crash", "who": [{"node": "node1"}]}, 27, Verdict.PASS),
        ({"kind": "gpu", "who": [{"file": "/dev/nvidia0"}]}, 27, Verdict.PASS),
    ],
)
def test_a_reaction_names_the_struck_part_while_it_matters(said: dict[str, Any], step: int, right: Verdict) -> None:
    def bend(logs: Logs) -> None:
        sick(logs)
        lines = logs.trainers(rank=0)[0]
        (done,) = steps(lines, step, step)
        lines.insert(lines.index(done) + 1, {"event": "diagnosis"} | said | clocks(done))

    card = verdict(simulate(QUIET, [], 3), bend, expect={})
    assert card.verdict is right, card.reasons


def test_faults_that_a_node_is_left_for_say_so() -> None:
    needs: dict[str, dict[str, Any]] = {
        "nic_bandwidth": {"rate": "1mbit"},
        "nic_loss": {"loss_percent": 1},
        "own_code": {"source": "def inject(context): ..."},
        "rdma": {"how": "error"},
        "storage_slow": {"latency": "1s"},
        "gpu_health": {"kind": "lost"},
        "hot_update": {"args": ["--x"]},
    }
    found = {name for name in fault_names() if build_fault(name, needs.get(name, {})).consequences().must_leave}
    assert found == {"gpu_health", "lemon_node", "node_loss"}
    kinds = ("ecc", "ecc_corrected", "thermal", "nvlink", "hang")
    must = [build_fault("gpu_health", {"kind": kind}).consequences().must_leave for kind in kinds]
    assert must == [True, False, False, False, False]
