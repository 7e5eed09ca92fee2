"""Disturbs a node's traffic and measures network paths, from a process beside the node in the node's network
namespace."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from harness.errors import UsageError
from harness.node import processes, server
from harness.node.lab import Call, Lab, Wired
from harness.node.net import disturbances, net_connections, paths
from harness.node.net.packet_rules import NODE_END

DEVICE = "eth0"
HERE = "here"  # the node, as the lab's disturbances know it


class Sidecar:
    def __init__(self) -> None:
        self._lab = Lab("", True, "", iter(()))
        self._ends = paths.Ends()

    async def serve(self) -> None:
        await server.serve(self.calls(), self._lab.reap, {})

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "shape": self._to_here(disturbances.shape),
            "impair": self._to_here(disturbances.impair),
            "cut": self._to_here(disturbances.cut),
            # The node's own device keeps its carrier: its other end is the daemon's.
            "unplug": self._to_here(functools.partial(disturbances.cut, traffic=disturbances.EVERYTHING)),
            "heal": functools.partial(disturbances.heal, self._lab),
            "counts": functools.partial(disturbances.counts, self._lab),
            "examine": self._to_here(disturbances.examine),
            **self._ends.calls,
            "device_rate": self._device_rate,
            "connections": self._connections,
            "reset": self._reset,
        }

    def _to_here(self, verb: Call) -> Call:
        return lambda place, **params: verb(self._lab, self._host(place), **params)

    def _host(self, place: dict[str, Any]) -> Wired:
        self._lab.control_address = place["control"]
        gone = asyncio.Event()
        others = [SimpleNamespace(address=address, gone=gone) for address in place["others"]]
        own = {"key": HERE, "address": place["address"], "device": DEVICE, "hooks": NODE_END}
        host = SimpleNamespace(**own, lab=self._lab, gone=gone)
        self._lab.hosts = {str(number): cast(Any, each) for number, each in enumerate([host, *others])}
        return cast(Wired, host)

    def _connections(self, pids: list[int]) -> dict[str, Any]:
        """Returns all TCP connections in the node's network, because a sidecar cannot see the node's processes."""
        return net_connections.report(self._candidates(), pids)

    def _reset(self, pids: list[int], spared: str) -> int:
        return net_connections.reset(self._candidates(), pids, [spared])

    def _candidates(self) -> list[processes.ProcEntry]:
        return []

    async def _device_rate(self, number: int, sent_here: bool, seconds: float) -> float:
        disturbance = self._lab.disturbances.get(number)
        device = disturbance.counter(HERE if sent_here else "") if disturbance is not None else None
        if device is None:
            raise UsageError(f"disturbance {number} counts no bytes")
        return await asyncio.to_thread(paths.median_rate, lambda: paths.transmitted_bytes(device), seconds)


if __name__ == "__main__":
    asyncio.run(Sidecar().serve())
