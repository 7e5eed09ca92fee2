"""A node loses power in the middle of a checkpoint: the node is lost, and so are all writes that were not durable
yet."""

from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, TakesNodes, Targets, name_nodes
from harness.faults.shared.storage_faults import OnStorage
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import StorageRule
from harness.units import Duration, Size

LOOK_S = 0.02

_LOSSES = {
    "prefix": "only what was written before is left",
    "reordered": "a random half of the pages not yet synced is left",
    "fsync_lied": "fsync had lied: the published files hold zeros",
    "rename_lost": "the rename that published it is lost",
}


class CheckpointTornWrite(TakesNodes, OnStorage):
    """The node's power fails while a checkpoint is written or just after the checkpoint's rename. Data that is not yet
    on the disk is lost."""

    kind: Literal["prefix", "reordered", "fsync_lied", "rename_lost"] = Field("prefix", description="What is lost.")
    after_bytes: Size = Field(
        Size("64KiB"), description="prefix, reordered: the power fails at this byte of the files."
    )
    within: Duration = Field(Duration("60s"), description="A checkpoint must come so soon.")

    runbook = "F4"
    damages = True
    needs = frozenset({Verb.KILL, Verb.STORAGE})
    truth = Truth((Kind.CRASH, Kind.STORAGE), Place.NODE, (Decision.RESTART_ELSEWHERE,))

    def describe(self, targets: Targets) -> str:
        moment = f"{self.after_bytes} into {self.path}" if self._counts_bytes() else f"after the rename of {self.path}"
        power = f"power fails on {name_nodes(targets)} {moment} in {self.directory}/"
        return f"{power}, {_LOSSES[self.kind]}; {self.describe_replacement()}"

    def inject(self, targets: Targets, context: Context) -> None:
        self.disturb(targets, context)
        context.ready()
        hit = self._wait_for_cut(targets, context)
        context.injected()
        self._judge(dict(self._acting[hit].counts()), context)
        self.take([context.node(target) for target in targets], "power lost", context)

    def _counts_bytes(self) -> bool:
        return self.kind in ("prefix", "reordered")

    def rule(self, seed: int) -> StorageRule:
        after = self.after_bytes.bytes if self._counts_bytes() else 0
        operations = ("write",) if self._counts_bytes() else ("rename",)
        return StorageRule(self.path, operations, after_bytes=after, power=self.kind, seed=seed)

    def _wait_for_cut(self, targets: Targets, context: Context) -> int:
        for _ in range(round(self.within.s / LOOK_S)):
            for number, disturbance in enumerate(self._acting):
                if disturbance.counts()["cut"]:
                    return number
            context.wait(LOOK_S)
        what, hint = ("write", "") if self._counts_bytes() else ("rename", "; a trainer without any needs kind prefix")
        where = f"in {self.directory}/{self.path} within {self.within}"
        raise FaultError(f"{name_nodes(targets)}: no such {what} {where}{hint}")

    def _judge(self, counts: dict[str, int], context: Context) -> None:
        detail = f"{self.kind}: {counts['bytes']} bytes had been written, {counts['lost_bytes']} of them lost"
        if self.kind == "prefix":
            asked = self.after_bytes.bytes
            context.effect(counts["bytes"], asked, "bytes left", ok=counts["bytes"] == asked, detail=detail)
        elif self.kind == "rename_lost":
            lost = counts["lost_renames"]
            context.effect(lost, 1, "renames lost", ok=lost == 1, detail=detail)
        else:
            lost = counts["lost_bytes"]
            context.effect(lost, max(1, lost), "bytes lost", ok=lost > 0, detail=detail)


FAULT = CheckpointTornWrite
