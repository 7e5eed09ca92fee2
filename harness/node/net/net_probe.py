"""Measuring a path between two hosts of a lab: packets really sent and really received, on one clock.

A probe is a process that opens one socket in the network of each host, and so sees both ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.node import kernel, rpc
from harness.node.net import paths, rate_limit


@dataclass(frozen=True)
class End:
    """A host as a probe needs it: a process in its network namespace, and its address."""

    pid: int
    address: str

    def enter(self) -> None:
        """Sockets that the calling thread, and threads that it starts, make from now on are this host's."""
        kernel.enter_network(self.pid)


def run(report: int, work: Callable[[], dict[str, Any]]) -> None:
    """Runs a probe in its process: writes the result, or the error, as one frame."""
    kernel.be_prompt()
    try:
        answer: dict[str, Any] = {"result": work()}
    except OSError as error:
        answer = {"error": rpc.error_to_message(error)}
    with os.fdopen(report, "wb") as pipe:
        pipe.write(rpc.pack(answer))


def packets(source: End, destination: End, count: int, interval_s: float, size: int, wait_s: float) -> dict[str, Any]:
    """Sends `count` UDP packets of `size` bytes one way, and waits until none has come for `wait_s`.

    Returns how many were `sent` and `received`, how many came `late` (overtaken by a later one) or `damaged`
    (the receiver's checksum failed), and the one-way `delays_s` of those received, in order of arrival.
    """
    destination.enter()
    receiver = paths.PacketReceiver(destination.address, count)
    source.enter()
    kernel.be_punctual()
    paths.send_packets(source.address, (destination.address, receiver.port), count, interval_s, size)
    return {"sent": count} | receiver.finish(wait_s)


def transfer(source: End, destination: End, seconds: float, counter: str | None) -> dict[str, float]:
    """Fills the path with one TCP transfer for `seconds`; returns `bits_per_s` on the wire, once it is up to speed.

    `counter` is a device of the lab that all of the path's packets pass, whoever sent them: its bytes are then
    counted. Without one it is what the receiver got, headers added.
    """
    done = threading.Event()
    with open("/proc/thread-self/net/dev", "rb", buffering=0) as lab_counters, ThreadPoolExecutor(1) as pool:

        def passed() -> int:
            lab_counters.seek(0)
            return rate_limit.transmitted_bytes(str(counter), lab_counters.read(65536).decode())

        destination.enter()
        receiver = paths.StreamReceiver(destination.address)
        source.enter()
        sending = pool.submit(paths.send_stream, source.address, (destination.address, receiver.port), seconds, done)
        try:
            rate = paths.median_rate(passed, seconds) if counter else receiver.rate(seconds)
        finally:
            done.set()
        sending.result()
    return {"bits_per_s": rate}
