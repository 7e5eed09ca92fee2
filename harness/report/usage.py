"""Computes the traffic on each node's network links, and how busy the node's GPUs were."""

import statistics
from collections.abc import Iterator
from typing import Any

from harness.timeline.timeline import Timeline

S = 1_000_000_000
LINKS_SHOWN = 16

Counter = tuple[str, int, str]  # what is counted: node, incarnation, link


def figures(run: Timeline) -> dict[str, Any]:
    rates = sorted(_rates(_link_counters(run)).items())
    by_link = {f"{node} {link}": rate for (node, _, link), rate in rates}  # the newest incarnation stands for all
    busiest = sorted(by_link, key=lambda link: -by_link[link])[:LINKS_SHOWN]
    with_gpus = [(event, gpu) for event in run.usage for gpu in event.get("gpus") or ()]
    nvlink_counters = (
        ((str(event["node"]), int(event["incarnation"]), str(gpu["gpu"])), event["at"], gpu["nvlink_bytes"])
        for event, gpu in with_gpus
        if gpu.get("nvlink_bytes") is not None
    )
    nvlink, gpus = list(_rates(nvlink_counters).values()), [gpu for _, gpu in with_gpus]
    told = [float(gpu["busy_percent"]) for gpu in gpus if gpu.get("busy_percent") is not None]
    busy = [percent for percent in told if 0 <= percent <= 100]  # anything else is no share of time
    memory = [int(gpu["memory_bytes"]) for gpu in gpus if gpu.get("memory_bytes") is not None]
    return {
        "network_bytes_per_second": {link: by_link[link] for link in sorted(busiest) if by_link[link] > 0} or None,
        "network_bytes_per_second_max": max(by_link.values(), default=None),
        "gpu_busy_percent": statistics.fmean(busy) if busy else None,
        "gpu_memory_bytes_max": max(memory, default=None),
        "nvlink_bytes_per_second": statistics.fmean(nvlink) if nvlink else None,
    }


def _link_counters(run: Timeline) -> Iterator[tuple[Counter, int, int]]:
    """Yields the traffic of network links as (link, time in ns, bytes so far). Links that several nodes share count
    once."""
    shared = [str(event.get("namespace") or event["node"]) for event in run.usage]
    owner: dict[str, str] = {}
    for namespace, event in zip(shared, run.usage, strict=True):
        owner[namespace] = min(owner.get(namespace, str(event["node"])), str(event["node"]))
    for namespace, event in zip(shared, run.usage, strict=True):
        for link in event.get("links") or ():
            both = int(link.get("received_bytes") or 0) + int(link.get("sent_bytes") or 0)
            yield (owner[namespace], int(event["incarnation"]), str(link["link"])), event["at"], both


def _rates(counters: Iterator[tuple[Counter, int, int]]) -> dict[Counter, float]:
    """Returns the bytes per second of each link. Intervals in which the link's counter was reset are left out."""
    last: dict[Counter, tuple[int, int]] = {}
    moved: dict[Counter, tuple[int, int]] = {}
    for what, at, count in counters:
        before_at, before = last.get(what, (at, count))
        last[what] = at, count
        if at > before_at and count >= before:
            spent, total = moved.get(what, (0, 0))
            moved[what] = spent + at - before_at, total + count - before
    return {what: total * S / spent for what, (spent, total) in moved.items()}
