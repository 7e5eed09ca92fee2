"""Resetting the connections of a node that is about to die.

A dead process's connection lives on in the kernel while its peer takes no more data: the peer would go on hearing
from a dead node, and the node's network namespace would stay. Layouts: linux/sock_diag.h, linux/inet_diag.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator

from harness.node.net import netlink

_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_DUMP = 0x300
_LISTEN, _TIME_WAIT, _STATES = 10, 6, 0xFFF
_CONNECTED = _STATES & ~(1 << _LISTEN) & ~(1 << _TIME_WAIT)
_REQUEST = struct.Struct("=BBBBI48s")
_INODE_OFFSET = 68


def open_diagnosis() -> socket.socket:
    """A way to the connections of the caller's network namespace, which it keeps alive: to be closed."""
    return netlink.open_socket(_SOCK_DIAG)


def reset_all(diagnosis: socket.socket) -> int:
    """Resets every TCP connection that a process holds; its peer hears of it. Returns how many were reset.

    Raises `OSError` where the kernel was built without this.
    """
    count = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        for identity in list(_connections(diagnosis, family)):
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _STATES, identity)
            try:
                netlink.ask(diagnosis, _DESTROY, 0, body, "reset a connection")
                count += 1
            except OSError as error:
                if error.errno != errno.ENOENT:  # it ended by itself meanwhile
                    raise
    return count


def _connections(diagnosis: socket.socket, family: int) -> Iterator[bytes]:
    diagnosis.send(
        netlink.message(_BY_FAMILY, _DUMP, _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _CONNECTED, bytes(48)))
    )
    while True:
        for kind, _, body in netlink.messages(memoryview(diagnosis.recv(65536))):
            if kind != _BY_FAMILY:
                return
            # No inode: no process holds it any more. Older kernels leave such a one for ever when asked to reset it.
            if struct.unpack_from("=I", body, _INODE_OFFSET)[0]:
                yield bytes(body[4:52])
