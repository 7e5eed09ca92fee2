"""Connections of a living process are closed, for example because a peer aborts its communicator."""

from __future__ import annotations

from harness.backends.contract import Node, Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Targets, name_ranks, ranks_of
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth


class ConnectionReset(inside.InsideFault):
    """Resets a rank's TCP connections to other ranks once, as if a communicator was aborted. Both ends of a connection
    get an error at once, and no process ends. TCP is used by gloo and by NCCL over sockets. The fault fails on a rank
    without a TCP connection to another rank.

    For connections that stay open while packets vanish, use `partition`. To kill a process, use `rank_kill`.
    """

    runbook = "F3"
    needs = frozenset({Verb.SIGNAL, Verb.NET_RESET, Verb.NET_DELAY})
    truth = Truth((Kind.NETWORK,), Place.NODE, (Decision.RESTART_IN_PLACE, Decision.IGNORE), either_side=True)

    def over_rdma(self) -> bool:
        return False

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: its connections to the other ranks are reset, and its process lives"

    def inject(self, targets: Targets, context: Context) -> None:
        victims = self.find_victims(targets, context)
        context.injected()
        for rank in ranks_of(targets):
            node, pid = victims[rank]
            before = _to_others(node, pid, context)
            if not before:
                why = "there is no other rank, or its communicator uses shared memory or RDMA"
                raise FaultError(f"rank {rank} has no TCP connection to another rank: {why}")
            node.reset_connections([pid])
            lives = not inside.is_gone(node, pid)
            closed = len(before - _to_others(node, pid, context))
            detail = f"rank {rank} on {node.name}: its process {'lives' if lives else 'is gone'}"
            ok = lives and closed == len(before)
            context.effect(closed, len(before), "connections closed", ok=ok, detail=detail)


def _to_others(node: Node, pid: int, context: Context) -> set[int]:
    nodes = {each.address for each in context.cluster.nodes}
    return {each.cookie for each in node.connections([pid]).each if each.remote in nodes}


FAULT = ConnectionReset
