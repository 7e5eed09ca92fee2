"""A node runs out of memory, and a process on the node is killed to free memory."""

import functools

from pydantic import Field

from harness.faults.contract import Context, Targets, name_ranks, ranks_of
from harness.faults.shared.inside import is_gone
from harness.faults.shared.memory_faults import LimitedMemory
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration, Size

GONE_WITHIN_S = 5.0


class Oom(LimitedMemory):
    """A process of the harness takes the last memory of the rank's node, and the rank's worker is killed to free
    memory."""

    headroom: Size = Field(Size("16MiB"), description="How much more than it uses now the node may use.")
    duration: Duration = Field(Duration("0s"), description="How long the limit stays after the kill.")

    may = frozenset({May.KILL})
    aims_at = "rank"
    truth = Truth((Kind.CRASH,), Place.RANK, (Decision.RESTART_IN_PLACE,))

    def describe(self, targets: Targets) -> str:
        limit = f"{self.headroom} above what it uses"
        return f"the node of {name_ranks(targets)} runs out of memory {limit}; the worker is killed"

    def inject(self, targets: Targets, context: Context) -> None:
        for rank in ranks_of(targets):
            node, pid = context.pid_of(rank)
            before = node.memory_use()
            limit_bytes = before.used_bytes + self.headroom.bytes
            self._limits[node] = limit_bytes
            who = node.limit_memory(limit_bytes, self.how)
            node.doom(pid)
            context.injected()
            node.fill_memory(2 * self.headroom.bytes, spare=True)
            gone = context.wait(GONE_WITHIN_S, until=functools.partial(is_gone, node, pid))
            killed = node.memory_use().kills - before.kills
            detail = f"rank {rank} on {node.name}, by the {who}, at {limit_bytes / 2**20:.0f} MiB; "
            detail += "its worker is gone" if gone else "its worker is still there"
            context.effect(killed, 1, "processes killed for memory", ok=gone and killed >= 1, detail=detail)
        context.wait(self.duration.s)


FAULT = Oom
