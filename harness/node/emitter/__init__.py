"""Writes the event log of a training process. The harness judges a run by its event logs alone.

Any trainer may import this file, which uses only the standard library, and no threads or buffers.

    from harness.node.emitter import Emitter
    emit = Emitter.open("trainer", rank=rank, local_rank=local_rank, world_size=world_size)
    emit("step", step=step, begin_ns=begin, loss=loss)

A process writes a file of its own for each role: `$CHAOS_EVENTS/<role>-<node>.<incarnation>-<rank>-<start>.jsonl`. If
the environment variable `CHAOS_EVENTS` is not set, no event is written. Each event is one line, written by one
`os.write` to an `O_APPEND` descriptor, so that SIGKILL damages at most the last line.

Each line has a number, counted from 0. A gap in the numbers shows that a line was lost, for example because the disk
was full. A forked process counts its lines separately from its parent.

The first line of a file, the header, identifies the writing process. `harness.log.vocabulary` declares the fields of
the header and of each event. A number that is not finite is written as the string `"nan"`, `"inf"` or `"-inf"`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from harness.node.emitter.holds import Holds

SCHEMA_VERSION = 1
BYTES_MAX = 2**60  # what is larger is no measurement, and is refused by the reader

# Kinds of evidence that a writer may tell.
Tell = Literal[
    "steps",
    "loss",
    "positions",
    "samples",
    "digests",
    "weights",
    "checkpoints",
    "restores",
    "phases",
    "exits",
    "clocks",
]
TELLS: tuple[Tell, ...] = get_args(Tell)

# The axes of a mesh of ranks, outermost first: pipeline, replicated and sharded data, context, tensor, expert.
Axis = Literal["pp", "dp", "fsdp", "cp", "tp", "ep"]
AXES: tuple[Axis, ...] = get_args(Axis)

EXIT_LEFT = 75  # of a node's command: drained, and out of the job for good (sysexits' EX_TEMPFAIL)
EVENTS_DIR_ENV = "CHAOS_EVENTS"
STORE_ENV = "CHAOS_CHECKPOINTS"  # where checkpoints are to be in the end, relative to the folder of the run
HOLDS_ENV = "CHAOS_HOLDS"  # set only where the plan stops or strikes trainers: see `harness.node.emitter.holds`
NODE_ENV = "CHAOS_NODE"
INCARNATION_ENV = "CHAOS_INCARNATION"

Moment = tuple[int, int]  # on the wall clock and on the monotonic one, in nanoseconds


def clock_id() -> str:
    """Returns the identity of this machine's monotonic clock: the kernel's boot id."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class Emitter:
    """Appends events to this process's own event log. Methods never raise errors, because logging must not end a
    training job."""

    def __init__(self, path: pathlib.Path | None, identity: dict[str, Any] | None = None, began: Moment | None = None):
        self.path = path
        self._fd = -1
        self._begin_to_count(1)
        self._header = b""  # until it is written
        self._holds: Holds | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return  # no events from here: the scorer sees the missing writer and cannot pass
        header: dict[str, Any] = {"schema": SCHEMA_VERSION, "writer": path.stem, "host": socket.gethostname()}
        header |= {"clock": clock_id(), "pid": self._pid, **(identity or {}), "line": 0}
        self._header = _line(header, began)[0] + b"}\n"
        self._write(b"")
        if HOLDS_ENV in os.environ:
            from harness.node.emitter import holds

            self._holds = holds.load(os.environ[HOLDS_ENV], header.get("rank"), self._append)

    @classmethod
    def open(cls, role: str, **identity: Any) -> Emitter:
        """Returns an emitter for this process, which writes nothing if the variable `CHAOS_EVENTS` is not set. `began`
        is the time at which the process began (default: now). All other arguments become fields of the log's first
        line, the header."""
        began = identity.pop("began", None)
        directory = os.environ.get(EVENTS_DIR_ENV)
        if not directory:
            return cls(None)
        node = os.environ.get(NODE_ENV, socket.gethostname())
        incarnation = int(os.environ.get(INCARNATION_ENV, "1"))
        rank = f"-{identity['rank']}" if "rank" in identity else ""
        name = f"{role}-{node}.{incarnation}{rank}-{time.monotonic_ns():x}.jsonl"
        identity = {"role": role, "node": node, "incarnation": incarnation, **identity}
        return cls(pathlib.Path(directory) / name, identity, began)

    @property
    def enabled(self) -> bool:
        return self._fd >= 0

    def __call__(self, event: str, **fields: Any) -> int:
        """Writes one event, and returns the time of the event by the monotonic clock in ns."""
        return self.tell(event, fields)

    def tell(self, event: str, fields: dict[str, Any], at: Moment | None = None) -> int:
        """Writes one event with the fields `fields`. `at` is the time of the event (default: now)."""
        if self._fd < 0:
            return time.monotonic_ns()
        mono_ns = self._append({"event": event} | fields, at)
        if self._holds is not None:
            self._holds.reached({"event": event} | fields)
        return mono_ns

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Logs the start of the phase `name` before the `with` block, and the end of the phase after the block. If the
        block raises an exception, the end is not logged."""
        self("phase", name=name, edge="begin")
        yield
        self("phase", name=name, edge="end")

    def failpoint(self, name: str, **fields: Any) -> None:
        """Marks a named place in the trainer's code at which the harness can inject a fault. Writes an event only if
        the run has a fault at the place `name`."""
        if self._holds is not None and self._holds.wants(name):
            self("failpoint", name=name, **fields)

    def __copy__(self) -> Emitter:
        return self

    def __deepcopy__(self, memo: Any) -> Emitter:
        return self

    def __reduce__(self) -> tuple[type[Emitter], tuple[None]]:
        """Makes an unpickled emitter write nothing, because file descriptors are not valid in another process."""
        return Emitter, (None,)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_to_count(self, first: int, fork: str = "") -> None:
        self._pid, self._fork = os.getpid(), fork
        self._numbers = itertools.count(first)
        self._dropped = 0
        self._lock = threading.RLock()  # a signal's handler may tell something while its thread does

    def _append(self, record: dict[str, Any], at: Moment | None = None) -> int:
        if os.getpid() != self._pid:
            self._go_on_in_fork()
        with self._lock:
            if self._dropped:
                record["dropped"] = self._dropped
            line, mono_ns = _line(record, at)
            self._dropped += 1  # unless it is written: what a handler raises here may prevent that
            number = f',"line":{next(self._numbers)}{self._fork}}}\n'
            if self._write(line + number.encode()):
                self._dropped = 0
        return mono_ns

    def _go_on_in_fork(self) -> None:
        """Numbers the lines of a forked process separately from the lines of its parent in the same file."""
        self._begin_to_count(0, f',"line_fork":{time.monotonic_ns()}')
        if self._header:
            self._fd = -1

    def _write(self, line: bytes) -> bool:
        data = self._header + line
        try:
            written = os.write(self._fd, data)
        except OSError:
            return False
        if written == len(data):
            self._header = b""
            return True
        with contextlib.suppress(OSError):  # a full disk: take the half line back so that the file stays readable
            os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR) - written)
        return False


def _line(record: dict[str, Any], at: Moment | None = None) -> tuple[bytes, int]:
    """Returns a record and its time as JSON text without the closing brace, and the time by the monotonic clock in
    ns."""
    record["wall_ns"], record["mono_ns"] = _, mono_ns = at or (time.time_ns(), time.monotonic_ns())
    return json.dumps(finite(record), separators=(",", ":"))[:-1].encode(), mono_ns


def finite(value: Any) -> Any:
    """Replaces floats that are not finite by texts such as `nan`, because JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
