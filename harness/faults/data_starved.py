"""Training data comes slowly while the job trains, for example because of a cold cache or a busy file server."""

from __future__ import annotations

from pydantic import Field, model_validator

from harness.backends.contract import Node
from harness.faults.contract import Context, Folder, Targets
from harness.faults.shared.storage_faults import StorageFault
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter import abnormal
from harness.node.types import StorageRule
from harness.units import Duration


class DataStarved(StorageFault):
    """Delays each read of the training data. A loader that reads ahead can hide the delay, and the report then says
    so."""

    directory: Folder = Field("data", description="The folder of the shards, below the run's.")
    latency: Duration = Field(Duration("100ms"), description="Each read waits so long.")

    runbook = "F10"
    truth = Truth((Kind.STORAGE, Kind.BAD_DATA), Place.JOB, (Decision.IGNORE,))

    @model_validator(mode="after")
    def _ends_in_time(self) -> DataStarved:
        if not 0 < self.latency.ns <= self.duration.ns / 2:
            raise ValueError(f"latency: {self.latency} must be above 0 and at most half of the duration")
        return self

    def describe(self, targets: Targets) -> str:
        return f"each read of training data waits {self.latency}: {self.where(targets)}"

    def rule(self, seed: int) -> StorageRule:
        return StorageRule(self.path, ("read",), delay_s=self.latency.s)

    def cost(self, node: Node, since_ns: int, context: Context) -> str:
        text = ""
        for rank in context.ranks_on(node):
            share = context.data_wait_share(rank, since_ns)
            if share is None:
                text += f"; rank {rank} ended no step that tells its wait for data"
                continue
            hidden = ": its loader hid the delay" if share <= abnormal.DATA_WAIT_SHARE else ""
            text += f"; rank {rank} waited for data {share:.1%} of its step time{hidden}"
        return text

    def judge(self, counts: dict[str, int], context: Context, detail: str) -> None:
        self.judge_delay(counts, self.latency.s, context, f"{detail}; {counts['waits']} reads waited")


FAULT = DataStarved
