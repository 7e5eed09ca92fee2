"""A network fault proves that the training's own bytes go through what it disturbs."""

import itertools
import os
import pathlib
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import machine
import pytest
from waiting import until

from harness.backends.contract import Launch, Node, Traffic
from harness.backends.local.backend import LocalCluster
from harness.errors import NodeGone
from harness.faults.contract import Context
from harness.faults.shared.own_traffic import CUT_BYTES_MIN, PASSING_BYTES_MIN, OwnTraffic
from harness.node import processes
from harness.node.net import net_connections
from harness.node.types import Connection, Connections

OWN, PEER, OTHER, STORE = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"
TALK = """
import socket, sys, time
if sys.argv[1] == "0":
    server = socket.create_server(("", 7000))
    peer = server.accept()[0]
    while peer.recv(65536): pass
while True:
    try:
        link = socket.create_connection((sys.argv[2], 7000), 5)
        while True:
            link.sendall(bytes(10000)); time.sleep(0.01)
    except OSError:
        time.sleep(0.1)
"""


class Counting:
    """A node whose kernel answers with these connections, one answer a look, and the context around it."""

    def __init__(self, *answers: Connections | Exception):
        self.name, self.address, self.answers = "node0", OWN, iter(answers)
        self.cluster = SimpleNamespace(nodes=[self, *(SimpleNamespace(address=each) for each in (PEER, OTHER))])
        self.told: list[tuple[int | None, int | None, str]] = []

    def worker_pids(self, node: Node) -> list[int]:
        return [7]

    def connections(self, pids: list[int]) -> Connections:
        assert pids == [7]
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def traffic(self, node: Node, measured: int | None, least: int | None, seconds: float, detail: str) -> None:
        self.told.append((measured, least, detail))


def seen(*rows: tuple[int, str, str, int, int], rdma: int | None = None) -> Connections:
    return Connections(tuple(Connection(*row) for row in rows), True, rdma)


def counted(node: Counting, traffic: Traffic, cuts: bool = False, seconds: float = 10.0) -> tuple[Any, Any, str]:
    own = OwnTraffic(cast(Node, node), traffic, cuts, cast(Context, node))
    own.look(count=False)
    for _ in range(2):
        own.look()
    own.tell(seconds)
    return node.told[0]


BEFORE = seen((1, OWN, PEER, 100, 1000), (2, OWN, STORE, 5, 5), (3, "127.0.0.1", "127.0.0.1", 0, 0))
LATER = seen((1, OWN, PEER, 5100, 3000), (2, OWN, STORE, 9999, 9999), (3, "127.0.0.1", "127.0.0.1", 9**9, 9**9))
REBORN = seen((4, OWN, OTHER, 70_000, 30), (5, "192.168.7.1", PEER, 9**9, 9**9))


@pytest.mark.parametrize(
    ("direction", "bytes_"), [("egress", 5000 + 70_000), ("ingress", 2000 + 30), ("both", 7000 + 70_030)]
)
def test_only_bytes_with_other_nodes_over_the_disturbed_address_count(direction: Any, bytes_: int) -> None:
    """Neither those with the store, nor within the node, nor over another interface; a new connection counts whole."""
    assert counted(Counting(BEFORE, LATER, REBORN), Traffic(direction))[:2] == (bytes_, PASSING_BYTES_MIN)


def test_what_counts_is_the_named_peers_and_what_is_sent_into_a_cut() -> None:
    peer = cast(Node, SimpleNamespace(address=PEER))
    assert counted(Counting(BEFORE, LATER, REBORN), Traffic("egress", (peer,)))[0] == 5000
    assert counted(Counting(BEFORE, LATER, REBORN), Traffic("egress", "nodes", (peer,)))[0] == 70_000
    assert counted(Counting(BEFORE, LATER, LATER), Traffic("ingress"), cuts=True)[:2] == (5000, CUT_BYTES_MIN)
    assert counted(Counting(BEFORE, LATER, LATER), Traffic("both", "control"))[:2] == (2 * 9994, 0)


MUCH = 10**6
INTO_A_CUT = [
    (MUCH, 0, None),
    (MUCH, 992, None),
    *((*each, CUT_BYTES_MIN) for each in ((MUCH, 1584), (500, 0), (500, 99))),
]


@pytest.mark.parametrize(("before", "sent", "least"), INTO_A_CUT)
def test_few_bytes_into_a_cut_decide_nothing_where_much_went_before(before: int, sent: int, least: int | None) -> None:
    """A worker that waits for an answer sends nothing more; a connection that never carried much is a store's."""
    was, now = (seen((1, OWN, PEER, bytes_, 0)) for bytes_ in (before, before + sent))
    assert counted(Counting(was, now, now), Traffic(), cuts=True)[:2] == (sent, least)


def test_what_cannot_be_measured_proves_nothing_and_rdma_that_went_around_is_named() -> None:
    idle = [seen((1, OWN, PEER, 100, 100), rdma=at) for at in (0, 10**9, 2 * 10**9)]
    bytes_, least, detail = counted(Counting(*idle), Traffic())
    assert (bytes_, least) == (0, PASSING_BYTES_MIN) and "RDMA ports carried 2000000000 bytes" in detail
    blind = [NodeGone("node0 is gone")] * 3
    assert counted(Counting(*blind), Traffic())[:2] == (None, None)
    assert counted(Counting(BEFORE, BEFORE, BEFORE), Traffic(), seconds=0.1)[:2] == (0, None)
    assert counted(Counting(BEFORE, LATER, LATER), Traffic(), seconds=0.1)[:2] == (7000, PASSING_BYTES_MIN)
    assert counted(Counting(BEFORE, LATER, NodeGone("gone")), Traffic())[0] == 7000


def test_the_kernel_counts_the_bytes_of_a_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver = server.accept()[0]
        sender.sendall(bytes(5000))
        assert len(receiver.recv(5000, socket.MSG_WAITALL)) == 5000
        me = processes.read(os.getpid())
        assert me is not None
        mine = net_connections.report([me], [os.getpid()])["connections"]
        assert [(row["sent"], row["received"]) for row in mine if row["sent"]] == [(5000, 0)]
        assert net_connections.report([me], [1])["connections"] == []  # another process's
        assert net_connections.report([], [1])["of_processes"] is False
        receiver.close()


@pytest.fixture(params=["root", "user"])
def talking(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[LocalCluster]:
    machine.need_mode(request.param)
    workload = Launch(("{python}", "-c", TALK, "{index}", "{head}"), 2, 1, control=("sleep", "300"))
    run_id = f"own-{os.getpid()}-{next(_numbers)}"
    with LocalCluster(workload, tmp_path, run_id, request.param) as lab:
        lab.start()
        yield lab


_numbers = itertools.count()


def test_a_node_tells_the_bytes_of_its_own_processes(talking: LocalCluster) -> None:
    receiver, sender = talking.nodes
    until(lambda: any(each.sent for each in sender.connections(sender.pids()).each), "bytes")
    found = sender.connections(sender.pids())
    assert found.of_processes
    assert {(each.local, each.remote) for each in found.each} == {(sender.address, receiver.address)}
    assert sender.connections([99_999]).each == ()
    assert [each.sent for each in receiver.connections(receiver.pids()).each] == [0]
