"""Checks that the nodes' clocks agree, because otherwise logs cannot be compared, and certificates seem expired."""

from __future__ import annotations

import math
import statistics
from typing import Annotated

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, doubt, named
from harness.units import format_duration

APART_S = 0.5
CAUSE = "no time service runs there, or it does not reach its server"
Offset = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**20)], float, Annotated[float, msgspec.Meta(ge=0)]]


class Told(msgspec.Struct):
    offsets: Annotated[list[Offset], msgspec.Meta(max_length=2**16)]  # node, seconds from node 0, and how exact


class Clocks(Check):
    title = "Clocks"
    order = 3
    probe = "clocks"

    def judge(self, seen: Seen) -> Judged:
        if len(seen.nodes) < 2:
            return Judged(not_judged="one node has one clock")
        told = [values for each, values in seen.of("clocks", Told) if each.rank == 0]
        offsets = {seen.nodes[0]: (0.0, 0.0)} if told else {}
        for values in told:
            looks = [look for look in values.offsets if look[0] < len(seen.nodes) and math.isfinite(look[1] + look[2])]
            offsets |= {seen.nodes[node]: (s, margin) for node, s, margin in looks}
        findings = seen.silent("its clock", offsets)
        usual = statistics.median_low([s for s, _ in offsets.values()]) if len(offsets) > 2 else 0.0
        for node, (seconds, margin) in offsets.items():
            if (apart := abs(seconds - usual)) - margin > APART_S:
                way, of = "ahead of" if seconds > usual else "behind", "the others"
                alone = len(offsets) == 2
                words = f"the clock of {node} is {apart:.2f} s {way} {seen.nodes[0] if alone else of}"
                words += ": which of the two is wrong cannot be told" if alone else ""
                nodes = [*offsets] if alone else [node]
                findings.append(Finding(words, CAUSE, nodes, figure=seconds - usual, unit="s", usual=0.0))
            elif apart + margin > APART_S:
                words = f"the clock of {node} is {apart:.2f} s off, give or take {margin:.2f} s"
                findings.append(doubt(words, "a network so slow that clocks cannot be compared", [node]))
        most = max((abs(s - usual) + margin for s, margin in offsets.values()), default=0.0)
        return Judged(
            words=f"at most {format_duration(round(1e9 * most))} apart: {named([*offsets])}", findings=findings
        )


CHECK = Clocks()
