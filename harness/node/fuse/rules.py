"""Decides which file operations a fault delays or makes fail, and which data a simulated power failure loses."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import pathlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.node.types import STORAGE_OPERATIONS, StorageRule

PAGE_BYTES = 4096
TRY_BYTES = 2**20
COUNTS = (
    *("matched", "tried", "failed", "bytes", "cut", "lost_bytes", "lost_renames"),
    *("waits", "delayed_ns", "longest_ns", "busy_ns"),
)


@dataclass
class Verdict:
    """The answer to a file operation: a delay, then an `error` or the transfer of `allowed` bytes (`None`: all)."""

    delay_s: float = 0.0
    error: int = 0
    allowed: int | None = None
    size: int = 0
    hold: bool = False  # not answered until the power is back
    hang: bool = False  # not answered until the rule ends
    rules: list[FileRule] = field(default_factory=list)


@dataclass
class Volatile:
    """A file's written data that is not durable yet. `descriptor` is a duplicate, because the job may close its own."""

    descriptor: int
    ranges: list[tuple[int, int]] = field(default_factory=list)  # offset, size


class FileRule:
    """An active storage fault (rule), which delays file operations or makes them fail. The rule applies to all
    processes in the PID namespace of process `pid` or, if `pid` is `None`, to every node. Raises `OSError` if process
    `pid` is gone."""

    def __init__(self, number: int, spec: StorageRule, pid: int | None):
        unknown = set(spec.operations) - set(STORAGE_OPERATIONS)
        if unknown:
            raise UsageError(f"unknown file operations {sorted(unknown)}; choose from: {', '.join(STORAGE_OPERATIONS)}")
        if spec.error and not hasattr(errno, spec.error):
            raise UsageError(f"error {spec.error!r}: write the name of an errno, such as EIO or ENOSPC")
        self.number, self.spec = number, spec
        # Held open: else the kernel may soon give the namespace's name to another one, perhaps a replacement's.
        self._held = None if pid is None else os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
        self._space = None if self._held is None else os.readlink(f"/proc/self/fd/{self._held}")
        self.errno: int = getattr(errno, spec.error) if spec.error else 0
        self.counts = dict.fromkeys(COUNTS, 0)
        self._dice = random.Random(spec.seed)
        self._lock = threading.Lock()
        self.off = False  # whether the node's storage is without power
        self._free_at = 0.0
        self._waiting: dict[int, tuple[int, int]] = {}  # request → its thread, and when it began to wait (ns)
        self._busy_since_ns = 0
        self._volatile: dict[tuple[int, int], Volatile] = {}
        self._renamed: tuple[str, str] | None = None

    def covers(self, pid: int) -> bool:
        if self._space is None:
            return True
        try:
            return os.readlink(f"/proc/{pid}/ns/pid") == self._space
        except OSError:  # the process is gone
            return False

    def matches(self, operation: str, paths: tuple[str, ...]) -> bool:
        return operation in self.spec.operations and self._named(paths)

    def judge(self, operation: str, paths: tuple[str, ...], size: int, verdict: Verdict) -> None:
        with self._lock:
            # A lie about fsync or rename comes out at the first operation after the rename.
            lie_comes_out = self.spec.power in ("fsync_lied", "rename_lost") and self._renamed is not None
            if self.off or lie_comes_out:
                self.off = True
                verdict.hold = True
                verdict.rules.append(self)
                return
            if not self.matches(operation, paths):
                return
            self.counts["matched"] += 1
            verdict.rules.append(self)
            verdict.hang |= self.spec.hang
            verdict.delay_s = max(verdict.delay_s, self.spec.delay_s)
            if self.spec.rate_bytes and operation in ("read", "write"):
                self._free_at = max(self._free_at, time.monotonic()) + size / self.spec.rate_bytes
                verdict.delay_s = max(verdict.delay_s, self._free_at - time.monotonic())
            self._judge_failure(operation, size, verdict)

    def _judge_failure(self, operation: str, size: int, verdict: Verdict) -> None:
        left = self.spec.after_bytes - self.counts["bytes"]
        cuts = self.spec.power in ("prefix", "reordered")
        if not self.errno and not cuts:
            return
        if left > 0:
            if operation != "write":
                return
            verdict.allowed = min(size, left, *([] if verdict.allowed is None else [verdict.allowed]))
            self.counts["bytes"] += verdict.allowed
            if not (cuts and size >= left):
                return
        if cuts:
            self.off = True
            verdict.hold = True
            verdict.allowed = min(size, max(0, left))
        elif not self.spec.times or self.counts["failed"] < self.spec.times:
            self.counts["tried"] += 1
            if self.spec.share >= 1 or self._dice.random() < self.spec.share:
                self.counts["failed"] += 1
                verdict.error = self.errno

    def would(self, operation: str) -> tuple[float, bool]:
        """Returns the delay in s that the rule would now cause for a file operation of 1 MiB, and True if the operation
        would fail."""
        with self._lock:
            moves = operation in ("read", "write") and self.spec.rate_bytes
            delay_s = max(self.spec.delay_s, TRY_BYTES / self.spec.rate_bytes if moves else 0.0)
            written = self.counts["bytes"] >= self.spec.after_bytes
            spent = 0 < self.spec.times <= self.counts["failed"]
            return delay_s, self.off or self.spec.hang or bool(self.errno and written and not spent)

    def holds(self) -> bool:
        """Returns True if waiting file operations get no answer as long as the rule is active."""
        return self.off or self.spec.hang

    def told(self) -> dict[str, int]:
        """Returns counters of the rule's effect, such as the numbers of disturbed and of waiting file operations. The
        counter `longest_ns` includes operations that still wait."""
        with self._lock:
            waiting, counts = list(self._waiting.values()), dict(self.counts)
        longest_ns = max((time.monotonic_ns() - since_ns for _, since_ns in waiting), default=0)
        counts["longest_ns"] = max(counts["longest_ns"], longest_ns)
        asleep = sum(state_of(thread) == "D" for thread in {thread for thread, _ in waiting})
        return counts | {"unanswered": len(waiting), "uninterruptible": asleep}

    @contextlib.contextmanager
    def waiting(self, request: int, thread: int, size: int) -> Iterator[None]:
        begin_ns = time.monotonic_ns()
        with self._lock:
            if not self._waiting:
                self._busy_since_ns = begin_ns
            self._waiting[request] = thread, begin_ns
        yield
        end_ns = time.monotonic_ns()
        with self._lock:
            del self._waiting[request]
            self.counts["waits"] += 1
            self.counts["delayed_ns"] += end_ns - begin_ns
            self.counts["longest_ns"] = max(self.counts["longest_ns"], end_ns - begin_ns)
            self.counts["busy_ns"] += end_ns - self._busy_since_ns
            self._busy_since_ns = end_ns
            if self.spec.rate_bytes:
                self.counts["bytes"] += size

    def note_write(self, paths: tuple[str, ...], descriptor: int, offset: int, size: int) -> None:
        if not (self.spec.power == "fsync_lied" or (self.spec.power == "reordered" and self._named(paths))):
            return
        with self._lock:
            found = os.fstat(descriptor)
            key = (found.st_dev, found.st_ino)
            if key not in self._volatile:
                self._volatile[key] = Volatile(os.dup(descriptor))
            self._volatile[key].ranges.append((offset, size))

    def note_fsync(self, descriptor: int) -> None:
        """Marks a file's written data as durable, unless the rule simulates a disk that ignores fsync."""
        if self.spec.power != "reordered":
            return
        with self._lock:
            found = os.fstat(descriptor)
            volatile = self._volatile.pop((found.st_dev, found.st_ino), None)
            if volatile is not None:
                os.close(volatile.descriptor)

    def note_rename(self, old: str, new: str) -> None:
        with self._lock:
            if self._renamed is None and self.matches("rename", (old, new)):
                self._renamed = (old, new)

    def lose(self, rename: Callable[[str, str], None]) -> None:
        """Discards all data that was not durable when the simulated power failed. A second call discards nothing."""
        with self._lock:
            if self.spec.power == "rename_lost" and self._renamed is not None and not self.counts["lost_renames"]:
                old, new = self._renamed
                rename(new, old)
                self.counts["lost_renames"] = 1
            keep = 0.5 if self.spec.power == "reordered" else 0.0
            for volatile in self._volatile.values():
                self.counts["lost_bytes"] += lose_pages(volatile, keep, self._dice)
                os.close(volatile.descriptor)
            self._volatile.clear()
            self.counts["cut"] = 1  # told once the loss can be seen

    def end(self) -> None:
        with self._lock:
            for volatile in self._volatile.values():
                os.close(volatile.descriptor)
            self._volatile.clear()
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def _named(self, paths: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatch(path, self.spec.pattern) for path in paths)


def state_of(thread: int) -> str:
    try:
        return pathlib.Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lose_pages(volatile: Volatile, keep: float, dice: random.Random) -> int:
    """Zeroes the file's written pages, except for a random share `keep`. Returns the number of zeroed bytes."""
    pages = {
        page
        for offset, size in volatile.ranges
        for page in range(offset // PAGE_BYTES, -(-(offset + size) // PAGE_BYTES))
    }
    end, lost = os.fstat(volatile.descriptor).st_size, 0
    for page in sorted(pages):
        size = min(PAGE_BYTES, end - page * PAGE_BYTES)
        if size > 0 and dice.random() >= keep:
            lost += os.pwrite(volatile.descriptor, bytes(size), page * PAGE_BYTES)
    return lost
