"""A node has hardly any memory left: caches are dropped again and again, and processes that need more are killed."""

from pydantic import Field

from harness.faults.contract import Context, Targets, name_nodes
from harness.faults.shared.memory_faults import BEYOND_BYTES, LimitedMemory
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration, Size

TOLERANCE = 0.25  # of what is free: the node goes on using memory while it is measured


class MemoryPressure(LimitedMemory):
    """Limits a node's memory to `free` more than the node uses. If the job needs more memory, its processes can be
    killed, as by the fault `oom`."""

    free: Size = Field(Size("64MiB"), description="What the node may still use, caches included.")
    duration: Duration = Field(Duration("20s"), description="How long it lasts.")

    may = frozenset({May.STOP})
    truth = Truth((Kind.NONE, Kind.STRAGGLER, Kind.CRASH), Place.NODE, (Decision.IGNORE,))

    def describe(self, targets: Targets) -> str:
        return f"{name_nodes(targets)} left with {self.free} of free memory for {self.duration}"

    def inject(self, targets: Targets, context: Context) -> None:
        free_bytes = self.free.bytes
        context.injected()
        for target in targets:
            node = context.node(target)
            before = node.memory_use()
            self._limits[node] = before.used_bytes + free_bytes
            who = node.limit_memory(self._limits[node], self.how)
            got = node.fill_memory(free_bytes + BEYOND_BYTES, spare=False)
            killed = node.memory_use().kills - before.kills
            ok = killed == 1 and abs(got / free_bytes - 1) <= TOLERANCE
            detail = f"{node.name}: {killed} process killed for more, by the {who}"
            context.effect(got, free_bytes, "bytes available", ok=ok, detail=detail)
        context.wait(self.duration.s)


FAULT = MemoryPressure
