"""A processor silently computes one wrong bit in a weight, a gradient, an activation or an optimizer state."""

import json
import time
from dataclasses import replace
from typing import Literal

from pydantic import Field

from harness.backends.contract import Node
from harness.faults.contract import END_SEEN_WITHIN_S, Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.consequences import Consequences, May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.silent_corruption import CHOSEN, CORRUPTED, OVER

NAMED_STEPS = 5


class SilentDataCorruption(inside.InsideFault):
    """One bit of a gradient, weight, activation or optimizer state goes wrong on a rank, without any error.

    A gradient is corrupted on its rank, before gradients are summed over ranks. An activation is an output of the
    module that holds the chosen weight. In a sharded tensor (DTensor), the rank's own shard is corrupted. A sharded
    gradient is corrupted after gradients are summed. The run's seed chooses the number to corrupt. If a bit is
    corrupted repeatedly, it gets the same wrong value each time.

    The trainer must use an optimizer of PyTorch. The trainer must log the harness's events, or run with the harness's
    observer, which logs these events.
    """

    what: Literal["gradient", "weight", "activation", "optimizer_state"] = Field(
        "gradient", description="Where the bit is."
    )
    bit: int = Field(
        29,
        ge=0,
        le=31,
        description="Which bit of the float32: 31 sign, 23–30 exponent, below: fraction. Of another type the one that "
        "is as far from the sign, or the last.",
    )
    how: Literal["transient", "intermittent", "permanent"] = Field(
        "transient",
        description="transient: in one step; intermittent: once in `once_in` steps; permanent: in each step.",
    )
    once_in: int = Field(10, ge=2, le=1_000_000, description="intermittent: it is wrong once in so many steps.")
    steps: int = Field(
        20, ge=1, le=1_000_000, description="intermittent, permanent: over after so many steps, or with the process."
    )

    runbook = "F5"
    may = frozenset({May.STOP, May.MOVE})

    def true_answers(self) -> Truth:
        helps = (Decision.ROLL_BACK,) if self.how == "transient" else (Decision.RESTART_ELSEWHERE,)
        return Truth((Kind.CORRUPTION,), Place.RANK, (*helps, Decision.EVICT_NODE))

    def consequences(self) -> Consequences:
        said = super().consequences()  # gradients are summed over all ranks: they stay alike
        apart = self.what in ("weight", "optimizer_state")
        return replace(said, may=said.may | {May.DRIFT}) if apart else said

    def holds(self, targets: Targets) -> list[Hold]:
        every, steps = {"transient": (1, 1), "intermittent": (self.once_in, self.steps)}.get(self.how, (1, self.steps))
        order = {"what": self.what, "bit": self.bit, "every": every, "steps": steps}
        return inside.at_the_next_step(targets, "corrupt", json.dumps(order))

    def describe(self, targets: Targets) -> str:
        whose = f"bit {self.bit} of one {self.what.replace('_', ' ')} value of {name_ranks(targets)}"
        each = {"intermittent": f"once in {self.once_in} steps", "permanent": "in each step"}.get(self.how)
        return (
            f"{whose} is wrong " + (f"{each}, for {self.steps} steps" if each else "in one step") + ", without a word"
        )

    def inject(self, targets: Targets, context: Context) -> None:
        victims, begun_ns = self.find_victims(targets, context), time.monotonic_ns()
        for rank in inside.strike_each(targets, context, CHOSEN):
            self._see(rank, *victims[rank], begun_ns, context, first=True)
        if self.how != "transient":
            for rank, victim in victims.items():
                self._see(rank, *victim, begun_ns, context, first=False)

    def _see(self, rank: int, node: Node, pid: int, since_ns: int, context: Context, first: bool) -> None:
        def over() -> bool:
            return context.reached(rank, OVER) >= since_ns or inside.is_gone(node, pid)

        def enough() -> bool:
            return over() or (first and bool(context.said(rank, CORRUPTED, since_ns)))

        def goes_on() -> bool:
            return enough() or bool(context.step_times_ns(rank, looked_ns))

        looked_ns = time.monotonic_ns()
        while context.wait(inside.COMES_WITHIN_S, goes_on) and not enough():
            looked_ns = time.monotonic_ns()
        said = context.said(rank, CORRUPTED, since_ns)
        if first:
            chosen = context.said(rank, CHOSEN, since_ns) + context.said(rank, OVER, since_ns)
            detail = f"rank {rank}, " + (said or [*chosen, "the process has ended"])[0]
            return context.effect(min(1, len(said)), 1, "bits wrong", ok=bool(said), detail=detail)
        named = "; ".join(said[:NAMED_STEPS]) + (f"; … {said[-1]}" if len(said) > NAMED_STEPS else "")
        context.effect(len(said), 1, "steps with a wrong bit", ok=bool(said), detail=f"rank {rank}: {named}")

    def see_end(self, targets: Targets, context: Context) -> None:
        over = [
            context.wait(
                END_SEEN_WITHIN_S / len(self._victims),
                until=lambda: context.reached(rank, OVER) > 0 or inside.is_gone(*victim),  # noqa: B023
            )
            for rank, victim in self._victims.items()
        ]
        if over and all(over):
            context.ended(0, 0, "ranks with a wrong bit", ok=True)


FAULT = SilentDataCorruption
