"""Carries remote calls between the harness and its processes on nodes: JSON over a stream socket.

A frame is a length (4 bytes, big endian) and that many bytes of JSON. A frame holds a call `{"id", "call", "params"}`,
an answer `{"id", "result"}` or `{"id", "error": {"kind", "message", "stage", "errno"}}`, or an event `{"event", …}`. A
process's first event is `ready`, with data on the process, or `failed`, with the `error` that kept the process from
starting.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from harness import errors
from harness.node.compat import TIMEOUTS

Message = dict[str, Any]
OnEvent = Callable[[Message], None]

FRAME_BYTES_MAX = 16 * 2**20
_LENGTH = struct.Struct(">I")


class Stream(Protocol):
    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class StageError(errors.BackendError):
    """Raised if the kernel refuses an operation that virtual nodes need. `stage` names the operation, `errno` the
    kernel's reason."""

    def __init__(self, stage: str, errno: int, message: str):
        super().__init__(f"{stage}: {message}")
        self.stage = stage
        self.errno = errno


def pack(message: Message) -> bytes:
    """Packs a message into bytes, with its length. A dataclass in the message becomes an object with its fields."""
    body = json.dumps(message, separators=(",", ":"), default=dataclasses.asdict).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(body)} bytes; at most {FRAME_BYTES_MAX} are allowed")
    return _LENGTH.pack(len(body)) + body


def unpack(frame: bytes) -> Message:
    body: Message = json.loads(frame[_LENGTH.size :])
    return body


def _length(header: bytes) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > FRAME_BYTES_MAX:
        raise ConnectionError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are allowed")
    return length


def send(link: socket.socket, message: Message) -> None:
    link.sendall(pack(message))


def receive(link: Stream) -> Message:
    """Reads a message from `link`. Raises `ConnectionError` if `link` ends, `TimeoutError` after its timeout."""
    body: Message = json.loads(_receive_exactly(link, _length(_receive_exactly(link, _LENGTH.size))))
    return body


def _receive_exactly(link: Stream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the other side is gone")
        data += chunk
    return bytes(data)


async def receive_async(reader: asyncio.StreamReader) -> Message:
    """Reads the next message from a stream, in an event loop. Raises `ConnectionError` at the end of the stream."""
    try:
        header = await reader.readexactly(_LENGTH.size)
        body: Message = json.loads(await reader.readexactly(_length(header)))
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the other side is gone") from error
    return body


def error_to_message(error: BaseException) -> Message:
    """Makes the `error` object of an RPC answer from an exception. `to_error` makes an exception from an `error`
    object."""
    kind = type(error).__name__ if isinstance(error, errors.ChaosError) else "BackendError"
    message: Message = {"kind": kind, "message": str(error) or type(error).__name__}
    if isinstance(error, StageError):
        message |= {"stage": error.stage, "errno": error.errno, "message": str(error)}
    elif not isinstance(error, (errors.ChaosError, OSError)):
        message["message"] = f"{type(error).__name__}: {error}"
    return message


def to_error(message: Message) -> errors.ChaosError:
    if message["kind"] == "StageError":
        stage = message["stage"]
        return StageError(stage, message["errno"], message["message"].removeprefix(f"{stage}: "))
    kind = getattr(errors, message["kind"], errors.BackendError)
    result: errors.ChaosError = kind(message["message"])
    return result


def result(answer: Message) -> Any:
    if "error" in answer:
        raise to_error(answer["error"])
    return answer["result"]


class ChildStream:
    """A socket to a child process: `close` waits until the child has ended, and kills it after `end_s_max`."""

    def __init__(self, link: socket.socket, process: subprocess.Popen[bytes], end_s_max: float):
        self._link, self._process, self._end_s_max = link, process, end_s_max
        self.recv, self.sendall, self.shutdown = link.recv, link.sendall, link.shutdown

    def close(self) -> None:
        self._link.close()
        try:
            self._process.wait(self._end_s_max)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Line:
    """A connection over which any thread can call functions of another process of the harness. If one of the two
    processes ends, the other ends, too."""

    def __init__(self, stream: Stream, on_event: OnEvent = lambda _: None, on_end: Callable[[], None] = lambda: None):
        self.ready: Message = {}  # what the process told first
        self._stream = stream
        self._on_event = on_event
        self._on_end = on_end
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._came_up, self._over = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._read, name="lab-reader", daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    def wait_ended(self, limit_s: float) -> bool:
        return self._over.wait(limit_s)

    def wait_ready(self, limit_s: float) -> bool:
        """Returns True if the process at the other end is ready in time. Raises the error that the process sent."""
        self._came_up.wait(limit_s)
        if "error" in self.ready:
            raise to_error(self.ready["error"])
        return bool(self.ready) and not self.ended

    def call(self, method: str, limit_s: float = 30.0, **params: Any) -> Any:
        """Calls a function of the other process. Raises the function's error, or `BackendError` without an answer."""
        number, answer = next(self._ids), Future[Any]()
        with self._lock:
            if self.ended:
                raise errors.BackendError(f"{method}: the lab has ended")
            self._waiting[number] = answer
            try:
                self._stream.sendall(pack({"id": number, "call": method, "params": params}))
            except OSError as error:
                del self._waiting[number]
                raise errors.BackendError(f"{method}: the lab has ended") from error
        try:
            return answer.result(limit_s)
        except TIMEOUTS as error:
            raise errors.BackendError(f"{method}: no answer from the lab within {limit_s:g} s") from error
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other side may have ended it first
            self._stream.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join(5.0)
        self._stream.close()

    def _read(self) -> None:
        try:
            while True:
                self._take(receive(self._stream))
        except OSError:
            reason = "the lab ended before it answered"
        except Exception as error:  # no longer our protocol: that is the end of the line as well
            reason = f"the line is broken: {type(error).__name__}: {error}"
        with self._lock:
            self._over.set()
            self._came_up.set()
            waiting = list(self._waiting.values())
        for answer in waiting:
            answer.set_exception(errors.BackendError(reason))
        self._on_end()

    def _take(self, message: Message) -> None:
        if "event" in message:
            if message["event"] in ("ready", "failed"):
                self.ready = message
                self._came_up.set()
            else:
                self._on_event(message)
            return
        answer = self._waiting.pop(message["id"], None)
        if answer is None:
            return  # the caller gave up waiting
        if "error" in message:
            answer.set_exception(to_error(message["error"]))
        else:
            answer.set_result(message["result"])


class AsyncClient:
    """A connection to a process of the harness, for callers in an event loop. `closed` is set when the connection has
    ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: OnEvent):
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.closed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def call(self, method: str, limit_s: float = 10.0, **params: Any) -> Any:
        """Returns a remote call's result. Raises `ConnectionError` if the peer is gone, `BackendError` on timeout."""
        if self.closed.is_set():
            raise ConnectionError("the other side is gone")
        number, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(pack({"id": number, "call": method, "params": params}))
        try:
            return await asyncio.wait_for(answer, limit_s)
        except TIMEOUTS as error:
            raise errors.BackendError(f"{method}: no answer from the node within {limit_s:g} s") from error
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):  # the end of the node, told to the callers below
            while True:
                self._take(await receive_async(self._reader))
        self.closed.set()
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the other side is gone"))

    def _take(self, message: Message) -> None:
        if "event" in message:
            self._on_event(message)
            return
        answer = self._waiting.get(message["id"])
        if answer is None or answer.done():
            return  # the caller gave up waiting
        if "error" in message:
            answer.set_exception(to_error(message["error"]))
        else:
            answer.set_result(message["result"])
