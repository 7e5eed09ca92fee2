"""A node's wall clock jumps, for example because of a bad time server or a suspended virtual machine."""

import contextlib
import functools
import pathlib
import time
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PrivateAttr

from harness.backends.contract import Verb
from harness.errors import FaultError, NodeGone
from harness.faults.contract import END_SEEN_WITHIN_S, Context, Fault, Targets, name_nodes
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node import skew
from harness.units import Duration

SEEN_WITHIN_S = 30.0
TOLERANCE_S = 1.0  # besides a tenth of the jump: an event is stamped a moment before it is read


class ClockSkew(Fault):
    """The wall clock of every process on the node jumps suddenly, while monotonic clocks stay right."""

    offset: Duration = Field(Duration("1h"), description="By how much.")
    direction: Literal["forward", "backward"] = Field("forward", description="Which way it jumps.")
    duration: Duration = Field(Duration("20s"), description="After that it jumps back.")

    runbook = "F2"
    needs = frozenset({Verb.CLOCK})
    clocks = True
    truth = Truth((Kind.NONE,), Place.NODE, (Decision.IGNORE,))
    _before_s: dict[int, float] = PrivateAttr(default_factory=dict)  # rank → how far its clock was off

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return skew.prepare(run_dir)

    def describe(self, targets: Targets) -> str:
        return f"the wall clock of {name_nodes(targets)} jumps {self.direction} by {self.offset}, for {self.duration}"

    def inject(self, targets: Targets, context: Context) -> None:
        offset_s = self.offset.s * (1 if self.direction == "forward" else -1)
        nodes = [context.node(target) for target in targets]
        ranks = [rank for node in nodes for rank in context.ranks_on(node)]
        if not ranks:
            raise FaultError(f"no rank has started on {name_nodes(targets)}, so no process there would see the jump")
        before_s = {rank: (context.wall_offset_ns(rank) or 0) / 1e9 for rank in ranks}
        self._before_s |= before_s
        for node in nodes:
            node.skew_clock(offset_s)
        context.injected()
        tolerance_s = TOLERANCE_S + abs(offset_s) / 10

        def jump_s(rank: int) -> float:
            return (context.wall_offset_ns(rank) or 0) / 1e9 - before_s[rank]

        context.wait(SEEN_WITHIN_S, until=lambda: all(abs(jump_s(rank) - offset_s) <= tolerance_s for rank in ranks))
        for rank in ranks:
            ok = abs(jump_s(rank) - offset_s) <= tolerance_s
            context.effect(round(jump_s(rank), 3), offset_s, "s of wall clock", ok=ok, detail=f"rank {rank}'s events")
        context.wait(self.duration.s)

    def see_end(self, targets: Targets, context: Context) -> None:
        since_ns = time.monotonic_ns()
        tolerance_s = TOLERANCE_S + self.offset.s / 10
        for rank, before_s in self._before_s.items():
            seen = functools.partial(context.step_times_ns, rank, since_ns)
            if context.wait(END_SEEN_WITHIN_S, until=lambda seen=seen: bool(seen())):  # type: ignore[misc]
                left_s = (context.wall_offset_ns(rank) or 0) / 1e9 - before_s
                ok = abs(left_s) <= tolerance_s
                context.ended(round(left_s, 3), 0, "s of wall clock", ok=ok, detail=f"rank {rank}'s events")

    def heal(self, targets: Targets, context: Context) -> None:
        for target in targets:
            with contextlib.suppress(NodeGone):  # and its clock with it
                context.node(target).skew_clock(0.0)


FAULT = ClockSkew
