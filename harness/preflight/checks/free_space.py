"""There is room for the checkpoints that are kept, and for one more that is being written."""

from __future__ import annotations

from typing import Annotated

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen


class Room(msgspec.Struct):
    free_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None


class Node(msgspec.Struct):
    paths: Annotated[dict[str, Room], msgspec.Meta(max_length=1000)] = {}


class FreeSpace(Check):
    title = "Room for checkpoints"
    order = 10
    needs = "canary"

    def judge(self, seen: Seen) -> Judged:
        saves = seen.canary.evidence.saves.whole if seen.canary else ()
        sizes = [size for save in saves if isinstance(size := save.size, int) and size > 0]
        if not sizes:
            return Judged(not_judged="the trainer told of no save with its size")
        needed = max(sizes) * (seen.plan.workload.checkpoint.keep + 1)
        free = dict[str, int]()
        for each, values in seen.of("node", Node):
            told = [room.free_bytes for path, room in values.paths.items() if path.endswith(seen.saves)]
            free |= {each.node: told[0]} if told and told[0] is not None else {}
        if not free:
            return Judged(not_judged="no node told of the free space where checkpoints go")
        words = f"{needed / 2**20:,.0f} MiB for {seen.plan.workload.checkpoint.keep} saves and one more; free: "
        findings = [
            Finding(
                words=words + f"{room / 2**20:,.0f} MiB on {node}",
                nodes=[node],
                figure=room,
                usual=needed,
                unit="bytes",
            )
            for node, room in free.items()
            if room < needed
        ]
        return Judged(words=words + f"{min(free.values()) / 2**20:,.0f} MiB at least", findings=findings)


CHECK = FreeSpace()
