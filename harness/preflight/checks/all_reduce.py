"""How fast gradients can be reduced: bus bandwidth, 2(N−1)/N × bytes / time, within nodes and between them apart."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from harness.preflight.checks.contract import Check, Judged, Seen, rate

SLOW = 0.65
LARGE = 2**22  # bytes: what is smaller is a matter of latency
WORDS = {"all": "all ranks", "within": "ranks of one node", "between": "one rank of each node"}


class Told(msgspec.Struct):
    which: Literal["all", "within", "between"]
    ranks: Annotated[int, msgspec.Meta(ge=2, le=2**20)]
    times: Annotated[
        list[tuple[Annotated[int, msgspec.Meta(gt=0, le=2**40)], Annotated[float, msgspec.Meta(gt=0)]]],
        msgspec.Meta(max_length=100),
    ]  # bytes and seconds


def bus_bandwidth(ranks: int, size: int, seconds: float) -> float:
    """Bytes a second that each link carries."""
    return 2 * (ranks - 1) / ranks * size / seconds


class AllReduce(Check):
    title = "All-reduce"
    order = 6
    probe = "all_reduce"
    least = SLOW
    cause = "a slow link or a slow rank, other settings of NCCL, or traffic of others"

    def judge(self, seen: Seen) -> Judged:
        if seen.plan.workload.world_size < 2:
            return Judged(not_judged="one rank reduces with nobody")
        told = seen.of("all_reduce", Told)
        if not told:
            return Judged(findings=seen.silent("an all-reduce", []), words="nothing told")
        figures, small = dict[str, float](), dict[str, float]()
        for each, values in told:
            who = f" on {each.node}" if values.which == "within" else ""
            for size, seconds in values.times:
                name = f"bus bandwidth, {WORDS[values.which]}{who}, {size:,} bytes (bytes/s)"
                (figures if size >= LARGE else small)[name] = bus_bandwidth(values.ranks, size, seconds)
        widths = [
            f"{WORDS[values.which]} {rate(bus_bandwidth(values.ranks, *max(values.times)))}"
            for _, values in told
            if values.times
        ]
        return Judged(
            words=f"bus bandwidth at the largest size: {'; '.join(dict.fromkeys(widths))}", figures=figures, shown=small
        )


CHECK = AllReduce()
