"""The common parts of faults that limit a node's memory, and the check that the limit is gone."""

import contextlib
from typing import Literal

from pydantic import Field, PrivateAttr

from harness.backends.contract import Node, Verb
from harness.errors import NodeGone
from harness.faults.contract import Context, Fault, Targets

BEYOND_BYTES = 32 * 2**20  # how much more than the limit left a stranger tries to get
FILL_BYTES_MAX = 256 * 2**20  # more is not taken from a machine only to look


class MemoryFault(Fault):
    runbook = "F6"
    _limits: dict[Node, int] = PrivateAttr(default_factory=dict)

    def heal(self, targets: Targets, context: Context) -> None:
        super().heal(targets, context)
        for node in self._limits:
            with contextlib.suppress(NodeGone):  # and its limits with it
                node.limit_memory(None)

    def see_end(self, targets: Targets, context: Context) -> None:
        """Checks that a test process can take more memory than the limit. Checks nothing if a test process would need
        more than `FILL_BYTES_MAX` bytes."""
        for node, limit_bytes in self._limits.items():
            before = node.memory_use()
            wanted_bytes = max(0, limit_bytes - before.used_bytes) + BEYOND_BYTES
            if wanted_bytes <= FILL_BYTES_MAX:
                got = node.fill_memory(wanted_bytes, spare=False)
                killed = node.memory_use().kills - before.kills
                ok, detail = got >= wanted_bytes and not killed, f"{node.name}: {killed} processes killed for it"
                context.ended(got, wanted_bytes, "bytes available", ok=ok, detail=detail)


class LimitedMemory(MemoryFault):
    how: Literal["auto", "kernel", "watchdog"] = Field(
        "auto", description="Whose limit: the kernel's (OOM killer), a watchdog's (SIGKILL), or the first there is."
    )

    needs = frozenset({Verb.MEMORY})

    def needed(self) -> frozenset[Verb]:
        return self.needs | {Verb.MEMORY_KERNEL} if self.how == "kernel" else self.needs

    def heal(self, targets: Targets, context: Context) -> None:
        for target in targets:
            with contextlib.suppress(NodeGone):  # and its limits with it
                context.node(target).limit_memory(None)

    def see_end(self, targets: Targets, context: Context) -> None:
        for node, limit_bytes in self._limits.items():
            see_memory_end(node, limit_bytes, context)


def see_memory_end(node: Node, limit_bytes: int, context: Context) -> None:
    """Checks that a test process can take more memory than `limit_bytes` would leave. Checks nothing if a test process
    would need more than `FILL_BYTES_MAX` bytes."""
    before = node.memory_use()
    wanted_bytes = max(0, limit_bytes - before.used_bytes) + BEYOND_BYTES
    if wanted_bytes > FILL_BYTES_MAX:
        return
    got = node.fill_memory(wanted_bytes, spare=False)
    killed = node.memory_use().kills - before.kills
    ok = got >= wanted_bytes and not killed
    context.ended(got, wanted_bytes, "bytes available", ok=ok, detail=f"{node.name}: {killed} processes killed for it")
