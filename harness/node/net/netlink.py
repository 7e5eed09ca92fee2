"""Builds and parses netlink messages, and sends requests to the kernel, one by one or as a transaction.

linux/netlink.h and linux/netfilter/nfnetlink.h define the messages. All requests act in the caller's network namespace.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence

ROUTE, NETFILTER = 0, 12
REQUEST, ACK, EXCL, CREATE, APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
HEADER = struct.Struct("=IHHII")
ANSWER_S_MAX = 10.0
_ERROR = 2
_NESTED = 0x8000
_BATCH_BEGIN, _BATCH_END = 16, 17


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def be32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


def be16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">H", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def attributes(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        yield kind & ~_NESTED, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def message(kind: int, flags: int, body: bytes, number: int = 1) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, flags | REQUEST, number, 0) + body


def messages(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yields kind, sequence number and body of each netlink message in the data of one `recv`."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _, number, _ = HEADER.unpack_from(data, offset)
        yield kind, number, data[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


def open_socket(protocol: int) -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    link.settimeout(ANSWER_S_MAX)
    link.bind((0, 0))
    return link


def request(protocol: int, kind: int, flags: int, body: bytes, what: str) -> None:
    with open_socket(protocol) as link:
        ask(link, kind, flags, body, what)


def ask(link: socket.socket, kind: int, flags: int, body: bytes, what: str) -> None:
    link.send(message(kind, flags | ACK, body))
    _raise_errors(link.recv(65536), what)


def transaction(subsystem: int, requests: Sequence[tuple[int, int, bytes]], what: str) -> None:
    """Carries out all netfilter requests (kind, flags, body), or none. Raises `OSError` if a request fails."""
    edge = struct.pack(">BBH", socket.AF_UNSPEC, 0, subsystem)
    parts = [message(_BATCH_BEGIN, 0, edge, 0)]
    for number, (kind, flags, body) in enumerate(requests, 1):
        parts.append(message(subsystem << 8 | kind, flags | ACK, body, number))
    parts.append(message(_BATCH_END, 0, edge, 0))
    with open_socket(NETFILTER) as link:
        link.send(b"".join(parts))
        for _ in requests:  # one answer each; a failed one ends the transaction
            _raise_errors(link.recv(65536), what)


def _raise_errors(answer: bytes, what: str) -> None:
    for kind, _, body in messages(memoryview(answer)):
        errno = -struct.unpack_from("=i", body)[0] if kind == _ERROR else 0
        if errno:
            raise OSError(errno, f"{what}: {os.strerror(errno)}")
