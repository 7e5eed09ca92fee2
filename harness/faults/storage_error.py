"""Storage answers with an error, for example because of a failing disk or an exceeded quota."""

import math
from typing import Literal

from pydantic import Field

from harness.faults.contract import Context, Targets
from harness.faults.shared.storage_faults import Operation, StorageFault
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import StorageRule
from harness.units import Size


class StorageError(StorageFault):
    """All file operations of a node fail, or a share of them. With `after_bytes`, the write that exceeds this number of
    bytes is cut at the limit, and later writes fail."""

    operations: tuple[Operation, ...] = Field(("write", "fsync", "rename"), description="Which operations fail.")
    error: Literal["EIO", "ESTALE", "EROFS", "EDQUOT", "EACCES", "ETIMEDOUT"] = Field(
        "EIO", description="The error they return."
    )
    after_bytes: Size = Field(Size("0B"), description="Bytes that are still written before the first failure.")
    times: int = Field(0, ge=0, description="At most so many failures; 0: no limit.")
    share: float = Field(1.0, gt=0, le=1, description="This share of the operations fails.")

    runbook = "F4"
    may = frozenset({May.STOP, May.SPOIL})
    truth = Truth((Kind.STORAGE,), Place.JOB, (Decision.IGNORE, Decision.STOP))

    def describe(self, targets: Targets) -> str:
        what = ", ".join(self.operations)
        share = f"{self.share:.0%} of " if self.share < 1 else ""
        after = f" after {self.after_bytes}" if self.after_bytes.bytes else ""
        return f"{share}{what} fail with {self.error}{after}: {self.where(targets)}"

    def rule(self, seed: int) -> StorageRule:
        after = self.after_bytes.bytes
        return StorageRule(
            self.path, self.operations, self.error, after_bytes=after, times=self.times, share=self.share, seed=seed
        )

    def judge(self, counts: dict[str, int], context: Context, detail: str) -> None:
        failed, expected = counts["failed"], self.share * counts["tried"]
        tolerance = 3 * math.sqrt(expected * (1 - self.share)) + 0.5
        ok = failed > 0 and abs(failed - expected) <= tolerance
        detail = f"{detail}: {counts['matched']} in all"
        context.effect(failed, round(expected), "operations failed", ok=ok, detail=detail)


FAULT = StorageError
