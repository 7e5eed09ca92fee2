"""Rare turns of a recovery, each as a small log of its own: failed attempts, early losses, half-done restores."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from harness import timeline
from harness.score import Evidence, Verdict
from harness.scores.job import SCORE as JOB
from harness.timeline import Timeline

S = 10**9


class Logs:
    """Files written by hand; times in seconds."""

    def __init__(self, run_dir: pathlib.Path, nodes: int = 2, steps: int = 6):
        self.run_dir = run_dir
        (run_dir / "events").mkdir()
        self.open("harness", "harness", 0)
        workload = {"nodes": nodes, "min_nodes": 1, "ranks_per_node": 1, "steps": steps}
        self.log("harness", 0, "plan", plan={"workload": workload, "faults": []})

    def open(self, name: str, role: str, at: float, **header: Any) -> str:
        self._line(name, at, {"schema": 1, "writer": name, "role": role, "host": "h", "clock": "boot"} | header)
        return name

    def log(self, name: str, at: float, event: str, **fields: Any) -> None:
        self._line(name, at, {"event": event} | fields)

    def _line(self, name: str, at: float, record: dict[str, Any]) -> None:
        ns = round(at * S)
        with (self.run_dir / "events" / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(record | {"wall_ns": ns, "mono_ns": ns}) + "\n")

    def node(self, node: int, incarnation: int, at: float) -> None:
        self.log("harness", at, "node.allocated", node=f"node{node}", incarnation=incarnation, gpus=1)

    def lose(self, node: int, incarnation: int, at: float, fault: str) -> None:
        where = {"node": f"node{node}", "incarnation": incarnation}
        self.log(
            "harness", at, "fault.injected", fault=fault, kind="node_loss", targets=[where | {"rank": None}], kills=True
        )
        self.log("harness", at, "process.exit", **where, code=-9)
        self.log("harness", at, "node.released", **where, reason="lost")

    def kill(self, rank: int, at: float, fault: str) -> None:
        target = {"node": f"node{rank}", "incarnation": 1, "rank": rank}
        self.log("harness", at, "fault.injected", fault=fault, kind="rank_kill", targets=[target], kills=True)

    def worker(
        self, rank: int, life: int, at: float, joined: float | None = None, restored: float | None = None, **where: Any
    ) -> str:
        header = {"node": f"node{rank}", "incarnation": 1, "rank": rank, "local_rank": 0, "world_size": 2} | where
        name = self.open(f"trainer-{rank}-{life}", "trainer", at, pid=10 * life + rank, **header)
        if joined is not None:
            self.log(name, joined, "rendezvous", world_size=2)
        if restored is not None:
            self.log(name, restored, "restored", step=0, source="scratch")
        return name

    def steps(self, name: str, first: int, last: int, begin: float) -> None:
        for step in range(first, last + 1):
            self.log(name, begin + 1, "step", step=step, begin_ns=round(begin * S), loss=1.0)
            begin += 1

    def finish(self, at: float) -> Timeline:
        self.log("harness", at, "run.finished", outcome="completed", reason="")
        return timeline.load(self.run_dir)


def phases(run: Timeline) -> list[tuple[str, float, float]]:
    return [(s.phase, s.begin / S, s.end / S) for s in run.segments]


def test_who_joined_before_a_death_is_not_in_the_next_world(tmp_path: pathlib.Path) -> None:
    """Rank 0 joins alone and dies; in the next try rank 1 happens to be the first one in."""
    logs = Logs(tmp_path)
    lone = logs.worker(0, 1, at=1, joined=2)
    logs.log(lone, 3, "exiting", code=1, reason="error")
    for rank, joined in ((1, 5), (0, 6)):
        logs.steps(logs.worker(rank, 2, at=4, joined=joined, restored=7), 1, 6, begin=8)
    run = logs.finish(20)
    assert run.reached_step == 6
    assert [epoch.size for epoch in run.epochs] == [2]
    assert ("restore", 6, 7) in phases(run), "the group was whole when rank 0 joined again, not before"


def test_a_node_lost_before_the_first_step_is_waited_for(tmp_path: pathlib.Path) -> None:
    logs = Logs(tmp_path)
    logs.node(0, 1, 1)  # until then the job starts up: nothing was lost that it could wait for
    logs.node(1, 1, 1)
    logs.lose(1, 1, 2, "early")
    logs.node(1, 2, 5)
    for rank, incarnation in ((0, 1), (1, 2)):
        logs.steps(logs.worker(rank, 1, at=6, joined=7, restored=8, incarnation=incarnation), 1, 6, begin=8)
    run = logs.finish(20)
    assert phases(run)[:3] == [("startup", 0, 2), ("reschedule", 2, 5), ("startup", 5, 6)]
    assert [(e.t_stop / S, e.end / S, e.faults) for e in run.episodes] == [(2, 9, ("early",))]


def test_restore_lasts_until_every_rank_has_restored(tmp_path: pathlib.Path) -> None:
    """One rank is ready, the other dies while it restores: the job never was in its first step."""
    logs = Logs(tmp_path)
    first = logs.worker(0, 1, at=1, joined=2, restored=3)
    logs.worker(1, 1, at=1, joined=2)
    logs.kill(1, 5, "mid-restore")
    logs.log(first, 6, "exiting", code=1, reason="error")
    for rank in (0, 1):
        logs.steps(logs.worker(rank, 2, at=8, joined=9, restored=10), 1, 6, begin=10)
    run = logs.finish(20)
    assert ("restore", 2, 5) in phases(run)
    assert "first_step" not in [phase for phase, begin, _ in phases(run) if begin < 8]


def test_a_launcher_that_comes_up_has_noticed_nothing(tmp_path: pathlib.Path) -> None:
    """A spare node's launcher enters its first rendezvous between a kill and the moment somebody notices it."""
    logs = Logs(tmp_path)
    agents = [logs.open(f"agent-{n}", "agent", 0, node=f"node{n}", incarnation=1) for n in (0, 1)]
    for agent in agents:
        logs.log(agent, 1, "agent.rendezvous", edge="begin")
    workers = [logs.worker(rank, 1, at=2, joined=3, restored=4) for rank in (0, 1)]
    for worker in workers:
        logs.steps(worker, 1, 3, begin=4)
    logs.kill(1, 7.5, "kill")
    spare = logs.open("agent-2", "agent", 8, node="node2", incarnation=1)
    logs.log(spare, 8, "agent.rendezvous", edge="begin")
    logs.log(agents[1], 9, "worker.exit", local_rank=0, rank=1, pid=11, code=-9)
    logs.log(workers[0], 9.5, "exiting", code=1, reason="error")
    logs.log(agents[0], 10, "worker.exit", local_rank=0, rank=0, pid=10, code=1)
    for rank in (0, 1):
        logs.steps(logs.worker(rank, 2, at=11, joined=12, restored=13), 1, 6, begin=13)
    found = phases(logs.finish(25))
    assert ("detect", 7.5, 9) in found
    assert ("teardown", 9, 10) in found


def deaths(run: Timeline) -> list[str]:
    reasons = JOB.score(Evidence(run), None).reasons
    return [text for verdict, text in reasons if verdict is Verdict.INCONCLUSIVE and "death" in text]


def killed_once(tmp_path: pathlib.Path) -> Logs:
    """A kill and its recovery: the agents of both nodes report the exits; new workers step from 13 s on."""
    logs = Logs(tmp_path)
    agents = [logs.open(f"agent-{n}", "agent", 0, node=f"node{n}", incarnation=1) for n in (0, 1)]
    for worker in [logs.worker(rank, 1, at=2, joined=3, restored=4) for rank in (0, 1)]:
        logs.steps(worker, 1, 3, begin=4)
    logs.kill(1, 7.5, "kill")
    logs.log(agents[1], 8, "worker.exit", local_rank=0, rank=1, pid=11, code=-9)
    logs.log(agents[0], 9, "worker.exit", local_rank=0, rank=0, pid=10, code=1)
    for rank in (0, 1):
        logs.steps(logs.worker(rank, 2, at=11, joined=12, restored=13), 1, 6, begin=13)
    return logs


def test_what_goes_down_with_a_kill_is_explained(tmp_path: pathlib.Path) -> None:
    assert deaths(killed_once(tmp_path).finish(25)) == []


def test_a_worker_born_after_the_kill_must_not_die(tmp_path: pathlib.Path) -> None:
    logs = killed_once(tmp_path)
    logs.log("agent-0", 19.5, "worker.exit", local_rank=0, rank=0, pid=20, code=1)
    [text] = deaths(logs.finish(25))
    assert "rank 0 on node0 ended with 1" in text


def test_a_command_that_outlived_the_recovery_by_far_is_not_explained_by_the_kill(tmp_path: pathlib.Path) -> None:
    """The node's command was there when the fault struck, but its workers did steps long after that recovery."""
    logs = killed_once(tmp_path)
    logs.node(0, 1, 0)
    logs.log("harness", 18, "process.exit", node="node0", incarnation=1, code=1)
    [text] = deaths(logs.finish(25))
    assert "the command on node0 ended with 1" in text
