"""Runs the delay line, a process that delays, loses, damages or reorders the packets of one netfilter queue.

Packets stay in the kernel, and this process gets only their ids, so that Python can keep up with gigabits per second.
Only packets that are to be damaged are copied to this process. For loss and damage, the kernel first splits the large
packets of virtual network devices into packets of the size on a real wire. For delays, large packets stay whole. The
message layouts come from linux/netfilter/nfnetlink_queue.h.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import select
import socket
import struct
import time

from harness.node import kernel, rpc
from harness.node.net import netlink
from harness.node.net.netlink import attribute, be32
from harness.node.types import Impairment

_SUBSYSTEM = 3
_PACKET, _VERDICT, _CONFIG, _VERDICT_BATCH = 0, 1, 2, 3
_CONFIG_COMMAND, _CONFIG_PARAMETERS, _CONFIG_LENGTH, _CONFIG_MASK, _CONFIG_FLAGS = 1, 2, 3, 4, 5
_BIND, _COPY_META, _COPY_PACKET = 1, 1, 2
_FAIL_OPEN, _WHOLE = 1, 4
_PACKET_HEADER, _VERDICT_HEADER, _PAYLOAD = 1, 2, 10
_DROP, _ACCEPT = 0, 1
_NO_ENOBUFS = 5  # of SOL_NETLINK
_SOL_NETLINK = 270
SO_RCVBUFFORCE = 33
_HEADERS_BYTES = 40  # damage behind the IP header, where the checksums of TCP and UDP see it

SLOPE_S = 4.0  # per second of jitter: so long it takes from one drawn value to the next, twice what order needs
HELD_PACKETS_MAX = 65536
RECEIVE_BYTES = 8 * 2**20


class Fate:
    """Draws at random whether a packet is lost, damaged or delayed; equal seeds give equal draws."""

    def __init__(self, impairment: Impairment):
        self._impairment = impairment
        self._random = random.Random(impairment.seed)
        self._losing = False
        self._last_release = 0.0
        self._knots = ((0.0, 0.0), (0.0, 0.0))  # the jitter at two moments, interpolated in between

    def lost(self) -> bool:
        """Draws whether a packet is lost, by Gilbert's model: losses come in bursts of `burst` packets on average."""
        share, burst = self._impairment.loss_percent / 100, self._impairment.burst
        if burst <= 1:
            return self._random.random() < share
        begin = share / (burst * (1 - share))
        self._losing = self._random.random() < (1 - 1 / burst if self._losing else begin)
        return self._losing

    def damaged(self) -> bool:
        share = self._impairment.damage_percent / 100
        return share > 0 and self._random.random() < share

    def damage(self, packet: bytes) -> bytes:
        """Flips one random bit of a packet: in its payload, if the packet has a payload."""
        begin = min(_HEADERS_BYTES, len(packet) - 1)
        bit = self._random.randrange(begin * 8, len(packet) * 8)
        return packet[: bit // 8] + bytes([packet[bit // 8] ^ 1 << bit % 8]) + packet[bit // 8 + 1 :]

    def release(self, now: float) -> float:
        share = self._impairment.reorder_percent / 100
        if share and self._random.random() < share:
            return now
        self._last_release = max(self._last_release, now + self._impairment.delay_s + self._jitter(now))
        return self._last_release

    def _jitter(self, now: float) -> float:
        jitter_s = self._impairment.jitter_s
        if jitter_s == 0:
            return 0.0
        while now >= self._knots[1][0]:
            before = self._knots[1]
            begin = max(before[0], now - SLOPE_S * jitter_s)
            self._knots = (before, (begin + SLOPE_S * jitter_s, self._random.uniform(-jitter_s, jitter_s)))
        (begin, low), (end, high) = self._knots
        return low + (high - low) * (now - begin) / (end - begin)


class DelayLine:
    def __init__(self, queue: int, impairment: Impairment):
        self.counts = dict.fromkeys(("packets", "lost", "damaged"), 0)
        self._queue = queue
        self._fate = Fate(impairment)
        self._held: list[tuple[float, int]] = []
        self._in_order = impairment.reorder_percent == 0 and not _per_packet(impairment)
        self.link = _bind(queue, impairment)

    def next_release_s(self) -> float | None:
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else None

    def take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):  # then those whose time has come
                for _, _, body in netlink.messages(memoryview(self.link.recv(262144))):
                    self._packet(body)

    def _packet(self, body: memoryview) -> None:
        number, payload = 0, memoryview(b"")
        for kind, value in netlink.attributes(body[4:]):
            if kind == _PACKET_HEADER:
                number = struct.unpack_from(">I", value)[0]
            elif kind == _PAYLOAD:
                payload = value
        self.counts["packets"] += 1
        if self._fate.lost():
            self.counts["lost"] += 1
            self._verdict(number, _DROP)
        elif self._fate.damaged():
            self.counts["damaged"] += 1
            self._verdict(number, _ACCEPT, attribute(_PAYLOAD, self._fate.damage(bytes(payload))))
        else:
            heapq.heappush(self._held, (self._fate.release(time.monotonic()), number))

    def release_due(self, now: float) -> None:
        last = None
        while self._held and self._held[0][0] <= now:
            _, number = heapq.heappop(self._held)
            if self._in_order:
                last = number
            else:
                self._verdict(number, _ACCEPT)
        if last is not None:
            self._verdict(last, _ACCEPT, kind=_VERDICT_BATCH)  # and all before it

    def let_pass(self) -> None:
        """Releases all packets that are held back, and lets later packets pass undisturbed."""
        self._fate = Fate(Impairment())
        self.take()
        self.release_due(float("inf"))

    def _verdict(self, number: int, verdict: int, payload: bytes = b"", kind: int = _VERDICT) -> None:
        header = attribute(_VERDICT_HEADER, struct.pack(">II", verdict, number))
        # A packet that is no longer there was dropped with the rule or the device it waited for.
        with contextlib.suppress(FileNotFoundError):
            self.link.send(netlink.message(_SUBSYSTEM << 8 | kind, 0, _header(self._queue) + header + payload))


def _header(queue: int) -> bytes:
    return struct.pack(">BBH", socket.AF_UNSPEC, 0, queue)


def _per_packet(impairment: Impairment) -> bool:
    """Returns True if the kernel must split large packets, because the disturbance acts on packets of the size on a
    real wire."""
    return impairment.loss_percent > 0 or impairment.damage_percent > 0


def _bind(queue: int, impairment: Impairment) -> socket.socket:
    link = netlink.open_socket(netlink.NETFILTER)
    copy = (0xFFFF, _COPY_PACKET) if impairment.damage_percent else (0, _COPY_META)
    # What the line cannot take in time goes on undisturbed: it must not lose packets it was not asked to lose.
    flags = _FAIL_OPEN if _per_packet(impairment) else _FAIL_OPEN | _WHOLE
    settings = (
        attribute(_CONFIG_COMMAND, struct.pack(">BxH", _BIND, socket.AF_INET)),
        attribute(_CONFIG_PARAMETERS, struct.pack(">IB", *copy)),
        be32(_CONFIG_LENGTH, HELD_PACKETS_MAX) + be32(_CONFIG_MASK, _FAIL_OPEN | _WHOLE) + be32(_CONFIG_FLAGS, flags),
    )
    for setting in settings:
        kind = _SUBSYSTEM << 8 | _CONFIG
        netlink.ask(link, kind, 0, _header(queue) + setting, f"read netfilter queue {queue}")
    link.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
    try:
        link.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
    except PermissionError:  # within the system's limit, then
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    link.setblocking(False)
    return link


def main(control: socket.socket, queue: int, impairment: Impairment) -> None:
    """Disturbs packets until the message `pass` arrives on `control`, or `control` closes. Answers each message on
    `control` with the packet counts."""
    kernel.set_name(f"net-line-{queue}")
    kernel.be_punctual()
    try:
        line = DelayLine(queue, impairment)
    except OSError as error:
        rpc.send(control, {"event": "failed", "error": rpc.error_to_message(error), "errno": error.errno})
        return
    rpc.send(control, {"event": "ready"})
    with contextlib.suppress(ConnectionError):  # labd is gone, and with it the lab
        while True:
            ready, _, _ = select.select([line.link, control], [], [], line.next_release_s())
            if line.link in ready:
                line.take()
            line.release_due(time.monotonic())
            if control in ready:
                message = rpc.receive(control)
                if message["call"] == "pass":
                    line.let_pass()
                rpc.send(control, {"id": message["id"], "result": line.counts})
