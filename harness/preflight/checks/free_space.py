"""There is room for the checkpoints that are kept, and for one more that is being written."""

from __future__ import annotations

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, Size


class Room(msgspec.Struct):
    free_bytes: Size | None = None


class Node(msgspec.Struct):
    paths: dict[str, Room] = {}


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
        for node, values in seen.by_node("node", Node).items():
            told = [room.free_bytes for path, room in values.paths.items() if path.endswith(seen.saves)]
            free |= {node: told[0]} if told and told[0] is not None else {}
        if not free:
            return Judged(not_judged="no node told of the free space where checkpoints go")
        words = f"{needed / 2**20:,.0f} MiB for {seen.plan.workload.checkpoint.keep} saves and one more; free: "
        findings = [
            Finding(f"{words}{room / 2**20:,.0f} MiB on {node}", nodes=[node], figure=room, usual=needed, unit="bytes")
            for node, room in free.items()
            if room < needed
        ]
        return Judged(words + f"{min(free.values()) / 2**20:,.0f} MiB at least", findings)


CHECK = FreeSpace()
