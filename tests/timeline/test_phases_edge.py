"""Rare turns of a recovery, each as a small log of its own: failed attempts, early losses, half-done restores."""

import json
import pathlib
from typing import Any

import pytest

from harness.judge.facts.analysis import Analysis
from harness.judge.guarantees import end_explained
from harness.timeline import timeline
from harness.timeline.timeline import Timeline

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

    def strikes(self, at: float, fault: str, *nodes: int, kind: str = "node_loss", rank: int | None = None) -> None:
        targets = [{"node": f"node{node}", "incarnation": 1, "rank": rank} for node in nodes]
        self.log("harness", at, "fault.injected", fault=fault, kind=kind, targets=targets, kills=True)

    def lose(self, node: int, at: float, fault: str) -> None:
        where = {"node": f"node{node}", "incarnation": 1}
        self.strikes(at, fault, node)
        self.log("harness", at, "process.exit", **where, code=-9)
        self.log("harness", at, "node.released", **where, reason="lost")

    def kill(self, rank: int, at: float, fault: str) -> None:
        self.strikes(at, fault, rank, kind="rank_kill", rank=rank)

    def agent(self, node: int) -> str:
        return self.open(f"agent-{node}", "agent", 0, node=f"node{node}", incarnation=1)

    def seen(self, agent: str, at: float, rank: int, pid: int, code: int) -> None:
        """A launcher saw a worker end."""
        self.log(agent, at, "worker.exit", local_rank=0, rank=rank, pid=pid, code=code)

    def both(self, life: int, at: float, first: int, last: int, **where: Any) -> list[str]:
        """Both ranks start, join a second later, restore another one later, and do these steps of a second each."""
        workers = [self.worker(rank, life, at, at + 1, at + 2, **where) for rank in (0, 1)]
        for worker in workers:
            self.steps(worker, first, last, at + 2)
        return workers

    def nodes(self, at: float = 0) -> None:
        for node in (0, 1):
            self.node(node, 1, at)

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


@pytest.fixture
def logs(tmp_path: pathlib.Path) -> Logs:
    return Logs(tmp_path)


def phases(run: Timeline) -> list[tuple[str, float, float]]:
    return [(s.phase, s.begin / S, s.end / S) for s in run.segments]


def test_who_joined_before_a_death_is_not_in_the_next_world(logs: Logs) -> None:
    """Rank 0 joins alone and dies; in the next try rank 1 happens to be the first one in."""
    lone = logs.worker(0, 1, at=1, joined=2)
    logs.log(lone, 3, "exiting", code=1, reason="error")
    for rank, joined in ((1, 5), (0, 6)):
        logs.steps(logs.worker(rank, 2, at=4, joined=joined, restored=7), 1, 6, begin=8)
    run = logs.finish(20)
    assert run.reached_step == 6
    assert [epoch.size for epoch in run.epochs] == [2]
    assert ("restore", 6, 7) in phases(run), "the group was whole when rank 0 joined again, not before"


def test_a_launcher_that_comes_up_has_noticed_nothing(logs: Logs) -> None:
    """A spare node's launcher enters its first rendezvous between a kill and the moment somebody notices it."""
    agents = [logs.agent(node) for node in (0, 1)]
    for agent in agents:
        logs.log(agent, 1, "agent.rendezvous", edge="begin")
    workers = logs.both(1, 2, 1, 3)
    logs.kill(1, 7.5, "kill")
    spare = logs.open("agent-2", "agent", 8, node="node2", incarnation=1)
    logs.log(spare, 8, "agent.rendezvous", edge="begin")
    logs.seen(agents[1], 9, 1, 11, -9)
    logs.log(workers[0], 9.5, "exiting", code=1, reason="error")
    logs.seen(agents[0], 10, 0, 10, 1)
    logs.both(2, 11, 1, 6)
    found = phases(logs.finish(25))
    assert ("detect", 7.5, 9) in found
    assert ("teardown", 9, 10) in found


def deaths(run: Timeline) -> list[str]:
    return [each.words for each in end_explained.breaches(Analysis(run))]


def killed_once(logs: Logs) -> Logs:
    """A kill and its recovery: the agents of both nodes report the exits; new workers step from 13 s on."""
    agents = [logs.agent(node) for node in (0, 1)]
    logs.both(1, 2, 1, 3)
    logs.kill(1, 7.5, "kill")
    logs.seen(agents[1], 8, 1, 11, -9)
    logs.seen(agents[0], 9, 0, 10, 1)
    logs.both(2, 11, 1, 6)
    return logs


def test_a_command_that_outlived_the_recovery_by_far_is_not_explained_by_the_kill(logs: Logs) -> None:
    """The node's command was there when the fault struck, but its workers did steps long after that recovery."""
    killed_once(logs)
    logs.node(0, 1, 0)
    logs.log("harness", 18, "process.exit", node="node0", incarnation=1, code=1)
    [text] = deaths(logs.finish(25))
    assert "the command on node0 ended with exit code 1" in text


@pytest.mark.parametrize("incarnation", [1, 2])
def test_who_stepped_on_after_a_node_was_lost_does_not_die_of_that(logs: Logs, incarnation: int) -> None:
    """Also when the rank comes back in the lost place: what starts after a node's command did not end with it."""
    # Node 1 is lost; its rank comes back, and rank 0 goes on stepping beside it without a restart. Then it dies.
    agent = logs.agent(0)
    survivor, _ = logs.both(1, 2, 1, 3)
    logs.lose(1, 7.5, "loss")
    logs.log(survivor, 11, "rendezvous", world_size=2)
    again = logs.worker(1, 2, at=10, joined=11, restored=12, incarnation=incarnation)
    for worker in (survivor, again):
        logs.steps(worker, 4, 6, begin=12)
    logs.seen(agent, 16, 0, 10, 1)
    [text] = deaths(logs.finish(25))
    assert "rank 0 on node0 ended with exit code 1" in text


@pytest.mark.parametrize(
    ("born", "died", "accused"), [(7.6, 9, False), (7.7, 9, True), (5, 7.4, False), (5, 7.3, True)]
)
def test_who_may_have_been_alive_may_have_died_of_it(logs: Logs, born: float, died: float, accused: bool) -> None:
    """The kill was at 7.5 s; the clock of the dead rank's host is known to a tenth of a second."""
    killed_once(logs)
    logs.log("harness", 0, "clock", host="far", offset_ns=0, uncertainty_ns=S // 10)
    logs.worker(1, 3, at=born, host="far", clock="other")
    logs.seen("agent-1", died, 1, 31, -9)
    assert len(deaths(logs.finish(25))) == accused


@pytest.mark.parametrize(("died", "accused"), [(9.5, True), (9.7, False), (10.5, False)])
def test_peers_of_a_node_that_left_on_its_notice_are_excused_then(logs: Logs, died: float, accused: bool) -> None:
    """Its worker told its last line at 9.6 s, and its launcher ended at 10 s: nobody dies of that earlier."""
    logs.nodes(1)
    _, leaving = logs.both(1, 2, 1, 3)
    logs.log(leaving, 9.6, "notice", source="signal")
    logs.strikes(8, "evict", 1, kind="preemption")
    logs.log("harness", 10, "process.exit", node="node1", incarnation=1, code=-15)
    logs.log("harness", died, "process.exit", node="node0", incarnation=1, code=1)
    logs.log("harness", 15, "fault.taking", fault="evict", node="node1")
    assert len(deaths(logs.finish(25))) == accused


@pytest.mark.parametrize("sticks", [True, False])
def test_a_fault_that_strikes_each_life_of_a_node_belongs_to_its_outage(logs: Logs, sticks: bool) -> None:
    for node in (0, 1):
        agent = logs.agent(node)
        logs.node(node, 1, 1)
        logs.steps(logs.worker(node, 1, at=2, joined=3, restored=4), 1, 3, begin=4)
        logs.seen(agent, 8.5, node, 10 + node, -9 if node else 74)
        logs.steps(logs.worker(node, 2, at=9, joined=10, restored=11), 1, 6, begin=11)
    target = [{"node": "node1", "incarnation": 1, "rank": None}]
    logs.log("harness", 8, "fault.injected", fault="lemon", targets=target, may=["kill"], sticks=sticks)
    logs.log("harness", 24, "node.released", node="node1", incarnation=1, reason="completed")
    (episode,) = logs.finish(25).episodes
    assert episode.faults == ("lemon",) * sticks


def test_nobody_dies_of_a_node_that_was_told_and_not_yet_taken(logs: Logs) -> None:
    """Two nodes are told at 8 s and taken at 15 s and 20 s; the first one's rank steps on until then."""
    agents = [logs.agent(node) for node in (0, 1)]
    for node in (0, 1):
        logs.node(node, 1, 1)
        logs.steps(logs.worker(node, 1, at=2, joined=3, restored=4), 1, 3 if node == 0 else 10, begin=4)
    logs.strikes(8, "evict", 1, 2, kind="preemption")
    for n, at in ((1, 15), (2, 20)):
        logs.log("harness", at, "fault.taking", fault="evict", node=f"node{n}")
    logs.seen(agents[1], 15.5, 1, 11, -9)
    logs.seen(agents[0], 14.5, 0, 10, 1)
    [text] = deaths(logs.finish(25))
    assert "rank 0 on node0 ended with exit code 1" in text
