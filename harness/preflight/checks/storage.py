"""Checks that every node can write, sync, read and list checkpoints, and that no node is much slower than the
others."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, accused, below_the_others
from harness.units import counted

SLOW = 0.33  # of the median of the others: a shared disk has its moods
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Told(msgspec.Struct):
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    write_s: Seconds = 0.0
    fsync_s: Seconds = 0.0
    read_s: Seconds = 0.0
    list_s: Seconds = 0.0
    same: bool = False
    listed: bool = False
    error: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Storage(Check):
    title = "Checkpoint storage"
    order = 7
    probe = "storage"
    least = SLOW
    cause = "another mount or path to the file server than the other nodes have, or a disk that fails"

    def judge(self, seen: Seen) -> Judged:
        if seen.plan.workload.checkpoint.store != "directory":
            return Judged(not_judged="checkpoints go to an object store, which is not looked at")
        told = seen.by_node("storage", Told)
        findings = seen.silent("its storage", told)
        for node, values in told.items():
            if wrong := _wrong(values):
                findings.append(Finding(f"checkpoints cannot be saved on {node}: {wrong[0]}", wrong[1], [node]))
        good = {node: values for node, values in told.items() if not _wrong(values)}
        writes = {node: each.bytes / max(each.write_s + each.fsync_s, 1e-6) for node, each in good.items()}
        reads = {node: each.bytes / max(each.read_s, 1e-6) for node, each in good.items()}
        for what, speeds in (("writes", writes), ("reads back", reads)):
            for node, usual in below_the_others(speeds, SLOW).items():
                slow, others = (f"{speed / 1e6:.0f} MB/s" for speed in (speeds[node], usual))
                words = f"{node} {what} checkpoints at {slow}, the others at {others}"
                where: dict[str, Any] = {"nodes": [node], "figure": speeds[node], "usual": usual, "unit": "bytes/s"}
                findings.append(accused(words, self.cause, speeds[node] / usual, len(speeds) - 1, seen, **where))
        figures = {f"written by {node} (bytes/s)": each for node, each in writes.items()}
        figures |= {f"read by {node} (bytes/s)": each for node, each in reads.items()}
        words = f"{counted(len(good), 'node')} wrote, synced, read and listed"
        if good:
            least = [f"{min(each.values()) / 1e6:.0f} MB/s" for each in (writes, reads)]
            words += f"; the slowest writes and syncs {least[0]}, and reads {least[1]}"
        return Judged(words, findings, figures)


def _wrong(values: Told) -> tuple[str, str] | None:
    if values.error:
        return values.error, "a full disk or quota, a mount that is read-only, or rights"
    if not values.same:
        return "what was read back is not what was written", "a disk, a controller or a file server that fails"
    if not values.listed:
        return "a file that was made is not listed", "a file system that shows changes late to others"
    return None


CHECK = Storage()
