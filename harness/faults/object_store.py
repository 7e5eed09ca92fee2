"""An object store with a bad day: errors, throttling, slowness, broken uploads, reads that miss what was written.

The trainer must reach its store through the proxy `harness.faults.load.s3_proxy`, started with the folder named here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, Target
from harness.units import Duration

TOLERANCE = 0.25

_WORDS = {
    "error": "answered with 500",
    "throttle": "answered with 503 Slow Down",
    "slow": "answered {delay} late",
    "reset": "reset in the middle of an upload",
    "stale": "answered with 404 for {delay} after the object was written",
}


class ObjectStore(Fault):
    """A share of the requests to an S3-compatible store goes wrong, in a proxy before it."""

    kind: Literal["error", "throttle", "slow", "reset", "stale"] = Field("throttle", description="What goes wrong.")
    share: float = Field(0.5, gt=0, le=1, description="Of the requests; reset: of uploads, stale: of reads.")
    delay: Duration = Field(Duration("1s"), description="slow: how late; stale: how long after a write.")
    path: str = Field("*", description="Which objects: a pattern of /bucket/key.")
    directory: Folder = Field("object_store", description="The folder of the proxy, below the run's.")
    duration: Duration = Field(Duration("10s"), description="How long it acts.")

    needs = frozenset({Verb.FILES})
    stops = True
    spoils = True

    packages: ClassVar = {"moto": "s3", "s3fs": "s3"}

    def describe(self, targets: Sequence[Target]) -> str:
        how = _WORDS[self.kind].format(delay=self.delay)
        return f"{self.share:.0%} of the requests for {self.path} are {how}, for {self.duration}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        folder = context.run_dir / self.directory
        if not folder.is_dir():
            raise FaultError(
                f"{self.directory}/: no proxy runs there; start harness.faults.load.s3_proxy before the store"
            )
        (folder / "counts.json").unlink(missing_ok=True)
        rule = {"kind": self.kind, "share": self.share, "seed": context.seed, "path": self.path}
        rule["delay_s"] = self.delay.s
        (folder / "rule.new").write_text(json.dumps(rule))
        os.replace(folder / "rule.new", folder / "rule.json")
        context.injected()
        context.wait(self.duration.s)
        counts = folder / "counts.json"
        self._judge(json.loads(counts.read_text()) if counts.exists() else {}, context)

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        (context.run_dir / self.directory / "rule.json").unlink(missing_ok=True)

    def _judge(self, counts: dict[str, Any], context: Context) -> None:
        """The share within three standard deviations; a delay within a quarter."""
        matched, acted = counts.get("matched", 0), counts.get("acted", 0)
        expected = self.share * matched
        ok = acted > 0 and abs(acted - expected) <= 3 * math.sqrt(expected * (1 - self.share)) + 0.5
        detail = f"{matched} requests concerned"
        if self.kind == "slow" and acted:
            asked_ms = self.delay.ms
            late_ms = counts["delayed_ns"] / acted / 1e6
            close = abs(late_ms - asked_ms) <= TOLERANCE * asked_ms
            context.effect(late_ms, asked_ms, "ms late on average", ok=ok and close, detail=detail)
        else:
            context.effect(acted, round(expected), "requests gone wrong", ok=ok, detail=detail)


FAULT = ObjectStore
