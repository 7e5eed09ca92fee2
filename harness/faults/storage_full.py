"""The disk becomes full: after a given number of bytes, writes fail with ENOSPC."""

from pydantic import Field

from harness.faults.contract import Context, Targets
from harness.faults.shared.storage_faults import StorageFault
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import StorageRule
from harness.units import Size


class StorageFull(StorageFault):
    """After `free` more bytes, no space is left, and `statfs` reports no free space. Existing files can still be read
    and deleted."""

    free: Size = Field(Size("0B"), description="What still fits, to the byte.")

    runbook = "F4"
    may = frozenset({May.STOP, May.SPOIL})
    truth = Truth((Kind.STORAGE,), Place.JOB, (Decision.IGNORE, Decision.STOP))

    def describe(self, targets: Targets) -> str:
        return f"no space left after {self.free}: {self.where(targets)}"

    def rule(self, seed: int) -> StorageRule:
        operations = ("write",) if self.free.bytes else ("write", "create", "mkdir")
        return StorageRule(self.path, operations, "ENOSPC", after_bytes=self.free.bytes)

    def judge(self, counts: dict[str, int], context: Context, detail: str) -> None:
        free = self.free.bytes
        filled = counts["bytes"] == free and counts["failed"] > 0
        detail = f"{detail}: {counts['failed']} operations refused"
        context.effect(counts["bytes"], free, "bytes that still fitted", ok=filled, detail=detail)


FAULT = StorageFull
