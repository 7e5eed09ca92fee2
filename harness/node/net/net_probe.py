"""Measures the network path between two virtual nodes by real packets, with one clock for both ends.

The measuring process has a socket in each node's network namespace, so that it sees both ends.
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
    pid: int
    address: str

    def enter(self) -> None:
        kernel.enter_network(self.pid)


def run(report: int, work: Callable[[], dict[str, Any]]) -> None:
    """Runs the measurement `work` in a child process, and writes its result or error as one message to the descriptor
    `report`."""
    kernel.be_prompt()
    try:
        answer: dict[str, Any] = {"result": work()}
    except OSError as error:
        answer = {"error": rpc.error_to_message(error)}
    with os.fdopen(report, "wb") as pipe:
        pipe.write(rpc.pack(answer))


def packets(source: End, destination: End, count: int, interval_s: float, size: int, wait_s: float) -> dict[str, Any]:
    """Sends `count` UDP packets of `size` bytes one way, and waits until no packet has come for `wait_s`.

    Returns how many packets were `sent` and `received`, how many came `late` (overtaken by a later one) or `damaged`
    (with a wrong checksum), and the one-way `delays_s` of the received packets, in order of arrival.
    """
    destination.enter()
    receiver = paths.PacketReceiver(destination.address, count)
    source.enter()
    kernel.be_punctual()
    paths.send_packets(source.address, (destination.address, receiver.port), count, interval_s, size)
    return {"sent": count} | receiver.finish(wait_s)


def transfer(source: End, destination: End, seconds: float, counter: str | None) -> dict[str, float]:
    """Fills the path with one TCP transfer for `seconds`, and returns `bits_per_s`, the rate on the wire after the
    ramp-up.

    If `counter` names a network device on the path, all bytes that pass this device count, also those of other traffic.
    Without `counter`, the received bytes count, with the size of packet headers added.
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
