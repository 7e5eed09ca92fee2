"""Checks that the file system has room for the checkpoints that the job keeps, and for one more checkpoint."""

from __future__ import annotations

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, Size
from harness.units import counted


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
        kept, whence = _kept(seen)
        needed = max(sizes) * (kept + 1)
        free = dict[str, int]()
        for node, values in seen.by_node("node", Node).items():
            told = [room.free_bytes for path, room in values.paths.items() if path.endswith(seen.saves)]
            free |= {node: told[0]} if told and told[0] is not None else {}
        if not free:
            return Judged(not_judged="no node told of the free space where checkpoints go")
        words = f"{needed / 2**20:,.0f} MiB for {counted(kept, 'save')} ({whence}) and one more; free: "
        findings = [
            Finding(f"{words}{room / 2**20:,.0f} MiB on {node}", nodes=[node], figure=room, usual=needed, unit="bytes")
            for node, room in free.items()
            if room < needed
        ]
        return Judged(words + f"{min(free.values()) / 2**20:,.0f} MiB at least", findings)


def _kept(seen: Seen) -> tuple[int, str]:
    planned, run = seen.plan.workload.checkpoint.keep, seen.canary.evidence.run if seen.canary else None
    if run is None or run.left is None or run.unseen:
        return planned, "as the scenario says"
    left = int(run.left.get("count") or 0)
    if run.removed and left:
        return left, "as many as it kept"
    return max(planned, left), f"it removed none of {left}" if left > planned else "as the scenario says"


CHECK = FreeSpace()
