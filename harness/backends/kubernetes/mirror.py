"""Copies files of the run's folder between the harness and the pods, in both directions.

Every pod gets the plan's data set and the files by which faults control trainers (such as `holds/`, `damage/`,
`clock/`). If the harness changes a file, the pods get it again within milliseconds. A pod's events, answers and logs
come to the harness when they are written, and only into the folders of the pod's own node.
"""

import contextlib
import os
import pathlib
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.backends.node_base import Caller
from harness.backends.run_folder import ANSWERS, CONTROL, EVENTS, LOGS
from harness.errors import BackendError
from harness.log import untrusted_files
from harness.node.node_paths import POD_RUN_DIR

PUSHED = ("holds.json", "holds", "damage", "clock", "gpu", "rdma", "data")
LOOK_S = 0.004
PART_BYTES = 512 * 2**10
FILE_BYTES_MAX = 4 * 2**30  # of what a pod may write into one file
FILES_MAX = 10_000  # of one node
_PLAIN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,250}"


Stamp = tuple[int, int, int]


class Mirror:
    """Copies files of the run's folder from the harness to the pods, and from the pods to the harness. `lines` returns
    the connections to the present pods; `greet` sends all files to a new pod."""

    def __init__(self, run_dir: pathlib.Path, lines: Callable[[], Sequence[Caller]]):
        self._run_dir, self._lines = run_dir, lines
        self._sent: dict[str, Stamp] = {}
        self._come: dict[str, set[str]] = {}  # by node: the files that its pods have written
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def greet(self, line: Caller) -> None:
        """Sends all files that nodes read to a new pod, and returns when they are sent. Call `greet` before the
        function `lines` returns the new pod."""
        with self._lock:
            for name in self._found(PUSHED):
                self._send(line, name)

    def push(self) -> None:
        with self._lock:
            gone = self._sent.keys() - self._found(PUSHED).keys()
            now = self._found(PUSHED)  # a look beside a renaming may see neither name: two in a row do not
            gone -= now.keys()
            changed = [name for name, stamp in now.items() if self._sent.get(name) != stamp]
            for line in self._lines() if changed or gone else ():
                with contextlib.suppress(BackendError):  # it died just now; who has to know is told by its line
                    for name in changed:
                        self._send(line, name)
                    for name in sorted(gone):
                        line.call("put", name=name, data=None)
            self._sent = {name: stamp for name, stamp in self._sent.items() if name not in gone} | now

    def take(self, node: str, event: dict[str, Any]) -> bool:
        """Writes file data that a node's pod sent in an event into the run's folder. Returns False for an event that
        holds no file data.

        Raises `BackendError` for a file that this node may not write, or that is too large.
        """
        if event.get("event") != "wrote":
            return False
        match event:
            case {"name": str(name), "offset": int(offset), "data": str(data)}:
                self._append(self._place(node, name), offset, data.encode("latin-1"))
            case _:
                raise BackendError(f"the pod of {node} told of a write without its name, offset and data")
        return True

    def _append(self, name: str, offset: int, data: bytes) -> None:
        """Writes data from a pod into a file of the run's folder at this offset. Raises `BackendError` if the offset is
        beyond the end of the file, or if the file would grow too large."""
        descriptor = untrusted_files.open_file(self._run_dir, name, os.O_WRONLY | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            if not 0 <= offset <= size or offset + len(data) > FILE_BYTES_MAX:
                most = f"at most {FILE_BYTES_MAX} may come"
                raise BackendError(f"{name}: a pod wrote at {offset} of {size} bytes; {most}")
            os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def _place(self, node: str, name: str) -> str:
        """Checks and returns the path, in the run's folder, of a file that a node's pod sent. Raises `BackendError` for
        a path that this pod may not write."""
        log = re.escape(node) if node == CONTROL else rf"{re.escape(node)}\.\d{{1,9}}"
        if not re.fullmatch(rf"({EVENTS}|{ANSWERS})/{re.escape(node)}/{_PLAIN}|{LOGS}/{log}\.log", name):
            places = f"{EVENTS}/{node}/, {ANSWERS}/{node}/ and its log"
            raise BackendError(f"the pod of {node} sent a file named {name[:80]!r}; it may write {places}")
        known = self._come.setdefault(node, set())
        known.add(name)
        if len(known) > FILES_MAX:
            raise BackendError(f"the pods of {node} wrote more than {FILES_MAX} files")
        return name

    def _found(self, names: tuple[str, ...]) -> dict[str, Stamp]:
        return {str(path.relative_to(self._run_dir)): stamp for name in names for path, stamp in self._files(name)}

    def _files(self, name: str) -> Iterator[tuple[pathlib.Path, Stamp]]:
        root = self._run_dir / name
        for path in [*root.iterdir()] if root.is_dir() else [root]:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    yield path, (status.st_mtime_ns, status.st_size, status.st_ino)

    def _send(self, line: Caller, name: str) -> None:
        try:
            content = (self._run_dir / name).read_bytes()
        except FileNotFoundError:
            return  # the next look sees that
        if name.endswith(".json"):  # holds name their files by the run's folder, which is another one there
            content = content.replace(str(self._run_dir).encode(), POD_RUN_DIR.encode())
        for start in range(0, max(1, len(content)), PART_BYTES):
            part = content[start : start + PART_BYTES].decode("latin-1")
            line.call("put", name=name, data=part, append=start > 0)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.push()
