"""Reads the TCP connections of this network namespace, as `ss -ti` does. Needs Linux, and only the standard library."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

CONNECTIONS_MAX = 4096
PEERS_MAX = 64
_SOCK_DIAG = 4  # family of netlink
_SOCK_DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 20, 0x301, 3, 2  # of linux/sock_diag.h and linux/netlink.h
_INFO = 2  # attribute `struct tcp_info`
_ESTABLISHED, _SYN_SENT = 1, 2  # states
_RETRANSMITS, _LAST_ACK_MS, _RTT, _TOTAL_RETRANS = 2, 56, 68, 100  # bytes into `struct tcp_info`
FRESH_MS = 5000  # a round trip that was measured earlier does not count
UNANSWERED_MIN = 2  # tries in a row to send the same segment, from which on a connection is stuck


class Connection(NamedTuple):
    """A TCP connection. `rtt_us` is the smoothed round trip time, or 0 if it was not measured lately. `sent_again`
    counts retransmitted segments. `stuck` is 1 if the peer does not answer at present, else 0."""

    local: str  # address
    peer: str
    rtt_us: int
    sent_again: int
    stuck: int


def connections() -> Iterator[Connection]:
    """Yields the TCP connections that are open or being opened. Raises `OSError` if the kernel does not answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = struct.pack(
                "=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 1 << _ESTABLISHED | 1 << _SYN_SENT
            )
            netlink.send(struct.pack("=IHHII", 16 + len(asked), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + asked)
            yield from _answers(netlink, family)


def by_peer() -> list[dict[str, object]]:
    """Returns, for each pair of different addresses, the slowest round trip and the sums of `sent_again` and `stuck` of
    all connections. The pair with the most `stuck` connections is the first. Returns an empty list if the kernel does
    not list the connections."""
    found: dict[tuple[str, str], Connection] = {}
    with contextlib.suppress(OSError, struct.error):
        for each in itertools.islice(connections(), CONNECTIONS_MAX):
            pair = each.local, each.peer
            other = found.get(pair, Connection(*pair, 0, 0, 0))
            again, stuck = each.sent_again + other.sent_again, each.stuck + other.stuck
            found[pair] = Connection(*pair, max(each.rtt_us, other.rtt_us), again, stuck)
    others = (each for each in found.values() if each.local != each.peer)
    worst = sorted(others, key=lambda each: (each.stuck, each.rtt_us), reverse=True)
    return [each._asdict() for each in worst[:PEERS_MAX]]


def _answers(netlink: socket.socket, family: int) -> Iterator[Connection]:
    while True:
        data = netlink.recv(65536)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (_DONE, _ERROR) or length < 16:
                return
            if (found := _connection(data[16:length], family)) is not None:
                yield found
            data = data[(length + 3) & ~3 :]


def _connection(told: bytes, family: int) -> Connection | None:
    size = 4 if family == socket.AF_INET else 16
    local, peer = (socket.inet_ntop(family, told[at : at + size]) for at in (8, 24))  # of struct inet_diag_msg
    at = 72
    while at + 4 <= len(told):
        length, kind = struct.unpack_from("=HH", told, at)
        if kind == _INFO and length - 4 >= _TOTAL_RETRANS + 4:
            places = (at + 4 + place for place in (_RTT, _TOTAL_RETRANS, _LAST_ACK_MS))
            rtt, again, idle_ms = (struct.unpack_from("=I", told, place)[0] for place in places)
            stuck = told[1] == _SYN_SENT or told[at + 4 + _RETRANSMITS] >= UNANSWERED_MIN
            return Connection(local, peer, rtt if idle_ms < FRESH_MS else 0, again, int(stuck))
        at += max(4, (length + 3) & ~3)
    return None
