"""Storage never answers, for example because the file server is gone."""

from collections.abc import Mapping
from typing import get_args

from pydantic import Field

from harness.faults.contract import Context, Targets
from harness.faults.shared.storage_faults import Operation, StorageFault
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import StorageRule

ALL: tuple[Operation, ...] = get_args(Operation)
UNANSWERED_S = 1.0  # a wait of a thread that shows the effect


class StorageHang(StorageFault):
    """File operations of a node get no answer: the calling threads wait in state D until the fault ends, and then
    continue. A SIGKILL ends a wait, as on a hard NFS mount."""

    operations: tuple[Operation, ...] = Field(ALL, description="Which operations get no answer.")

    runbook = "F4"
    may = frozenset({May.STOP, May.SPOIL})
    truth = Truth((Kind.STORAGE,), Place.JOB, (Decision.IGNORE, Decision.STOP))

    def describe(self, targets: Targets) -> str:
        what = "any operation" if self.operations == ALL else ", ".join(self.operations)
        return f"no answer to {what}: {self.where(targets)}"

    def rule(self, seed: int) -> StorageRule:
        return StorageRule(self.path, self.operations, hang=True)

    def shown(self) -> bool:
        return any(self._acts(each.counts()) for each in self._acting)

    def judge(self, counts: dict[str, int], context: Context, detail: str) -> None:
        unanswered, longest_s = counts["unanswered"], counts["longest_ns"] / 1e9
        detail += f": the longest waits for {longest_s:.1f} s; threads in state D: {counts['uninterruptible']}"
        context.effect(unanswered, 1, "operations without an answer", ok=self._acts(counts), detail=detail)

    def judge_end(self, counts: Mapping[str, int], context: Context, detail: str) -> None:
        longest_s = counts["longest_ns"] / 1e9
        detail += f": {counts['matched']} operations; threads in state D: {counts['uninterruptible']}"
        ok = longest_s >= self._least_s
        context.effect(longest_s, self._least_s, "s without an answer at most", ok=ok, detail=detail)

    def _acts(self, counts: Mapping[str, int]) -> bool:
        return counts["unanswered"] > 0 and counts["longest_ns"] >= self._least_s * 1e9

    @property
    def _least_s(self) -> float:
        return min(UNANSWERED_S, self.duration.s / 2)


FAULT = StorageHang
