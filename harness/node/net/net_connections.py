"""Lists the TCP connections of a network namespace with the kernel's byte counts, and resets connections.

The message layouts come from linux/sock_diag.h, linux/inet_diag.h and `struct tcp_info` of linux/tcp.h.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import pathlib
import socket
import struct
from collections.abc import Collection, Iterator
from typing import Any

from harness.node import processes
from harness.node.net import netlink

SOCK_DIAG = 4
_BY_FAMILY, _DESTROY, _DUMP, _DONE, _ERROR = 20, 21, 0x300, 3, 2
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_INFO = 2  # attribute INET_DIAG_INFO; asked for by its bit
_LIVING = sum(1 << state for state in (1, 4, 5, 8, 9, 11))  # established, and those that still close
_LISTEN, _TIME_WAIT, _STATES = 10, 6, 0xFFF
_CONNECTED = _STATES & ~(1 << _LISTEN) & ~(1 << _TIME_WAIT)
_REQUEST = struct.Struct("=BBBxI48s")  # family, protocol, what is asked for beside, states, which connection
_MESSAGE = struct.Struct("=4x2s2s16s16s4x8s16xI")  # ports, addresses, cookie, inode: of struct inet_diag_msg
_ATTRIBUTES_AT = 72
_ACKED_AT, _RECEIVED_AT, _SENT_AT = 120, 128, 200  # in struct tcp_info; bytes sent: since Linux 4.19
_V4_IN_V6 = bytes(10) + b"\xff\xff"
_RDMA = pathlib.Path("/sys/class/infiniband")
_RDMA_COUNTERS = ("port_xmit_data", "port_rcv_data")
_RDMA_UNIT_BYTES = 4  # these counters count in words

Row = dict[str, Any]  # see `_dump`


def _dump(family: int) -> Iterator[tuple[int, Row]]:
    """Yields the TCP connections of this network namespace, each with the inode of its socket. A connection has a
    `cookie` (a number that the kernel gives no other socket), `local` and `remote` address, and the payload bytes
    `sent` and `received` since it began, retransmissions included. Raises `OSError` if the kernel does not list
    connections."""
    with netlink.open_socket(SOCK_DIAG) as link:
        for part in _parts(link, family, _LIVING, 1 << _INFO - 1):
            yield _row(family, part)


def _parts(link: socket.socket, family: int, states: int, beside: int = 0) -> Iterator[memoryview]:
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, beside, states, bytes(48))
    link.send(netlink.message(_BY_FAMILY, _DUMP, body))
    while True:
        for kind, _, part in netlink.messages(memoryview(link.recv(262144))):
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -struct.unpack_from("=i", part)[0]
                raise OSError(number, f"list TCP connections: {os.strerror(number)}")
            yield part


def _row(family: int, body: memoryview) -> tuple[int, Row]:
    _, _, local, remote, cookie, inode = _MESSAGE.unpack_from(body)
    info = next((bytes(value) for kind, value in netlink.attributes(body[_ATTRIBUTES_AT:]) if kind == _INFO), b"")
    sent, acked, received = (
        int(struct.unpack_from("=Q", info, at)[0]) if len(info) >= at + 8 else 0
        for at in (_SENT_AT, _ACKED_AT, _RECEIVED_AT)
    )
    return inode, {
        "cookie": int.from_bytes(cookie, "little"),
        "local": _address(family, local),
        "remote": _address(family, remote),
        "sent": sent or acked,
        "received": received,
    }


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    if raw.startswith(_V4_IN_V6):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def inodes_of(candidates: Collection[processes.ProcEntry], pids: Collection[int]) -> set[int] | None:
    """Returns the inodes of the sockets that the processes `pids` and their children hold. Returns `None`, which stands
    for all processes, if `pids` or `candidates` (all processes of the node) is empty."""
    if not candidates or not pids:
        return None
    wanted = {each.pid for each in candidates if _inner_pid(each.pid) in pids}
    family = [below.pid for pid in wanted for below in processes.descendants(pid)]
    return {inode for pid in wanted.union(family) for inode in _sockets(pid)}


def _inner_pid(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def _sockets(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    yield int(target[len("socket:[") : -1])


def rdma_bytes() -> int | None:
    """Returns the bytes that all visible RDMA ports sent and received, or `None` if no port's counter can be read."""
    files = [file for name in _RDMA_COUNTERS for file in _RDMA.glob(f"*/ports/*/counters/{name}")]
    found = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(file.read_text()) * _RDMA_UNIT_BYTES)
    return sum(found) if found else None


def report(candidates: Collection[processes.ProcEntry], pids: Collection[int]) -> dict[str, Any]:
    """Returns the TCP `connections`, `of_processes` (True if all of them belong to `pids`), and `rdma_bytes`."""
    inodes = inodes_of(candidates, pids)
    found = [each for family in _FAMILIES for each in _dump(family)]
    rows = [row for inode, row in found if inodes is None or inode in inodes]
    return {"connections": rows, "of_processes": inodes is not None, "rdma_bytes": rdma_bytes()}


def reset_all(link: socket.socket) -> int:
    """Resets every TCP connection that a process holds, so that the other end gets an error, and returns the number of
    resets. Call `reset_all` before killing a node, because the kernel otherwise keeps the connections of dead
    processes, and with them the node's network namespace. `link` is a netlink socket for `SOCK_DIAG` in the node's
    network namespace. Raises `OSError` if the kernel cannot reset connections."""
    count = 0
    for family in _FAMILIES:
        for part in list(_parts(link, family, _CONNECTED)):
            # No inode: no process holds it any more. Older kernels leave such a one for ever when asked to reset it.
            if _MESSAGE.unpack_from(part)[-1]:
                count += _reset(link, family, bytes(part[4:52]))
    return count


def reset(candidates: Collection[processes.ProcEntry], pids: Collection[int], spared: Collection[str]) -> int:
    """Resets the TCP connections of the processes `pids`, except loopback connections and connections to `spared`
    addresses. Returns how many connections were reset. Without `candidates` or `pids`, resets the connections of all
    processes of the network namespace. Raises `OSError` if the kernel cannot reset connections."""
    inodes, count = inodes_of(candidates, pids), 0
    with netlink.open_socket(SOCK_DIAG) as link:
        for family in _FAMILIES:
            for part in list(_parts(link, family, _LIVING)):
                inode, row = _row(family, part)
                theirs = inode > 0 and (inodes is None or inode in inodes)
                if theirs and row["remote"] not in spared and not ipaddress.ip_address(row["remote"]).is_loopback:
                    count += _reset(link, family, bytes(part[4:52]))
    return count


def try_reset() -> None:
    """Tests whether the kernel would reset a TCP connection, by naming a connection that does not exist. Raises
    `OSError` if the kernel or this process's rights do not allow resets."""
    with netlink.open_socket(SOCK_DIAG) as link:
        _reset(link, socket.AF_INET, bytes(48))


def _reset(link: socket.socket, family: int, which: bytes) -> bool:
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _STATES, which)
    try:
        netlink.ask(link, _DESTROY, 0, body, "reset a connection")
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
