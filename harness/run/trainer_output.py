"""Follows files that a trainer writes, such as its log, and turns their contents into events of the node.

Only regular files are read, and no link is followed. The number of files and the size of each read are limited. Every
event is validated. The resulting event log looks like the log of a trainer that logs events itself. If a trainer's
files state no times, the event log's header states the uncertainty of the times (`uncertainty_ns`). Text that cannot be
parsed is skipped and noted. If the harness stops reading a file, it logs `reader.failed`, because evidence is missing.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from harness.errors import FaultError
from harness.log import checked_lines, files, untrusted_files
from harness.log.vocabulary import RANKS_MAX
from harness.node.emitter import SCHEMA_VERSION, clock_id, finite
from harness.trainers.readers.contract import Reader, Source, Told

POLL_NS = 200_000_000
SCAN_NS = 1_000_000_000
CLOSE_NS = 20_000_000_000
FILES_MAX = 4096
LIVES_MAX = 10_000
CHUNK_BYTES = 2 * 2**20  # of one file in one poll
WHOLE_BYTES_MAX = 32 * 2**20
NOTES_MAX = 20
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


@dataclass
class _File:
    path: str
    node: str
    incarnation: int
    source: Source
    rank: int | None = None  # its rank, by its name; `None`: its lines name the rank
    offset: int = 0
    state: tuple[int, int] = (0, 0)
    given_up: bool = False


@dataclass
class _WorkerLog:
    out: IO[bytes]
    file: _File
    last_step: int = 0
    last_ns: int = 0
    kept: list[Told] = field(default_factory=list)


class Readings:
    """Turns a trainer's output files into events: `poll` reads new contents, and `close` reads the rest."""

    def __init__(
        self,
        reader: Reader,
        run_dir: pathlib.Path,
        first_node: Callable[[], tuple[str, int]],
        emit: Callable[..., object],
        ranks: int,
        ranks_per_node: int = 1,
    ):
        self.reader, self.run_dir, self.first_node, self.emit = reader, run_dir, first_node, emit
        self.ranks, self.ranks_per_node = ranks, ranks_per_node
        self.notes: list[str] = []
        self._failed: set[str] = set()  # files and folders that are not read on, as far as that was told
        self._files: dict[str, _File] = {}
        self._lives: dict[int, _WorkerLog] = {}
        self._waiting: dict[int, list[Told]] = {}  # what was told before the first step of a rank
        self._saves: set[int] = set()
        self._opened = 0
        self._polled_ns = self._scanned_ns = -SCAN_NS

    def poll(self, now_ns: int) -> None:
        if now_ns - self._polled_ns >= POLL_NS:
            self._polled_ns = now_ns
            self._read(now_ns)

    def close(self) -> None:
        self._scanned_ns, end_ns = -SCAN_NS, time.monotonic_ns() + CLOSE_NS
        read_bytes = -1
        while self._read_bytes > read_bytes and time.monotonic_ns() < end_ns:
            read_bytes = self._read_bytes
            self._read(time.monotonic_ns())
        if self._read_bytes > read_bytes:
            self._fail(self.reader.file, f"not read completely within {CLOSE_NS // 10**9} s after the end of the job")
        for life in self._lives.values():
            life.out.close()

    @property
    def _read_bytes(self) -> int:
        return sum(file.offset for file in self._files.values())

    def _read(self, now_ns: int) -> None:
        if now_ns - self._scanned_ns >= SCAN_NS:
            self._scanned_ns = now_ns
            self._scan()
        for file in list(self._files.values()):
            if not file.given_up:
                for told in self._told(file):
                    self._take(file, told, now_ns)

    def _scan(self) -> None:
        pattern = self.reader.matching()
        try:
            paths = untrusted_files.files_below(self.run_dir, self.reader.folder())
        except (FaultError, OSError) as error:
            self._fail(self.reader.folder(), str(error))
            return
        if len(paths) >= untrusted_files.ENTRIES_MAX:
            self._fail(self.reader.folder(), f"{untrusted_files.ENTRIES_MAX} files or more; the rest is not read")
        for path in paths:
            found = pattern.fullmatch(path)
            if found and path not in self._files:
                self._add(path, found.groupdict())

    def _add(self, path: str, told: Mapping[str, str | None]) -> None:
        node, incarnation = self.first_node()
        if told.get("node") is not None and not _NODE.fullmatch(str(told["node"])):
            allowed = "allowed are at most 63 letters, digits, '-', '_' and '.'"
            self._fail(ascii(path)[:100], f"the name for {{node}} is not valid; {allowed}")
        elif len(self._files) >= FILES_MAX:
            self._fail(self.reader.file, f"more than {FILES_MAX} files; the rest is not read")
        else:
            place = told.get("node") or node, int(told.get("incarnation") or incarnation)
            self._files[path] = _File(path, *place, self.reader.open(), self._rank(told))

    def _rank(self, told: Mapping[str, str | None]) -> int | None:
        if told.get("rank"):
            return int(str(told["rank"]))
        number = re.search(r"\d+$", told.get("node") or "")
        return int(number[0]) * self.ranks_per_node if number else None

    def _told(self, file: _File) -> Iterator[Told]:
        try:
            data = self._whole(file) if self.reader.whole else self._new(file)
            yield from file.source.feed(data) if data else ()
        except FileNotFoundError:
            return
        except ValueError as error:
            self._note(f"{file.path}: {error}")
        except (FaultError, OSError) as error:
            file.given_up = True
            self._fail(file.path, str(error))

    def _new(self, file: _File) -> bytes:
        with untrusted_files.open_reader(self.run_dir, file.path) as content:
            content.seek(file.offset)
            data = content.read(CHUNK_BYTES)
        file.offset += len(data)
        return data

    def _whole(self, file: _File) -> bytes:
        with untrusted_files.open_reader(self.run_dir, file.path) as content:
            status = os.fstat(content.fileno())
            state = status.st_mtime_ns, status.st_size
            if state == file.state:
                return b""
            data = content.read(WHOLE_BYTES_MAX + 1)
        if len(data) > WHOLE_BYTES_MAX:
            raise FaultError(f"more than {WHOLE_BYTES_MAX} bytes; it is not read")
        file.state = state
        return data

    # Events

    def _take(self, file: _File, told: Told, now_ns: int) -> None:
        rank = told.rank or file.rank or 0
        rank = rank if rank < min(self.ranks, RANKS_MAX) else 0
        life = self._lives.get(rank)
        if told.event == "checkpoint.committed" and self.reader.whole:
            if told.fields["step"] in self._saves:
                return
            self._saves.add(told.fields["step"])
        if told.event == "step":
            step = told.fields["step"]
            if life is not None and not self._is_new(life, file, step):
                return
            if life is None or self._started_again(rank, life, file, step):
                life = self._begin(rank, file, told, now_ns)
            if life is not None:
                self._write(life, told, now_ns)
                life.last_step = step
        elif told.event == "restored" or life is None:
            kept = self._waiting.setdefault(rank, [])
            del kept[:-NOTES_MAX]
            kept.append(told)
        else:
            self._write(life, told, now_ns)

    def _is_new(self, life: _WorkerLog, file: _File, step: int) -> bool:
        """Returns True if a logged step is new. A file that is rewritten as a whole repeats old steps."""
        return step > life.last_step if self.reader.whole else step != life.last_step or life.file is not file

    def _started_again(self, rank: int, life: _WorkerLog, file: _File, step: int) -> bool:
        restored = any(each.event == "restored" for each in self._waiting.get(rank, ()))
        return restored or (life.file is not file and not self.reader.whole) or step < life.last_step

    def _begin(self, rank: int, file: _File, told: Told, now_ns: int) -> _WorkerLog | None:
        if self._opened >= LIVES_MAX:
            self._fail(self.reader.file, f"more than {LIVES_MAX} starts of a process; the rest is not read")
            return None
        before = self._lives.pop(rank, None)
        if before is not None:
            before.out.close()
        self._opened += 1
        name = f"trainer-{file.node}.{file.incarnation}-{rank}-{self._opened:x}"
        path = self.run_dir / "events" / f"{name}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        life = _WorkerLog(os.fdopen(os.open(path, flags, 0o644), "wb", buffering=0), file)
        life.last_ns = before.last_ns if before else 0
        began_ns = self._moment(life, told, now_ns) - (told.took_ns or 0)
        life.last_ns = max(life.last_ns, began_ns)
        _append(life.out, self._header(name, rank, file), life.last_ns)
        _append(life.out, {"event": "started"}, life.last_ns)
        self._lives[rank] = life
        for each in self._waiting.pop(rank, []):
            self._write(life, each, life.last_ns)
        return life

    def _header(self, name: str, rank: int, file: _File) -> dict[str, Any]:
        header = {"schema": SCHEMA_VERSION, "writer": name, "role": "trainer", "host": socket.gethostname()}
        header |= {"clock": clock_id(), "node": file.node, "incarnation": file.incarnation, "rank": rank}
        header |= {"local_rank": 0, "world_size": self.ranks, "tells": sorted(self.reader.tells)}
        return header | ({} if self.reader.timed else {"uncertainty_ns": POLL_NS})

    def _write(self, life: _WorkerLog, told: Told, now_ns: int) -> None:
        life.last_ns = self._moment(life, told, now_ns)
        event = {"event": told.event, **told.fields}
        if told.event == "step" and told.took_ns is not None:
            event["begin_ns"] = max(0, life.last_ns - told.took_ns)
        try:
            checked_lines.event(event | {"mono_ns": life.last_ns}, "trainer")
        except checked_lines.Damaged as damage:
            self._note(f"{life.file.path}: {damage}")
            return
        _append(life.out, event, life.last_ns)

    def _moment(self, life: _WorkerLog, told: Told, now_ns: int) -> int:
        at = now_ns if told.wall_ns is None else now_ns - (time.time_ns() - told.wall_ns)
        return max(life.last_ns, min(at, now_ns))

    def _fail(self, path: str, why: str) -> None:
        if path not in self._failed and len(self._failed) < NOTES_MAX:
            self._failed.add(path)
            why = why.removeprefix(f"{self.run_dir / path}: ")
            self.emit("reader.failed", path=files.visible(path), error=files.visible(why))

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < NOTES_MAX:
            self.notes.append(text)


def _append(out: IO[bytes], record: Mapping[str, Any], mono_ns: int) -> None:
    stamps = {"wall_ns": time.time_ns() - (time.monotonic_ns() - mono_ns), "mono_ns": mono_ns}
    with contextlib.suppress(OSError):  # a full disk: what is missing is seen when the log is judged
        out.write(json.dumps(finite({**record, **stamps})).encode() + b"\n")
