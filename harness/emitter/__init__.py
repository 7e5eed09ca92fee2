"""The event log: what happened, as each process saw it. The only thing between running and scoring.

This file is what anybody's trainer may import: standard library only, no thread, no buffer.

    from harness.emitter import Emitter
    emit = Emitter.open("trainer", rank=rank, local_rank=local_rank, world_size=world_size)
    emit("step", step=step, begin_ns=begin, loss=loss)

One writer, one file, one process: `$CHAOS_EVENTS/<role>-<node>.<incarnation>-<rank>-<start>.jsonl`. Each event
is one line, written by one `os.write` to an `O_APPEND` descriptor, so that SIGKILL tears at most the last line.
Outside a harness (`CHAOS_EVENTS` unset) every call returns at once.

The first line, the header, says who writes. What the header and each event hold is declared in
`harness.emitter.vocabulary`; docs/events.md is the same as a page. A number that is not finite is written as the
string `"nan"`, `"inf"` or `"-inf"`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from harness.emitter.vocabulary import SCHEMA_VERSION

EXIT_LEFT = 75  # of a node's command: drained, and out of the job for good (sysexits' EX_TEMPFAIL)
EVENTS_DIR_ENV = "CHAOS_EVENTS"
HOLDS_ENV = "CHAOS_HOLDS"
NODE_ENV = "CHAOS_NODE"
INCARNATION_ENV = "CHAOS_INCARNATION"
STRIKE_TAKEN = ".taken"
HOLD_S_MAX = 10.0  # a harness that died while holding a trainer must not hang it


def clock_id() -> str:
    """Identity of this machine's monotonic clock: the kernel's boot id."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class Emitter:
    """Appends events to this process's own file. Never raises: telemetry must not kill a training job."""

    def __init__(self, path: pathlib.Path | None, identity: dict[str, Any] | None = None):
        self.path = path
        self._fd = -1
        self._written = 0
        self._dropped = 0
        self._header = b""  # until it is written
        self._holds: list[dict[str, Any]] = []
        self._rank = (identity or {}).get("rank")
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return  # no events from here: the scorer sees the missing writer and cannot pass
        header = {"schema": SCHEMA_VERSION, "writer": path.stem, "host": socket.gethostname()}
        header |= {"clock": clock_id(), "pid": os.getpid()} | (identity or {})
        self._header = _line(header)[0]
        self._write(b"")
        self._load_holds()

    @classmethod
    def open(cls, role: str, **identity: Any) -> Emitter:
        """The emitter of this process, as told by the environment (a silent one outside a harness)."""
        directory = os.environ.get(EVENTS_DIR_ENV)
        if not directory:
            return cls(None)
        node = os.environ.get(NODE_ENV, socket.gethostname())
        incarnation = int(os.environ.get(INCARNATION_ENV, "1"))
        rank = f"-{identity['rank']}" if "rank" in identity else ""
        name = f"{role}-{node}.{incarnation}{rank}-{time.monotonic_ns():x}.jsonl"
        return cls(pathlib.Path(directory) / name, {"role": role, "node": node, "incarnation": incarnation} | identity)

    @property
    def enabled(self) -> bool:
        return self._fd >= 0

    def __call__(self, event: str, **fields: Any) -> int:
        """Writes one event; returns its `mono_ns`, so that what follows can begin exactly where it ended."""
        if self._fd < 0:
            return time.monotonic_ns()
        if self._dropped:
            fields["dropped"] = self._dropped
        mono_ns = self._append({"event": event} | fields)
        if self._holds:
            self._hold({"event": event} | fields)
        return mono_ns

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Marks the begin and, unless it is left by an exception, the end of a named phase."""
        self("phase", name=name, edge="begin")
        yield
        self("phase", name=name, edge="end")

    def failpoint(self, name: str, **fields: Any) -> None:
        """A named place where a harness may want to act. Costs one list test when none is armed."""
        if self._holds and any(hold["match"].get("name") == name for hold in self._holds):
            self("failpoint", name=name, **fields)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, record: dict[str, Any]) -> int:
        line, mono_ns = _line(record)
        self._dropped = 0 if self._write(line) else self._dropped + 1
        return mono_ns

    def _write(self, line: bytes) -> bool:
        """Writes a line, after the header where a full disk has refused that one so far."""
        data = self._header + line
        try:
            written = os.write(self._fd, data)
        except OSError:
            written = 0
        if written == len(data):
            self._written += written
            self._header = b""
            return True
        with contextlib.suppress(OSError):  # a full disk: take the half line back so that the file stays readable
            os.ftruncate(self._fd, self._written)
        return False

    def _load_holds(self) -> None:
        path = os.environ.get(HOLDS_ENV)
        if path:
            with contextlib.suppress(OSError, ValueError):
                self._holds = json.loads(pathlib.Path(path).read_text())

    def _hold(self, record: dict[str, Any]) -> None:
        """Waits where the plan wants a fault to act, until the harness has acted; or is struck."""
        for hold in self._holds:
            matches = all(record.get(key) == value for key, value in hold["match"].items())
            mine = hold.get("rank") in (None, self._rank)
            if matches and mine and os.path.exists(hold["armed"]):
                if "tokens" in hold:
                    self._be_struck(hold)
                    continue
                deadline = time.monotonic() + hold.get("limit_s", HOLD_S_MAX)
                while not os.path.exists(hold["released"]) and time.monotonic() < deadline:
                    time.sleep(0.001)

    def _be_struck(self, hold: dict[str, Any]) -> None:
        """Ends or misleads the process if one of the planned strikes is left: whoever renames its file takes it.

        The harness removes the renamed file once it has logged the strike, so that no death comes before its reason.
        """
        for token in hold["tokens"]:
            with contextlib.suppress(OSError):  # taken by another process before
                os.rename(token, token + STRIKE_TAKEN)
                deadline = time.monotonic() + HOLD_S_MAX
                while os.path.exists(token + STRIKE_TAKEN) and time.monotonic() < deadline:
                    time.sleep(0.001)
                if not hold["mislead"]:
                    os._exit(hold["code"])
                self._append({"event": "failpoint", "name": "misled"} | _mislead(hold["mislead"]))
                return


def _line(record: dict[str, Any]) -> tuple[bytes, int]:
    """The record with the time as a line, and its monotonic time."""
    record["wall_ns"] = time.time_ns()
    record["mono_ns"] = mono_ns = time.monotonic_ns()
    return (json.dumps(_finite(record), separators=(",", ":")) + "\n").encode(), mono_ns


def _mislead(variable: str) -> dict[str, str]:
    """Another place in the job than the one this process was started for: a neighbour's, or in a larger world."""
    rank, world_size = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    wrong = (rank + 1) % max(1, world_size) if variable == "RANK" else world_size + 1
    os.environ[variable] = str(wrong)
    return {"variable": variable, "value": str(wrong)}


def _finite(value: Any) -> Any:
    """JSON has no NaN: a float that is not finite becomes its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
