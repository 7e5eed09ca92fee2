"""An object store fails or returns wrong data.

The failures of an object store are errors, throttling, slowness, broken uploads, or reads that miss the newest writes.
The wrong data are short bodies, old lists or lost parts of uploads, all with the HTTP status 200.

The trainer must reach its store through the harness's proxy (`harness.object_store.s3_proxy`), started with the folder
that the parameter `directory` names.
"""

import json
import math
import pathlib
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, Targets
from harness.log import untrusted_files
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

TOLERANCE = 0.25
WATCHED_S = 1.0
COUNTS_BYTES_MAX = 64 * 2**10
PROXY = "harness.object_store.s3_proxy"

_WORDS = {
    "error": "answered with 500",
    "throttle": "answered with 503 Slow Down",
    "slow": "answered {delay} late",
    "reset": "reset in the middle of an upload",
    "stale": "answered with 404 for {delay} after the object was written",
    "short_read": "answered with 200 and half of the body",
    "stale_list": "answered with a list from before the newest change, up to {delay} old",
    "lost_part": "answered with 200, and a part of the upload is left out",
}
Wrong = Literal["error", "throttle", "slow", "reset", "stale", "short_read", "stale_list", "lost_part"]


class ObjectStore(Fault):
    """A proxy in front of an S3-compatible store makes a share of the requests go wrong."""

    kind: Wrong = Field("throttle", description="What goes wrong.")
    share: float = Field(0.5, gt=0, le=1, description="Of the requests that it concerns, such as uploads or reads.")
    delay: Duration = Field(
        Duration("1s"), description="slow: how late; stale: how long after a write; stale_list: how old."
    )
    path: str = Field("*", description="Which objects: a pattern of /bucket/key; not for stale_list.")
    directory: Folder = Field("object_store", description="The folder of the proxy, below the run's.")
    duration: Duration = Field(Duration("10s"), description="How long it acts.")

    runbook = "F4"
    needs = frozenset({Verb.FILES})
    may = frozenset({May.STOP, May.SPOIL})

    packages: ClassVar = {"moto": "s3", "s3fs": "s3"}
    truth = Truth((Kind.STORAGE,), Place.JOB, (Decision.IGNORE,))

    def describe(self, targets: Targets) -> str:
        how = _WORDS[self.kind].format(delay=self.delay)
        return f"{self.share:.0%} of the requests for {self.path} are {how}, for {self.duration}"

    def inject(self, targets: Targets, context: Context) -> None:
        if not untrusted_files.status_of(context.run_dir, self.directory):
            raise FaultError(f"{self.directory}/: no proxy runs there; start the proxy {PROXY} before the store")
        untrusted_files.remove(context.run_dir, f"{self.directory}/counts.json")
        rule = {"kind": self.kind, "share": self.share, "seed": context.seed, "path": self.path}
        rule["delay_s"] = self.delay.s
        untrusted_files.replace(context.run_dir, self._rule_file, json.dumps(rule).encode())
        context.injected()
        context.wait(self.duration.s)
        self._judge(self._counts(context.run_dir), context)

    def heal(self, targets: Targets, context: Context) -> None:
        untrusted_files.remove(context.run_dir, self._rule_file)

    def see_end(self, targets: Targets, context: Context) -> None:
        before = self._counts(context.run_dir)
        context.wait(WATCHED_S)
        acted = self._counts(context.run_dir).get("acted", 0) - before.get("acted", 0)
        rules = int(untrusted_files.status_of(context.run_dir, self._rule_file) is not None)
        detail = f"{acted} requests went wrong in {WATCHED_S:g} s"
        context.ended(rules + acted, 0, "rules and requests gone wrong", ok=not rules + acted, detail=detail)

    @property
    def _rule_file(self) -> str:
        return f"{self.directory}/rule.json"

    def _counts(self, run_dir: pathlib.Path) -> dict[str, int]:
        try:
            found = json.loads(untrusted_files.read(run_dir, f"{self.directory}/counts.json", COUNTS_BYTES_MAX))
            return {name: int(found[name]) for name in ("requests", "matched", "acted", "delayed_ns")}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FaultError(f"{self.directory}/counts.json: no counts of a proxy ({error!r})") from error

    def _judge(self, counts: dict[str, Any], context: Context) -> None:
        matched, acted = counts.get("matched", 0), counts.get("acted", 0)
        expected = self.share * matched
        ok = acted > 0 and abs(acted - expected) <= 5 * math.sqrt(expected * (1 - self.share)) + 0.5
        detail = f"{matched} requests concerned"
        if self.kind == "slow" and acted:
            asked_ms = self.delay.ms
            late_ms = counts["delayed_ns"] / acted / 1e6
            close = abs(late_ms - asked_ms) <= TOLERANCE * asked_ms
            context.effect(late_ms, asked_ms, "ms late on average", ok=ok and close, detail=detail)
        else:
            context.effect(acted, round(expected), "requests gone wrong", ok=ok, detail=detail)


FAULT = ObjectStore
