"""A rank's memory grows and grows, for example because the data loader keeps all batches."""

import pathlib

from pydantic import Field

from harness.backends.contract import Node, Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.faults.shared.memory_faults import MemoryFault
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.strikes import LEAKING
from harness.units import Duration, Size

GROWN_MIN = 0.25  # of the room, until the leak counts as one
LEFT_BYTES_MIN = 2**30  # of this machine's memory, beyond what the leak may take


class MemoryLeak(MemoryFault, inside.InsideFault):
    """After its next step, the process of a rank takes `rate` more memory each second. The kernel kills the rank when
    its node uses `room` more memory than at the start of the fault. A trainer can notice the leak and stop in time.

    The trainer must log the harness's events, or run with the harness's observer, which logs these events.
    """

    rate: Size = Field(Size("16MiB"), description="How much the process takes in a second.")
    room: Size = Field(Size("192MiB"), description="How much more than now the node may use.")
    within: Duration = Field(Duration("2m"), description="How long the leak lasts if the job does not end it.")

    needs = frozenset({Verb.SIGNAL, Verb.MEMORY, Verb.MEMORY_KERNEL})
    may = frozenset({May.STOP, May.LEAK})
    truth = Truth((Kind.CRASH,), Place.RANK, (Decision.RESTART_IN_PLACE,))
    aims_at = "rank"

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.at_the_next_step(targets, "leak", f"{self.rate.bytes} {2 * self.room.bytes}")

    def describe(self, targets: Targets) -> str:
        end = f"{self.room} above what its node uses it is killed"
        return f"{name_ranks(targets)} takes {self.rate} of memory a second; {end}"

    def inject(self, targets: Targets, context: Context) -> None:
        _spare_this_machine(self.room.bytes * len(targets))
        victims = self.find_victims(targets, context)
        before: dict[Node, int] = {}
        for node, pid in victims.values():
            before.setdefault(node, node.memory_use().used_bytes)
            self._limits[node] = before[node] + self.room.bytes
            node.limit_memory(self._limits[node], "kernel")
            node.doom(pid)
        inside.strike_each(targets, context, LEAKING)
        wanted = round(GROWN_MIN * self.room.bytes)
        for rank, (node, pid) in victims.items():
            most, gone = self._grown(node, pid, before[node], wanted, context)
            least = wanted // 2 if gone else wanted  # a trainer may foresee the end, and leave
            detail = f"rank {rank} on {node.name}: limit {self._limits[node] / 2**20:.0f} MiB"
            detail += "; then it was gone" if gone else ""
            context.effect(most, least, "bytes taken", ok=most >= least, detail=detail)
        context.wait(self.within.s, until=lambda: all(inside.is_gone(*victim) for victim in victims.values()))

    def _grown(self, node: Node, pid: int, before: int, wanted: int, context: Context) -> tuple[int, bool]:
        most = 0

        def seen() -> bool:
            nonlocal most
            gone = inside.is_gone(node, pid)
            most = most if gone else max(most, node.memory_use().used_bytes - before)
            return gone or most >= wanted

        context.wait(self.within.s, until=seen)
        return most, inside.is_gone(node, pid)


def _spare_this_machine(wanted: int) -> None:
    """Raises `FaultError` if the leak could take memory that other programs on this machine need."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    if free is not None and free < wanted + LEFT_BYTES_MIN:
        text = f"the leak may take {wanted / 2**20:.0f} MiB, and only {free / 2**20:.0f} MiB are free on this machine"
        raise FaultError(f"{text}: make `room` smaller, so that {LEFT_BYTES_MIN / 2**20:.0f} MiB are left")


FAULT = MemoryLeak
