"""Measuring a path between two hosts of a lab: packets really sent and really received, on one clock.

A probe is a process that opens one socket in the network of each host, and so sees both ends: one-way delays,
packets that never came, packets damaged on the way (the receiving host's own checksum counters).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from harness.node import kernel, rpc
from harness.node.net import lossy_link, rate_limit

HEADER_BYTES = 14 + 20 + 32  # Ethernet, IP, TCP with timestamps: on the wire, but not in what is received
SEGMENT_BYTES = 1448
CONNECT_S_MAX = 5.0
RAMP_SHARE = 0.3  # of a transfer: until the sender has found its speed
LATE_S_MAX = 10.0  # so much longer where a busy machine does not let the measuring run
WINDOWS = 20  # a transfer's rate is the median of so many: a pause of TCP's own is not the path's
# What sending says when the path is cut, or full; EINVAL is a black hole in the sender's own routes.
_NO_WAY = (
    errno.EAGAIN,
    errno.EHOSTUNREACH,
    errno.EINVAL,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENOBUFS,
    errno.EPERM,
)
_COUNTERS = "/proc/thread-self/net/snmp"


@dataclass(frozen=True)
class End:
    """A host as a probe needs it: a process in its network namespace, and its address."""

    pid: int
    address: str

    def enter(self) -> None:
        """Sockets that the calling process makes from now on are this host's."""
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
    kernel.be_punctual()
    destination.enter()
    receiver, counters = _udp(destination.address), _open(_COUNTERS)
    source.enter()
    sender = _udp(source.address)
    damaged_before = _checksum_errors(counters)
    delays, numbers = _exchange(sender, receiver, count, interval_s, size, wait_s)
    late = sum(number < highest for highest, number in zip(itertools.accumulate(numbers, max), numbers))
    return {
        "sent": count,
        "received": len(set(numbers)),
        "late": late,
        "damaged": _checksum_errors(counters) - damaged_before,
        "delays_s": delays,
    }


def _udp(address: str) -> socket.socket:
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind((address, 0))
    end.setblocking(False)
    with contextlib.suppress(PermissionError):  # then within the system's limit
        end.setsockopt(socket.SOL_SOCKET, lossy_link.SO_RCVBUFFORCE, 4 * 2**20)
    return end


def _exchange(
    sender: socket.socket, receiver: socket.socket, count: int, interval_s: float, size: int, wait_s: float
) -> tuple[list[float], list[int]]:
    delays: list[float] = []
    numbers: list[int] = []

    def drain() -> None:
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                data = receiver.recv(65536)
                number, sent_s = struct.unpack_from("=Id", data)
                delays.append(time.monotonic() - sent_s)
                numbers.append(number)

    due = time.monotonic()
    for number in range(count):
        while (left := due - time.monotonic()) > 0:
            select.select([receiver], [], [], left)
            drain()
        _send(sender, struct.pack("=Id", number, time.monotonic()).ljust(size, b"\0"), receiver.getsockname())
        drain()
        due = time.monotonic() + interval_s  # never a burst to catch up: it would measure the queues in between
    silent_since = time.monotonic()
    while len(numbers) < count and time.monotonic() - silent_since < wait_s:
        if select.select([receiver], [], [], wait_s / 4)[0]:
            drain()
            silent_since = time.monotonic()
    return delays, numbers


def _send(sender: socket.socket, data: bytes, to: tuple[str, int]) -> None:
    """Sends a packet; one that the network does not take counts as lost."""
    try:
        sender.sendto(data, to)
    except OSError as error:
        if error.errno not in _NO_WAY:
            raise


def _open(path: str) -> IO[bytes]:
    """Opens a file unbuffered; its network is that of the moment of opening."""
    return open(path, "rb", buffering=0)


def _checksum_errors(counters: IO[bytes]) -> int:
    counters.seek(0)
    lines = [line.split() for line in counters.read(65536).decode().splitlines() if line.startswith("Udp:")]
    return int(dict(zip(lines[0], lines[1]))["InCsumErrors"])


def transfer(source: End, destination: End, seconds: float, counter: str | None) -> dict[str, float]:
    """Fills the path with one TCP transfer for `seconds`; returns `bits_per_s` on the wire, once it is up to speed.

    `counter` is a device of the lab that all of the path's packets pass, whoever sent them: its bytes are then
    counted. Without one it is what the receiver got, headers added.
    """
    lab_counters = _open("/proc/thread-self/net/dev")
    destination.enter()
    listener = socket.create_server((destination.address, 0))
    source.enter()
    sender = socket.create_connection(listener.getsockname(), CONNECT_S_MAX, (source.address, 0))
    receiver = listener.accept()[0]
    sender.setblocking(False)
    receiver.setblocking(False)

    def passed(received: int) -> int:
        if counter is None:
            return received * (SEGMENT_BYTES + HEADER_BYTES) // SEGMENT_BYTES
        lab_counters.seek(0)
        return rate_limit.transmitted_bytes(counter, lab_counters.read(65536).decode())

    received, marks = 0, list[tuple[float, int]]()
    begin, block = time.monotonic(), bytes(1 << 18)
    window_s = seconds * (1 - RAMP_SHARE) / WINDOWS
    due = begin + seconds * RAMP_SHARE
    with lab_counters, listener, sender, receiver:
        while len(marks) <= WINDOWS and (now := time.monotonic()) < begin + seconds + LATE_S_MAX:
            if now >= due:
                marks.append((now, passed(received)))
                due = now + window_s  # a machine that was busy elsewhere makes a window longer, and leaves none out
            readable, writable, _ = select.select([receiver], [sender], [], seconds / WINDOWS / 4)
            with contextlib.suppress(BlockingIOError):
                if readable:
                    received += len(receiver.recv(1 << 20))
                if writable:
                    sender.send(block)
    if len(marks) < 2:
        raise TimeoutError(f"the measuring of a path was not let run for {LATE_S_MAX:g} s: this machine is too busy")
    rates = [(count - earlier) * 8 / (at - before) for (before, earlier), (at, count) in zip(marks, marks[1:])]
    return {"bits_per_s": statistics.median(rates)}
