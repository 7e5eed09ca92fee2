"""Measures a network path by real packets, which one node sends and another node receives."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import pathlib
import select
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from harness.node import kernel
from harness.node.compat import TIMEOUTS
from harness.node.net import lossy_link, rate_limit

HEADER_BYTES = 14 + 20 + 32  # Ethernet, IP, TCP with timestamps: on the wire, but not in what is received
SEGMENT_BYTES = 1448
WAIT_S_MAX = 5.0  # for the other end to connect
RAMP_SHARE = 0.3  # of a transfer: until the sender has found its speed
WINDOWS = 20  # a transfer's rate is the median of so many: a pause of TCP's own is not the path's
# What sending says when the path is cut, or full; EINVAL is a black hole in the sender's own routes.
_NO_WAY = {
    *(errno.EAGAIN, errno.EHOSTUNREACH, errno.EINVAL, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOBUFS, errno.EPERM),
}
LOOK_S = 0.1
_PACKET = struct.Struct("=Id")


def _udp(address: str) -> socket.socket:
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind((address, 0))
    end.setblocking(False)
    with contextlib.suppress(PermissionError):  # then within the system's limit
        end.setsockopt(socket.SOL_SOCKET, lossy_link.SO_RCVBUFFORCE, 4 * 2**20)
    return end


class PacketReceiver:
    def __init__(self, address: str, count: int):
        self._socket = _udp(address)
        self.port: int = self._socket.getsockname()[1]
        self._count = count
        self._numbers: list[int] = []
        self._delays_s: list[float] = []
        self._all_sent = threading.Event()
        self._wait_s = 0.0
        # The file stays that of the network of this moment.
        self._counters = os.open("/proc/thread-self/net/snmp", os.O_RDONLY | os.O_CLOEXEC)
        self._damaged_before = self._checksum_errors()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def finish(self, wait_s: float) -> dict[str, Any]:
        """Returns counts and delays of the received packets, once all arrived or no packet came for `wait_s`."""
        self._wait_s = wait_s
        self._all_sent.set()
        self._thread.join()
        damaged = self._checksum_errors() - self._damaged_before
        self._socket.close()
        os.close(self._counters)
        numbers = self._numbers
        late = sum(number < highest for highest, number in zip(itertools.accumulate(numbers, max), numbers))
        return {"received": len(set(numbers)), "late": late, "damaged": damaged, "delays_s": self._delays_s}

    def _checksum_errors(self) -> int:
        text = os.pread(self._counters, 65536, 0).decode()
        lines = [line.split() for line in text.splitlines() if line.startswith("Udp:")]
        return int(dict(zip(lines[0], lines[1]))["InCsumErrors"])

    def _receive(self) -> None:
        kernel.be_punctual()
        silent_since = time.monotonic()
        while len(self._numbers) < self._count:
            if select.select([self._socket], [], [], 0.02)[0]:
                self._take()
                silent_since = time.monotonic()
            elif not self._all_sent.is_set():
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > self._wait_s:
                return

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                number, sent_s = _PACKET.unpack_from(self._socket.recv(65536))
                self._delays_s.append(time.monotonic() - sent_s)
                self._numbers.append(number)


def send_packets(address: str, to: tuple[str, int], count: int, interval_s: float, size: int) -> None:
    """Sends packets one by one. A packet that the network refuses counts as lost."""
    with _udp(address) as sender:
        for number in range(count):
            try:
                sender.sendto(_PACKET.pack(number, time.monotonic()).ljust(size, b"\0"), to)
            except OSError as error:
                if error.errno not in _NO_WAY:
                    raise
            time.sleep(interval_s)  # never a burst to catch up: it would measure the queues in between


def median_rate(passed: Callable[[], int], seconds: float) -> float:
    """Returns how fast the byte count `passed()` grows, in bits per second: the median over short windows after the
    ramp-up."""
    time.sleep(seconds * RAMP_SHARE)
    window_s = seconds * (1 - RAMP_SHARE) / WINDOWS
    marks = []
    for _ in range(WINDOWS):
        marks.append((time.monotonic(), passed()))
        time.sleep(window_s)
    rates = [(count - earlier) * 8 / (at - before) for (before, earlier), (at, count) in zip(marks, marks[1:])]
    return statistics.median(rates)


class StreamReceiver:
    def __init__(self, address: str):
        self._listener = socket.create_server((address, 0))
        self._listener.settimeout(WAIT_S_MAX)
        self.port: int = self._listener.getsockname()[1]
        self._received = 0
        self._begun = threading.Event()
        threading.Thread(target=self._receive, daemon=True).start()

    def rate(self, seconds: float) -> float:
        """Returns the measured bits per second on the wire: received payload plus its headers."""
        self._begun.wait(WAIT_S_MAX)
        payload = median_rate(lambda: self._received, seconds)
        return payload * (SEGMENT_BYTES + HEADER_BYTES) / SEGMENT_BYTES

    def _receive(self) -> None:
        with self._listener:
            try:
                connection, _ = self._listener.accept()
            except TIMEOUTS:
                return  # the sender could not get through: its own error says so
        self._begun.set()
        with connection:
            while data := connection.recv(1 << 20):
                self._received += len(data)


def send_stream(address: str, to: tuple[str, int], seconds: float, done: threading.Event | None = None) -> None:
    """Sends data for `seconds` or, if `done` is given, until `done` is set. Raises `OSError` if nobody listens at
    `to`."""
    with socket.create_connection(to, WAIT_S_MAX, (address, 0)) as sender:
        deadline, block = time.monotonic() + seconds, bytes(1 << 18)
        sender.setblocking(False)
        while not done.is_set() if done else time.monotonic() < deadline:
            if select.select([], [sender], [], LOOK_S)[1]:
                sender.send(block)


def transmitted_bytes(device: str) -> int:
    return rate_limit.transmitted_bytes(device, pathlib.Path("/proc/net/dev").read_text())


class Ends:
    """Offers the calls by which one end of a network path is measured. A receiver of test data is identified by its
    port."""

    def __init__(self) -> None:
        self._receivers: dict[int, Any] = {}
        in_thread = asyncio.to_thread
        self.calls: dict[str, Callable[..., Any]] = {
            "receive_packets": lambda address, count: self._keep(PacketReceiver(address, count)),
            "send_packets": lambda address, to, **how: in_thread(send_packets, address, (to[0], to[1]), **how),
            "received_packets": lambda port, wait_s: in_thread(self._receivers.pop(port).finish, wait_s),
            "receive_stream": lambda address: self._keep(StreamReceiver(address)),
            "send_stream": lambda address, to, seconds: in_thread(send_stream, address, (to[0], to[1]), seconds),
            "stream_rate": lambda port, seconds: in_thread(self._receivers.pop(port).rate, seconds),
        }

    def _keep(self, receiver: PacketReceiver | StreamReceiver) -> int:
        self._receivers[receiver.port] = receiver
        return receiver.port
