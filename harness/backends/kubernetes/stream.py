"""Turns a pod's standard input and output into one byte stream, by *attach*, a WebSocket to the API server.

Each message begins with its channel's number: 0 for input, 1 for output, 2 for errors, 3 for the final status (v4).
"""

import contextlib
import io
import json
import select
import threading
import time
from typing import IO, Any

from harness.errors import BackendError

INPUT, OUTPUT, ERRORS, STATUS = 0, 1, 2, 3
PART_BYTES = 32 * 2**10  # of one message; some proxies on the way take no large ones
LOOK_MS = 200
WORDS_MAX = 500  # of an error's text
OUTPUT_BYTES_MAX = 4 * 2**20  # of a command's output


class PodStream:
    """The input and output of a process in a pod, as one stream of bytes. The error output of the process goes to the
    file `errors`.

    Reading and writing share one lock, because a TLS connection must not be read and written at the same time.
    """

    def __init__(self, link: Any, errors: IO[bytes]):
        self._link, self._errors = link, errors
        self._left = bytearray()
        self.status = b""  # how the command ended, in the kubelet's words; told at its end
        self._lock = threading.Lock()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Returns the number of received output bytes that `recv` has not returned yet."""
        return len(self._left)

    def recv(self, size: int) -> bytes:
        """Returns at most `size` bytes of the output, or no bytes when the output has ended."""
        while not self._left:
            if self._closed or not self.take():
                return b""
        chunk = bytes(self._left[:size])
        del self._left[:size]
        return chunk

    def sendall(self, data: bytes) -> None:
        from websocket import ABNF, WebSocketException

        for start in range(0, len(data), PART_BYTES):
            with self._lock:
                try:
                    part = bytes([INPUT]) + data[start : start + PART_BYTES]
                    self._link.send(part, opcode=ABNF.OPCODE_BINARY)
                except WebSocketException as error:
                    raise ConnectionError("the line to the pod has ended") from error

    def shutdown(self, how: int) -> None:
        self._closed = True

    def close(self) -> None:
        from websocket import WebSocketException

        self._closed = True
        with self._lock:
            with contextlib.suppress(WebSocketException, OSError):  # its other end may be gone
                self._link.send_close()
            self._link.shutdown()
        self._errors.close()

    def take(self) -> bool:
        """Waits at most 0.2 s for output of the process in the pod. Returns False if the output has ended."""
        from websocket import ABNF, WebSocketException

        link = self._link.sock
        try:
            if link is None:
                return False
            if not getattr(link, "pending", int)():
                poll = select.poll()
                poll.register(link, select.POLLIN)
                if not poll.poll(LOOK_MS):
                    return True
            with self._lock:
                kind, frame = self._link.recv_data_frame(True)
        except (WebSocketException, OSError, ValueError):
            return False
        if kind == ABNF.OPCODE_CLOSE:
            return False
        if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data:
            self._sort(frame.data[0], frame.data[1:])
        return True

    def _sort(self, channel: int, data: bytes) -> None:
        if channel == OUTPUT:
            self._left += data
        elif channel == ERRORS and data:
            self._errors.write(data)
            self._errors.flush()
        elif channel == STATUS:
            self.status = data[:OUTPUT_BYTES_MAX]


def run_to_end(link: Any, what: str, limit_s: float) -> str:
    """Waits for the end of a command in a pod, and returns its output. Raises `BackendError` unless the command exits
    with code 0 within `limit_s` seconds."""
    deadline, errors = time.monotonic() + limit_s, io.BytesIO()
    stream = PodStream(link, errors)
    try:
        while stream.take():
            if time.monotonic() > deadline:
                raise BackendError(f"{what}: no end within {limit_s:g} s")
            if stream.waiting + errors.tell() > OUTPUT_BYTES_MAX:
                raise BackendError(f"{what}: it prints more than {OUTPUT_BYTES_MAX} bytes")
        output = stream.recv(OUTPUT_BYTES_MAX) if stream.waiting else b""
        words = errors.getvalue()[:WORDS_MAX].decode(errors="replace")
    finally:
        stream.close()
    try:  # how the command ended, as the kubelet says at its end
        told = json.loads(stream.status)
        why = "" if told["status"] == "Success" else str(told.get("message", "failed"))
    except (ValueError, KeyError, TypeError):
        why = "it was cut off before its end"
    if why:
        raise BackendError(f"{what}: {why} {words}".strip())
    return output.decode(errors="replace")
