"""Measures the share of this host's CPUs that other programs use, because a busy host slows a healthy job.

The CPU time of other programs is the host's (in `/proc/stat`, with *steal*) minus that of the job's nodes.
"""

import os
import pathlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from harness.backends.contract import Cluster
from harness.errors import ChaosError

EVERY_S = 1.0
STAT = pathlib.Path("/proc/stat")
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  # of the columns of /proc/stat: idle and waiting for a disk
COLUMNS = 8  # up to steal; guests are counted in user


@dataclass(frozen=True)
class Look:
    at_ns: int
    busy_ns: int  # of all CPUs together
    nodes: Mapping[str, int]  # CPU time of each node, in ns, by its key


def others_between(before: Look, now: Look, cpus: int) -> float | None:
    """Returns the share (0 to 1) of CPU time used outside the job's nodes; `None` if nodes were added or removed."""
    taken_ns = (now.at_ns - before.at_ns) * cpus
    if before.nodes.keys() != now.nodes.keys() or taken_ns <= 0:
        return None
    ours = [now.nodes[node] - used for node, used in before.nodes.items()]
    if any(used < 0 for used in ours):  # a process ended, and its time is no longer counted
        return None
    return min(1.0, max(0.0, (now.busy_ns - before.busy_ns - sum(ours)) / taken_ns))


class HostLoad:
    """Measures every second, in a thread, how busy other programs keep the host, if the job's nodes are on it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found = deque[float]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="host load", daemon=True)
        if cluster.on_this_host and STAT.exists():
            self._thread.start()

    def taken(self) -> list[float]:
        return [self._found.popleft() for _ in range(len(self._found))]

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(EVERY_S)

    def _watch(self) -> None:
        before, cpus = self._look(), os.cpu_count() or 1
        while not self._ended.wait(EVERY_S):
            now = self._look()
            share = others_between(before, now, cpus) if before and now else None
            before = now
            if share is not None:
                self._found.append(share)

    def _look(self) -> Look | None:
        try:
            nodes = {f"{n.name}.{n.incarnation}": n.cpu_use().used_ns for n in self._cluster.nodes if n.alive}
            ticks = [int(word) for word in STAT.read_text().splitlines()[0].split()[1 : COLUMNS + 1]]
        except (ChaosError, OSError, ValueError):  # a node that is just going
            return None
        busy = sum(tick for column, tick in enumerate(ticks) if column not in IDLE)
        return Look(time.monotonic_ns(), busy * TICK_NS, nodes)
