"""Estimates how long a step's network traffic takes at the links' nominal speed, and at their measured speed."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.preflight.checks.contract import Check, Judged, Reduced, Seen, rate
from harness.units import format_duration

S = 1_000_000_000


class Node(msgspec.Struct):
    links: Annotated[dict[str, Annotated[int, msgspec.Meta(gt=0, le=10**8)]], msgspec.Meta(max_length=1000)] = {}


class Communication(Check):
    title = "Communication of a step"
    order = 9
    needs = "canary"
    probe = "all_reduce"

    def judge(self, seen: Seen) -> Judged:
        work = seen.plan.workload
        sent = sent_a_step(seen.canary.evidence) if seen.canary else None
        if work.nodes < 2 or not sent:
            return Judged(not_judged="one node sends nothing" if work.nodes < 2 else "no node told what its links sent")
        gradients = sent / (2 * (work.nodes - 1) / work.nodes)
        measured = {values.which: values.bus_bandwidth for _, values in seen.of("all_reduce", Reduced)}
        between = measured.get("between") or measured.get("all")
        cards = (node.links.values() for node in seen.by_node("node", Node).values() if node.links)
        nominal = min(map(max, cards), default=None)
        took = seen.canary.metrics.get("step_seconds_p50") if seen.canary else None
        parts = [f"each node sends {sent / 2**20:.3g} MiB a step, as for {gradients / 2**20:.3g} MiB of gradients"]
        parts.append(_takes("between nodes", sent, nominal and nominal * 125_000, "nominal"))
        parts.append(_takes("between nodes", sent, between, "measured"))
        if work.ranks_per_node > 1:
            inside = 2 * (work.ranks_per_node - 1) / work.ranks_per_node * gradients
            parts.append(_takes("within a node", inside, measured.get("within"), "measured"))
        parts.append(f"a step takes {format_duration(round(took * S))}" if took else "")
        return Judged("; ".join(filter(None, parts)), figures={"sent in a step (bytes)": sent})


def _takes(where: str, size: float, speed: float | None, how: str) -> str:
    if not speed:
        return f"{where} the {how} speed is not known"
    return f"{where} at {how} {rate(speed)} that takes {format_duration(round(S * size / speed))}"


def sent_a_step(run: Analysis) -> float | None:
    """Returns how many bytes a node sent over the network in a step, as an average over nodes, or `None` if unknown."""
    seen: dict[str, list[tuple[int, int]]] = {}
    owners: dict[str, set[str]] = {}
    for event in run.run.usage:
        where = str(event.get("namespace") or event["node"])
        owners.setdefault(where, set()).add(str(event["node"]))
        sent = sum(int(link.get("sent_bytes") or 0) for link in event.get("links") or ())
        seen.setdefault(where, []).append((int(event["at"]), sent))
    each = []
    for where, told in seen.items():
        (begin, first), (end, last) = min(told), max(told)
        ends = run.run.progress.end
        steps = int(np.count_nonzero((ends > begin) & (ends <= end)))
        if len(owners[where]) == 1 and steps and last > first:
            each.append((last - first) / steps)
    return sum(each) / len(each) if each else None


CHECK = Communication()
