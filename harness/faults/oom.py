"""A node runs out of memory and a process there is killed for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PrivateAttr

from harness.backends.contract import Node, Verb
from harness.errors import NodeGone
from harness.faults.contract import Context, Fault, Target
from harness.faults.shared.memory import see_memory_end
from harness.log.consequences import May
from harness.units import Duration, Size

GONE_WITHIN_S = 5.0


class Oom(Fault):
    """Something on the rank's node eats the last memory; the rank's worker is the process that is killed for it."""

    how: Literal["auto", "kernel", "watchdog"] = Field(
        "auto", description="Whose limit: the kernel's (OOM killer), a watchdog's (SIGKILL), or the first there is."
    )
    headroom: Size = Field(Size("16MiB"), description="How much more than it uses now the node may use.")
    duration: Duration = Field(Duration("0s"), description="How long the limit stays after the kill.")

    runbook = "F6"
    needs = frozenset({Verb.MEMORY})
    may = frozenset({May.KILL})
    aims_at = "rank"
    _limits: dict[Node, int] = PrivateAttr(default_factory=dict)

    def lasts(self) -> Duration | None:
        return self.duration

    def needed(self) -> frozenset[Verb]:
        return self.needs | {Verb.MEMORY_KERNEL} if self.how == "kernel" else self.needs

    def describe(self, targets: Sequence[Target]) -> str:
        ranks = ", ".join(str(target.rank) for target in targets)
        return f"the node of rank {ranks} runs out of memory {self.headroom} above what it uses; the worker is killed"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        for target in targets:
            assert target.rank is not None  # the planner resolves `aims_at: rank` to ranks
            node, pid = context.pid_of(target.rank)
            before = node.memory_use()
            limit_bytes = before.used_bytes + self.headroom.bytes
            self._limits[node] = limit_bytes
            who = node.limit_memory(limit_bytes, self.how)
            node.doom(pid)
            context.injected()
            node.fill_memory(2 * self.headroom.bytes, spare=True)
            gone = context.wait(GONE_WITHIN_S, until=functools.partial(_is_gone, node, pid))
            killed = node.memory_use().kills - before.kills
            detail = f"rank {target.rank} on {node.name}, by the {who}, at {limit_bytes / 2**20:.0f} MiB; "
            detail += "its worker is gone" if gone else "its worker is still there"
            context.effect(killed, 1, "processes killed for memory", ok=gone and killed >= 1, detail=detail)
        context.wait(self.duration.s)

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        for target in targets:
            with contextlib.suppress(NodeGone):  # and its limits with it
                context.node(target).limit_memory(None)

    def see_end(self, targets: Sequence[Target], context: Context) -> None:
        for node, limit_bytes in self._limits.items():
            see_memory_end(node, limit_bytes, context)


def _is_gone(node: Node, pid: int) -> bool:
    return pid not in node.pids()


FAULT = Oom
