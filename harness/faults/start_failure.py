"""Workers that die before their first step: a missing mount, a bad image, an occupied port."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import Field

from harness import units
from harness.backend import Verb
from harness.fault import Context, Duration, Fault, Hold, Target

STARTED = "started"  # the first event of a worker


class StartFailure(Fault):
    """From now on the next `times` starts of a rank's worker end at once with `code`. Needs our emitter."""

    times: int = Field(2, ge=1, le=50, description="How many starts fail before one succeeds.")
    code: int = Field(1, ge=1, le=255, description="The exit code of such a worker.")
    within: Duration = Field("60s", description="How long to wait for these starts.")

    needs = frozenset({Verb.SIGNAL})
    aims_at = "rank"
    stops = True

    def holds(self, targets: Sequence[Target]) -> list[Hold]:
        match = {"event": STARTED}
        return [Hold(match, target.rank, crashes=self.times, code=self.code) for target in targets]

    def describe(self, targets: Sequence[Target]) -> str:
        ranks = ", ".join(str(target.rank) for target in targets)
        return f"the next {self.times} starts of rank {ranks} end with exit code {self.code}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        """Each crash is an effect of its own, logged before the process ends: it explains that death."""
        asked, crashed = self.times * len(targets), 0
        deadline = time.monotonic() + units.parse_duration_ns(self.within) / 1e9
        context.hold()
        context.injected()
        while crashed < asked and context.wait(deadline - time.monotonic(), until=context.crash_waits):
            crashed += 1
            context.effect(crashed, crashed, "failed starts", ok=True, detail=f"exit code {self.code}")
            context.let_crash()
        if crashed < asked:
            context.effect(crashed, asked, "failed starts", ok=False, detail=f"within {self.within}")

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        context.let_go()


FAULT = StartFailure
