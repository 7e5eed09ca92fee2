"""What launchers tell that cannot be, each beside a healthy way of telling it that passes."""

from collections.abc import Mapping
from typing import Any

import pytest
from judging import EXPECT, Bend, bending, bent, verdict
from simulator import Job, Logs, Outage, change, clocks, put, simulate

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

S = 10**9
JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(17, "rank", victim=1)]


def judged(bend: Bend, fault_free: Timeline | None = None) -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), bend, EXPECT, fault_free)


def agents(logs: Logs) -> list[list[dict[str, Any]]]:
    return [lines for name, lines in sorted(logs.items()) if name.startswith("agent")]


@bending
def met(logs: Logs, *changed: Mapping[str, int]) -> None:
    """Both launchers tell of each meeting, before its workers begin; `changed`: what they tell of the second one."""
    for node, lines in enumerate(agents(logs)):
        mine = [each for each in logs.trainers() if each[0]["node"] == lines[0]["node"]]
        for number, worker in enumerate(mine):
            at = worker[0]["mono_ns"] - 1
            told = {"round": number + 1, "node_rank": node, "nodes": 2}
            told |= changed[node] if number and changed else {}
            wall = worker[0]["wall_ns"] - 1
            lines.append({"event": "agent.rendezvous", "edge": "end", "mono_ns": at, "wall_ns": wall} | told)
        put(lines)


def counts_anew(logs: Logs) -> None:
    """The host of the store is gone between the two meetings, and what it had counted."""
    met({"round": 1}, {"round": 1})(logs)
    told = [[line["mono_ns"] for line in lines if line.get("event") == "agent.rendezvous"] for lines in agents(logs)]
    second = min(max(times) for times in told)
    lines = logs["harness"]
    wall_ns = second - 1 + lines[0]["wall_ns"] - lines[0]["mono_ns"]
    at = {"mono_ns": second - 1, "wall_ns": wall_ns}
    lines.append({"event": "process.exit", "node": "control", "incarnation": 1, "code": -9} | at)
    lines[1:] = sorted(lines[1:], key=lambda line: line["mono_ns"])


def exits(logs: Logs) -> list[dict[str, Any]]:
    return [line for lines in agents(logs) for line in lines if line.get("event") == "worker.exit"]


@bending
def ends_with(logs: Logs, *codes: int) -> None:
    """What each launcher says that it ends with; their commands end with 0."""
    for code, lines in zip(codes, agents(logs), strict=True):
        lines.append(clocks(lines[-1]) | {"event": "agent.exiting", "code": code})


@bending
def begins_late(logs: Logs, seconds: float) -> None:
    """The first word of each launcher comes so much later than the first word of its first worker."""
    for lines in agents(logs):
        first = min(each[0]["mono_ns"] for each in logs.trainers() if each[0]["node"] == lines[0]["node"])
        for line in lines[:2]:
            line["wall_ns"] += first + round(seconds * S) - line["mono_ns"]
            line["mono_ns"] = first + round(seconds * S)
        lines[1:] = [line for line in lines[1:] if line["mono_ns"] >= lines[0]["mono_ns"]]


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (met({"node_rank": 1}, {}), "the launchers on node0 and node1 both tell that theirs is node 1"),
        (met({"nodes": 1}, {"nodes": 1, "node_rank": 0}), ""),
        (met({"nodes": 1}, {"nodes": 2}), "the launcher on node0 met 1 nodes, and the one on node1 2, for the same"),
        (met({}, {"nodes": 3}), "the launcher on node0 met 2 nodes, and the one on node1 3, for the same workers"),
        (met({"round": 1}, {}), "the launcher on node0 told of meeting 1 after meeting 1"),
        (met({"round": 4}, {"round": 4}), "the launchers told of meetings 1 and 4, and of none between them"),
        (ends_with(0, 1), "the launcher on node1 said that it ends with 1, and its command ended with 0"),
        (ends_with(0, 0), ""),
        (lambda logs: exits(logs)[0].update(pid=4711), "its launcher saw process 4711 end in its place"),
        (begins_late(0.2), "before its launcher"),
        (met(), ""),
        (counts_anew, "unexplained death: the command on control ended"),
        (lambda logs: change(exits(logs), "pid"), ""),
        (begins_late(0.05), ""),
    ],
)
def test_launchers_and_workers_tell_of_one_job(bend: Bend, reason: str) -> None:
    card = judged(bend)
    assert card.verdict is (Verdict.INCONCLUSIVE if reason else Verdict.PASS), card.reasons
    assert reason in " · ".join(["", *card.reasons]) and len(card.reasons) == 1


def test_what_launchers_tell_without_a_fault_too_is_their_way() -> None:
    assert judged(begins_late(0.2), bent(JOB, begins_late(0.2))).verdict is Verdict.PASS
