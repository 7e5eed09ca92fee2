"""Turns a container's standard input and output into one byte stream, by the *attach* call of the Docker Engine API.

Each frame of output holds the stream number (1 output, 2 errors), three zero bytes, the length (4 bytes, big endian)
and the data.
"""

import socket
import struct
from collections.abc import Sequence
from typing import IO, Any

_HEADER = struct.Struct(">BxxxI")
_OUTPUT = 1


class AttachedStream:
    """A container's standard input and output as one stream of bytes. The container's error output goes to the file
    `errors`."""

    def __init__(self, link: socket.socket, errors: IO[bytes], owners: Sequence[Any] = ()):
        self._link = link
        self._owners = owners  # what holds the connection besides `link`, to be closed with it
        self._errors = errors
        self._left = bytearray()

    def recv(self, size: int) -> bytes:
        """Returns at most `size` bytes of the container's output, or no bytes when the output has ended."""
        while not self._left:
            header = self._exactly(_HEADER.size)
            if not header:
                return b""
            kind, length = _HEADER.unpack(header)
            data = self._exactly(length)
            if kind == _OUTPUT:
                self._left += data
            else:
                self._errors.write(data)
                self._errors.flush()
        chunk = bytes(self._left[:size])
        del self._left[:size]
        return chunk

    def sendall(self, data: bytes) -> None:
        self._link.sendall(data)

    def shutdown(self, how: int) -> None:
        self._link.shutdown(how)

    def close(self) -> None:
        for each in (*self._owners, self._link, self._errors):
            each.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._link.recv(size - len(data))
            if not chunk:
                return b""
            data += chunk
        return bytes(data)
