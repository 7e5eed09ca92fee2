"""Storage is slow: each operation has a long latency, or there is little bandwidth."""

from __future__ import annotations

from pydantic import Field, model_validator

from harness.faults.contract import Context, Targets
from harness.faults.shared.storage_faults import TOLERANCE, StorageFault
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import StorageRule
from harness.units import Duration, Rate


class StorageSlow(StorageFault):
    """Each read, write and fsync waits for the time `latency`, and reads and writes together are limited to `rate`."""

    latency: Duration = Field(Duration("0ms"), description="Each operation waits so long.")
    rate: Rate | None = Field(None, description="The rate of all reads and writes together.")

    runbook = "F8"
    truth = Truth((Kind.STORAGE,), Place.JOB, (Decision.IGNORE,))

    @model_validator(mode="after")
    def _something_asked(self) -> StorageSlow:
        if self.latency.ns == 0 and self.rate is None:
            raise ValueError("give latency: 20ms, rate: 80mbit, or both")
        return self

    def describe(self, targets: Targets) -> str:
        rate = f"at most {self.rate}/s" if self.rate else ""
        latency = f"{self.latency} each" if self.latency.ns else ""
        return f"storage slowed to {' and '.join(filter(None, (rate, latency)))}: {self.where(targets)}"

    def rule(self, seed: int) -> StorageRule:
        delay_s = self.latency.s
        rate_bytes = self.rate.bits_per_s / 8 if self.rate else 0.0
        operations = ("read", "write", "fsync") if delay_s else ("read", "write")
        return StorageRule(self.path, operations, delay_s=delay_s, rate_bytes=rate_bytes)

    def judge(self, counts: dict[str, int], context: Context, detail: str) -> None:
        rule = self.rule(0)
        detail = f"{detail}: {counts['waits']} operations waited"
        if rule.rate_bytes:
            got = counts["bytes"] * 8 / max(1, counts["busy_ns"]) * 1e3
            asked = rule.rate_bytes * 8 / 1e6
            slow = counts["waits"] > 0 and got <= asked * (1 + TOLERANCE)  # the machine itself may be slower still
            context.effect(got, asked, "Mbit/s", ok=slow, detail=detail)
        else:
            self.judge_delay(counts, rule.delay_s, context, detail)


FAULT = StorageSlow
