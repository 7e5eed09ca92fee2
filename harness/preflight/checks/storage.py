"""Checkpoints can be written, synced, read and listed on every node, and no node is much slower at it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, below_the_others
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
        told = {each.node: values for each, values in seen.of("storage", Told)}
        findings = seen.silent("its storage", told)
        for node, values in told.items():
            findings += [_bad(node, why, cause) for why, cause in _wrong(values)][:1]
        good = {node: values for node, values in told.items() if not any(_wrong(values))}
        writes = {node: each.bytes / max(each.write_s + each.fsync_s, 1e-6) for node, each in good.items()}
        reads = {node: each.bytes / max(each.read_s, 1e-6) for node, each in good.items()}
        for what, speeds in (("writes", writes), ("reads back", reads)):
            for node, usual in below_the_others(speeds, SLOW).items():
                words = (
                    f"{node} {what} checkpoints at {speeds[node] / 1e6:.0f} MB/s, the others at {usual / 1e6:.0f} MB/s"
                )
                findings.append(
                    Finding(
                        words=words, cause=self.cause, nodes=[node], figure=speeds[node], usual=usual, unit="bytes/s"
                    )
                )
        figures = {f"written by {node} (bytes/s)": each for node, each in writes.items()}
        figures |= {f"read by {node} (bytes/s)": each for node, each in reads.items()}
        words = f"{counted(len(good), 'node')} wrote, synced, read and listed"
        if good:
            least = [f"{min(each.values()) / 1e6:.0f} MB/s" for each in (writes, reads)]
            words += f"; the slowest writes and syncs {least[0]}, and reads {least[1]}"
        return Judged(words=words, findings=findings, figures=figures)


def _wrong(values: Told) -> list[tuple[str, str]]:
    found = []
    if values.error:
        found.append((values.error, "a full disk or quota, a mount that is read-only, or rights"))
    elif not values.same:
        found.append(("what was read back is not what was written", "a disk, a controller or a file server that fails"))
    elif not values.listed:
        found.append(("a file that was made is not listed", "a file system that shows changes late to others"))
    return found


def _bad(node: str, why: str, cause: str) -> Finding:
    return Finding(words=f"checkpoints cannot be saved on {node}: {why}", cause=cause, nodes=[node])


CHECK = Storage()
