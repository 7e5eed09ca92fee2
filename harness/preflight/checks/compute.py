"""Compares the ranks' computing speed, because all ranks wait for the slowest in every step."""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import msgspec

from harness.preflight.checks.contract import Check, Judged, Seen, accused, below_the_others, measured_again, scaled
from harness.units import counted

SLOW = 0.75  # of the median of the others


class Told(msgspec.Struct):
    flops: Annotated[list[Annotated[float, msgspec.Meta(gt=0, lt=1e18)]], msgspec.Meta(min_length=1, max_length=1000)]
    again: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0


class Compute(Check):
    title = "Speed of each rank"
    order = 4
    probe = "compute"
    least = SLOW
    cause = "heat or a power cap, a CPU quota, or another job on that node"

    def judge(self, seen: Seen) -> Judged:
        told = seen.by_rank("compute", Told)
        flops = {rank: statistics.median(values.flops) for rank, values in told.items()}
        findings = seen.silent_ranks("its speed", flops)
        for rank, usual in below_the_others(flops, SLOW).items():
            node, share = seen.node_of(rank), 100 * flops[rank] / usual
            words = f"rank {rank} on {node} computes at {share:.0f} % of the others: {scaled(flops[rank], 'FLOP/s')}"
            where: dict[str, Any] = {"nodes": [node], "ranks": [rank], "figure": flops[rank], "usual": usual}
            findings.append(accused(words, self.cause, share / 100, len(flops) - 1, seen, **where))
        figures = {f"rank {rank} on {seen.node_of(rank)} (FLOP/s)": each for rank, each in flops.items()}
        ends = (scaled(end(flops.values()), "FLOP/s") for end in (min, max)) if flops else ["nothing told"]
        again = measured_again(max((values.again for values in told.values()), default=0))
        return Judged(f"{counted(len(flops), 'rank')}: {' to '.join(ends)}{again}", findings, figures)


CHECK = Compute()
