"""Each rank computes as fast as the others: all of them wait for the slowest in every step."""

from __future__ import annotations

import statistics
from typing import Annotated

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, below_the_others
from harness.units import counted

SLOW = 0.75  # of the median of the others


class Told(msgspec.Struct):
    flops: Annotated[list[Annotated[float, msgspec.Meta(gt=0, lt=1e18)]], msgspec.Meta(min_length=1, max_length=1000)]


class Compute(Check):
    title = "Speed of each rank"
    order = 4
    probe = "compute"
    least = SLOW
    cause = "heat or a power cap, a CPU quota, or another job on that node"

    def judge(self, seen: Seen) -> Judged:
        told = seen.of("compute", Told)
        flops = {each.rank: statistics.median(values.flops) for each, values in told if each.rank is not None}
        findings = seen.silent("its speed", [each.node for each, _ in told], seen.plan.workload.ranks_per_node)
        for rank, usual in below_the_others(flops, SLOW).items():
            node, share = seen.node_of(rank), 100 * flops[rank] / usual
            words = f"rank {rank} on {node} computes at {share:.0f} % of the others: {in_flops(flops[rank])}"
            findings.append(
                Finding(words=words, cause=self.cause, nodes=[node], ranks=[rank], figure=flops[rank], usual=usual)
            )
        figures = {f"rank {rank} on {seen.node_of(rank)} (FLOP/s)": each for rank, each in flops.items()}
        spread = f"{in_flops(min(flops.values()))} to {in_flops(max(flops.values()))}" if flops else "nothing told"
        return Judged(words=f"{counted(len(flops), 'rank')}: {spread}", findings=findings, figures=figures)


def in_flops(flops: float) -> str:
    """`50.6 GFLOP/s`."""
    return f"{flops / 1e12:.3g} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:.3g} GFLOP/s"


CHECK = Compute()
