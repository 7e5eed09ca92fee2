"""A kernel spins on a rank's GPU, as one that waits for a peer: the process lives, and its device does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pydantic import Field

from harness.errors import FaultError
from harness.faults.contract import Context, Hold, Target, name_ranks, ranks_of
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.device_strikes import NO_GPU, SPINNING
from harness.units import Duration

SLACK_S, SHARE_MIN = 10.0, 0.9


class GpuSleep(inside.InsideFault):
    """A kernel spins on the GPU of a rank, after its next step; its later kernels wait. Only where the rank uses a GPU.

    The trainer must emit our events itself, or be observed."""

    duration: Duration = Field(Duration("10s"), description="For so long.")

    runbook = "F2"

    def true_answers(self) -> Truth:
        decisions = (Decision.IGNORE, Decision.RESTART_IN_PLACE)
        return Truth((Kind.HANG, Kind.STRAGGLER, Kind.GPU), Place.RANK, decisions).of_pause(self.duration)

    def holds(self, targets: Sequence[Target]) -> list[Hold]:
        return inside.at_the_next_step(targets, "spin", self.duration.s)

    def describe(self, targets: Sequence[Target]) -> str:
        return f"{name_ranks(targets)}: a kernel spins on its GPU for {self.duration} after its next step"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        """Measures the longest step since; a rank that was ended over it had its GPU taken to its end."""
        victims = self.find_victims(targets, context)
        context.hold()
        context.injected()
        for _ in targets:
            context.wait(inside.COMES_WITHIN_S, until=lambda: context.caught() is not None)
            context.strike()
        for rank in ranks_of(targets):
            context.wait(inside.COMES_WITHIN_S, until=partial(self._told, rank, context))
            if not context.reached(rank, SPINNING):
                raise FaultError(f"rank {rank} uses no GPU on which a kernel could spin; `hang` acts on a CPU")
            since_ns = context.reached(rank, SPINNING)
            over = partial(self._over, rank, since_ns, context)
            ended = partial(inside.is_gone, *victims[rank])
            context.wait(self.duration.s + SLACK_S, until=lambda: over() or ended())  # noqa: B023
            longest_s = max(context.step_times_ns(rank, since_ns), default=0) / 1e9
            ok = longest_s >= SHARE_MIN * self.duration.s or ended()
            context.effect(longest_s, self.duration.s, "s of one step", ok=ok, detail=f"rank {rank}")

    def _told(self, rank: int, context: Context) -> bool:
        return bool(context.reached(rank, SPINNING) or context.reached(rank, NO_GPU))

    def _over(self, rank: int, since_ns: int, context: Context) -> bool:
        return any(took / 1e9 >= SHARE_MIN * self.duration.s for took in context.step_times_ns(rank, since_ns))


FAULT = GpuSleep
