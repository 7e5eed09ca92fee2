"""Counts the training's own bytes on a path that a network fault disturbs.

A disturbance of IP traffic does not affect NCCL over RDMA, and a job can use an interface or a path that the fault does
not touch. The kernel's counters of the workers' TCP connections are read to see whether a fault meets their traffic.
"""

from __future__ import annotations

from harness.backends.contract import Node, Traffic
from harness.errors import ChaosError
from harness.faults.contract import Context
from harness.node.types import Connection

PASSING_BYTES_MIN, PASSING_RATE_MIN = 4096, 200  # less (bytes; bytes a second) is a store's keep-alive, no gradients
CUT_BYTES_MIN = 1000  # into a cut goes no more than the first window of a connection, or less: who waits sends nothing
SECONDS_MIN = 0.5  # a shorter look proves nothing


class OwnTraffic:
    def __init__(self, node: Node, traffic: Traffic, cuts: bool, context: Context):
        self.node = node
        self.bytes = 0
        self.connections: set[int] = set()
        self._traffic, self._cuts, self._context = traffic, cuts, context
        self._last: dict[int, int] = {}
        self._peers: set[str] = set()
        self._whose = "the workers"
        self._rdma: list[int] = []  # first and latest
        self._unknown = ""

    def look(self, count: bool = True) -> None:
        """Adds the bytes that each TCP connection of the workers has carried since the last call. If `count` is False,
        only notes the present counters. Does nothing for a node that no longer exists."""
        try:
            found = self.node.connections(self._context.worker_pids(self.node))
        except (ChaosError, OSError) as error:
            self._unknown = self._unknown or str(error)
            return
        self._whose = "the workers" if found.of_processes else "the node"
        self._rdma = [*self._rdma[:1], found.rdma_bytes] if found.rdma_bytes is not None else self._rdma
        now = {each.cookie: self._passed(each) for each in found.each if self._is_met(each)}
        if count:
            grown = {cookie: passed - self._last.get(cookie, 0) for cookie, passed in now.items()}
            self.bytes += sum(grown.values())
            self.connections.update(cookie for cookie, more in grown.items() if more)
        self._last |= now

    def tell(self, seconds: float) -> None:
        """Reports how many of the training's bytes passed the disturbed path while the fault acted, for `seconds`."""
        if self._unknown and not self._last and not self.bytes:
            self._context.traffic(self.node, None, None, seconds, f"not measured: {self._unknown}")
            return
        least = self._least(seconds)
        text = f"of {self._whose}, {len(self.connections)} TCP connections with other nodes"
        if self.bytes < least and len(self._rdma) > 1 and (rdma := self._rdma[-1] - self._rdma[0]):
            text += f"; RDMA ports carried {rdma} bytes meanwhile, and RDMA goes around what disturbs IP"
        used = max(self._last.values(), default=0) >= PASSING_BYTES_MIN  # over the whole life of a connection
        undecided = seconds < SECONDS_MIN or (self._cuts and used)
        unknown = self.bytes < least and undecided
        self._context.traffic(self.node, self.bytes, None if unknown else least, seconds, text)

    def _least(self, seconds: float) -> int:
        if self._traffic.peers == "control":  # the workers have little to say to the store
            return 0
        return CUT_BYTES_MIN if self._cuts else max(PASSING_BYTES_MIN, int(PASSING_RATE_MIN * seconds))

    def _passed(self, each: Connection) -> int:
        if self._cuts:  # what was tried: nothing arrives
            return each.sent
        both = {"egress": each.sent, "ingress": each.received, "both": each.sent + each.received}
        return both[self._traffic.direction]

    def _is_met(self, each: Connection) -> bool:
        others = {node.address for node in self._context.cluster.nodes} - {self.node.address}
        self._peers |= others
        peers = self._traffic.peers
        if each.local != self.node.address or each.remote in {node.address for node in self._traffic.spared}:
            return False
        if peers == "control":
            return each.remote not in self._peers | {self.node.address}
        return each.remote in (self._peers if isinstance(peers, str) else {node.address for node in peers})
