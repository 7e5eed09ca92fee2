"""What faults of memory share: whether a node may use more again than its limit allowed."""

from __future__ import annotations

from harness.backends.contract import Node
from harness.faults.contract import Context

BEYOND_BYTES = 32 * 2**20  # how much more than the limit left a stranger tries to get
FILL_BYTES_MAX = 256 * 2**20  # more is not taken from a machine only to look


def see_memory_end(node: Node, limit_bytes: int, context: Context) -> None:
    """A stranger on the node, the first to be killed for it, takes more than `limit_bytes` would leave to it.

    Where that is more than `FILL_BYTES_MAX`, because the node uses so little now, nothing is told.
    """
    before = node.memory_use()
    wanted_bytes = max(0, limit_bytes - before.used_bytes) + BEYOND_BYTES
    if wanted_bytes > FILL_BYTES_MAX:
        return
    got = node.fill_memory(wanted_bytes, spare=False)
    killed = node.memory_use().kills - before.kills
    ok = got >= wanted_bytes and not killed
    context.ended(got, wanted_bytes, "bytes available", ok=ok, detail=f"{node.name}: {killed} processes killed for it")
