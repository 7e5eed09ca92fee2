"""The rendezvous outlives its store, and nobody's clock matters; what workers were told of their places is compared."""

import contextlib
import datetime
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousGracefulExitError, dynamic_rendezvous
from waiting import HANG_S, until

from harness.node.emitter import Emitter
from reference_trainer.rendezvous import Eviction, Members, Rendezvous, SteadyClock, connect
from reference_trainer.train import WrongPlace, claim_place


@contextlib.contextmanager
def store_process(port: int) -> Iterator[int]:
    """The store as a job starts it; yields its port."""
    command = [sys.executable, "-m", "reference_trainer.store", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()


def handler(port: int, join_s: float = HANG_S, spare: bool = False) -> Rendezvous:
    store = connect(f"127.0.0.1:{port}")
    return Rendezvous(store, "job", (2, 2), "127.0.0.1", join_s, Emitter(None), Eviction(), spare)


def meet(nodes: list[Rendezvous]) -> list[int]:
    """Their ranks after a rendezvous of all."""
    with ThreadPoolExecutor() as pool:
        return sorted(info.rank for info in pool.map(lambda node: node.next_rendezvous(), nodes))


def test_all_meet_again_at_a_store_that_came_back_empty_and_who_lost_a_worker_waits_for_it() -> None:
    with store_process(0) as port:
        nodes = [handler(port), handler(port)]
        assert meet(nodes) == [0, 1]
        assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    for node in nodes:
        assert [node.num_nodes_waiting() for _ in range(5)] == [0] * 5  # what trains goes on
    with store_process(port):
        for node in nodes:
            until(lambda node=node: node.num_nodes_waiting() > 0, "a node that waits")  # type: ignore[misc]
        assert meet(nodes) == [0, 1]
        assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    found: list[int] = []
    meeting = threading.Thread(target=lambda: found.extend(meet(nodes)))
    meeting.start()
    time.sleep(0.3)
    assert not found
    with store_process(port):
        meeting.join()
        assert found == [0, 1]
        for node in nodes:
            node.leave()


def test_a_spare_comes_last_waits_as_long_as_it_must_and_takes_the_place_of_a_lost_node() -> None:
    with store_process(0) as port, ThreadPoolExecutor() as pool:
        nodes = [handler(port), handler(port)]
        spare = handler(port, join_s=1.0, spare=True)  # made last: torch's pause, which all share here, is its own
        place = pool.submit(spare.next_rendezvous)
        assert meet(nodes) == [0, 1]
        until(lambda: spare._was_spare, "the spare that waits")
        time.sleep(1.2)  # longer than the spare would wait for a job that does not begin
        assert not place.done() and [node.num_nodes_waiting() for node in nodes] == [0, 0], "the job goes on"
        nodes[1].leave()
        again = pool.submit(nodes[0].next_rendezvous)
        assert sorted([place.result().rank, again.result().rank]) == [0, 1]
        for node in (nodes[0], spare):
            node.leave()


def test_a_spare_that_nobody_needed_leaves_when_the_job_is_over() -> None:
    with store_process(0) as port, ThreadPoolExecutor() as pool:
        nodes = [handler(port), handler(port)]
        spare = handler(port, spare=True)
        place = pool.submit(spare.next_rendezvous)
        meet(nodes)
        until(lambda: spare._was_spare, "the spare that waits")
        nodes[0].tell_outcome("completed")
        with pytest.raises(RendezvousGracefulExitError):
            place.result()
        assert spare.outcome() == "completed"


def test_short_lives_of_a_node_are_counted_by_its_address_until_one_was_long() -> None:
    store = connect(None)

    def node(address: str) -> Rendezvous:
        return Rendezvous(store, "job", (2, 2), address, HANG_S, Emitter(None), Eviction())

    lemon = node("10.0.0.1")
    assert [lemon.begin_life() for _ in range(3)] == [1, 2, 3]
    assert node("10.0.0.1").begin_life() == 4, "whoever comes back from there"
    assert node("10.0.0.2").begin_life() == 1
    lemon.forgive()
    assert lemon.begin_life() == 2
    lemon.forgive(ends=True)
    assert lemon.begin_life() == 1


@pytest.fixture
def members() -> Members:
    timeout = dynamic_rendezvous.RendezvousTimeout()
    settings = dynamic_rendezvous.RendezvousSettings("job", 1, 2, timeout, datetime.timedelta(seconds=0.25), 8)
    return Members(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), settings)


def beat(members: Members, node: Any, at: datetime.datetime) -> None:
    members.state.participants[node] = 0
    members.state.last_heartbeats[node] = at


@pytest.mark.parametrize("hours", [-24, 0, 24])
def test_a_node_with_another_clock_lives_as_long_as_its_heartbeat_changes(
    members: Members, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, now = dynamic_rendezvous._NodeDesc("there", 1, 1), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def look(after_s: float) -> bool:
        """Whether the node is there, so long after the look before."""
        now[0] += after_s
        members._sanitize()
        return node in members.state.participants

    theirs = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    for number in range(20):
        beat(members, node, theirs + datetime.timedelta(seconds=number / 2))
        look(0.5)
    assert look(15), "who slept does not call the others dead"
    assert [look(0.5) for _ in range(5)][-1] is False, "it says nothing any more"
    assert node not in members.state.last_heartbeats


def test_the_clock_of_the_rendezvous_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SteadyClock.now(datetime.UTC)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    after = SteadyClock.now(datetime.UTC)
    assert datetime.timedelta(0) <= after - before < datetime.timedelta(seconds=HANG_S)
    assert type(after) is datetime.datetime  # it is pickled for nodes that run another version


def test_places_that_fit_are_taken_and_another_idea_of_the_world_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(store: dist.Store, node: int, local_rank: int, rank: int, world_size: int) -> None:
        monkeypatch.setenv("GROUP_RANK", str(node))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        claim_place(store, rank, world_size)

    four, two = dist.HashStore(), dist.HashStore()
    for rank in (3, 0, 2, 1):
        claim(four, rank // 2, rank % 2, rank, 4)
    claim(two, 0, 0, 0, 2)
    with pytest.raises(WrongPlace, match="rank 0: worker 0 of node 1 and worker 0 of node 0"):
        claim(two, 1, 0, 0, 2)
    with pytest.raises(WrongPlace, match=r"worker 0 of node 1 is told of 3 ranks, others of 2 \(worker 0 of node 0\)"):
        claim(two, 1, 0, 1, 3)
