"""The run's folder, here and in the pods: what the harness writes goes there, what the pods write comes here.

Files by which faults and trainers speak to each other (`holds/`, `damage/`, `clock/`) and the plan's own data set go to
every pod, and again a few milliseconds after they change. Events and logs come back as they are written.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from harness.backends.agent.places import POD_RUN_DIR as RUN_DIR
from harness.emitter import STRIKE_TAKEN
from harness.errors import BackendError

PUSHED = ("holds.json", "holds", "damage", "clock", "data")
LOOK_S = 0.004
PART_BYTES = 512 * 2**10
_NAME = re.compile(r"(events|logs)/[A-Za-z0-9_][A-Za-z0-9._-]{0,250}")


class Line(Protocol):
    def call(self, method: str, limit_s: float = 10.0, **params: Any) -> Any: ...


Stamp = tuple[int, int, int]
_UNKNOWN = (0, 0, 0)


class Mirror:
    """`lines` gives the pods there are now; one that joins is brought up to date by `greet`."""

    def __init__(self, run_dir: pathlib.Path, lines: Callable[[], list[Line]]):
        self._run_dir, self._lines = run_dir, lines
        self._sent: dict[str, Stamp] = {}
        self._come: collections.deque[str] = collections.deque()  # files that pods made, for `push` to know of
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def greet(self, line: Line) -> None:
        """Everything a new pod needs is there when this returns. It must not be among `lines` before."""
        with self._lock:
            for name in self._found(PUSHED):
                self._send(line, name)

    def push(self) -> None:
        """What changed here is so in every pod when this returns."""
        with self._lock:
            while self._come:
                self._sent.setdefault(self._come.popleft(), _UNKNOWN)
            now = self._found(PUSHED)
            changed = [name for name, stamp in now.items() if self._sent.get(name) != stamp]
            gone = self._sent.keys() - now.keys()
            for line in self._lines() if changed or gone else ():
                with contextlib.suppress(BackendError):  # it died just now; who has to know is told by its line
                    for name in changed:
                        self._send(line, name)
                    for name in sorted(gone):
                        line.call("put", name=name, data=None)
            self._sent = now

    def take(self, event: dict[str, Any]) -> bool:
        """Writes down what a pod has told; false for an event that is not about files."""
        match event:
            case {"event": "wrote", "name": str(name), "offset": int(offset), "data": str(data)}:
                descriptor = os.open(self._place(name), os.O_WRONLY | os.O_CREAT, 0o644)
                try:
                    os.pwrite(descriptor, data.encode("latin-1"), offset)
                finally:
                    os.close(descriptor)
            case {"event": "taken", "name": str(name)}:
                self._take_token(name)
            case _:
                return False
        return True

    def _take_token(self, name: str) -> None:
        """A trainer has taken a planned crash. Whoever was second finds it gone, and is let go by the next push."""
        token = self._run_dir / "holds" / pathlib.PurePath(name).name.removesuffix(STRIKE_TAKEN)
        with contextlib.suppress(FileNotFoundError):
            os.rename(token, f"{token}{STRIKE_TAKEN}")
        self._come.append(f"holds/{token.name}{STRIKE_TAKEN}")

    def _place(self, name: str) -> pathlib.Path:
        """Raises `BackendError`: a pod has no business in any other place of this machine."""
        if not _NAME.fullmatch(name):
            raise BackendError(f"a pod sent a file named {name[:80]!r}; allowed are events/… and logs/…")
        return self._run_dir / name

    def _found(self, names: tuple[str, ...]) -> dict[str, Stamp]:
        return {str(path.relative_to(self._run_dir)): stamp for name in names for path, stamp in self._files(name)}

    def _files(self, name: str) -> Iterator[tuple[pathlib.Path, Stamp]]:
        root = self._run_dir / name
        with contextlib.suppress(FileNotFoundError):
            for path in [*root.iterdir()] if root.is_dir() else [root]:
                status = path.stat()
                if path.is_file():
                    yield path, (status.st_mtime_ns, status.st_size, status.st_ino)

    def _send(self, line: Line, name: str) -> None:
        try:
            content = (self._run_dir / name).read_bytes()
        except FileNotFoundError:
            return  # the next look sees that
        if name.endswith(".json"):  # holds name their files by the run's folder, which is another one there
            content = content.replace(str(self._run_dir).encode(), RUN_DIR.encode())
        for start in range(0, max(1, len(content)), PART_BYTES):
            part = content[start : start + PART_BYTES].decode("latin-1")
            line.call("put", name=name, data=part, append=start > 0)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.push()
