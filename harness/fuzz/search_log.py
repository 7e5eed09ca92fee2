"""Keeps the log of a search, with a line for each run in order, so that an interrupted search can continue.

A search depends only on its seed and on the outcomes of its runs. To continue, the search starts again, and takes
outcomes from the log instead of making runs, until the end of the log. The content of the log file is checked before it
is used."""

from __future__ import annotations

import fcntl
import os
import pathlib
from typing import Any, Literal

import msgspec

from harness.errors import UsageError
from harness.fuzz.outcome import Outcome
from harness.fuzz.schedules import Base, Schedule, key_of
from harness.report.run_report import MAX_BYTES, read_regular

NAME = "search.jsonl"
FAULTS_MAX = 20  # of one schedule


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    base: str


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run in the log of a search. `why` is `search` if the search drew the schedule, or `repeat` if the run repeats
    a failure, possibly with a smaller schedule."""

    why: Literal["search", "repeat"]
    schedule: list[dict[str, Any]]
    outcome: Outcome


class SearchLog:
    """The log of a search, to which runs are appended. Only one search at a time can open the log. Raises `UsageError`
    if the log is damaged or belongs to another search. Removes the incomplete last line that a killed search left."""

    def __init__(self, folder: pathlib.Path, base: Base):
        self.path, self._base = folder / NAME, base
        self.runs: list[Run] = []
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            data = read_regular(self.path) if os.path.lexists(self.path) else b""
            self._file = os.fdopen(os.open(self.path, flags, 0o600), "ab", buffering=0)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UsageError(f"{self.path}: another search is at work there") from error
        try:
            self._read(data)
        except BaseException:
            self.close()
            raise

    def _read(self, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise UsageError(f"{self.path}: is larger than the {MAX_BYTES // 2**20} MiB that are allowed")
        *lines, torn = data.split(b"\n")
        if torn:
            os.ftruncate(self._file.fileno(), len(data) - len(torn))
        if not lines:
            return self._write(Head(1, self._base.digest))
        head = self._line(1, lines[0], Head)
        if head.base != self._base.digest:
            raise self._wrong(1, "it is of another job, seed or backend")
        for number, line in enumerate(lines[1:], 2):
            run = self._line(number, line, Run)
            if not 0 < len(run.schedule) <= FAULTS_MAX or not self._base.allows(run.schedule):
                raise self._wrong(number, "its schedule cannot be planned for this job")
            self.runs.append(run)

    def _line(self, number: int, line: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise self._wrong(number, f"it cannot be read: {error}") from error

    def _wrong(self, number: int, why: str) -> UsageError:
        advice = f"remove the folder {self.path.parent} to begin anew, or give another --seed"
        return UsageError(f"{self.path}:{number}: {why}; {advice}")

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self._write(run)

    def differs(self, place: int) -> UsageError:
        return self._wrong(place + 2, "another version of chaos made this search")

    def _write(self, value: Head | Run) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Replay:
    def __init__(self, log: SearchLog):
        self.log, self._place, self._stored = log, 0, len(log.runs)

    @property
    def left(self) -> bool:
        return self._place < self._stored

    def drawn(self) -> list[dict[str, Any]]:
        """Returns the schedule that the interrupted search drew next. Call this method only while `left` is True."""
        run = self.log.runs[self._place]
        if run.why != "search":
            raise self.log.differs(self._place)
        return run.schedule

    def outcome(self, why: str, schedule: Schedule) -> Outcome:
        """Returns the outcome of the next run in the log. Raises `UsageError` if the logged run has another
        schedule."""
        run = self.log.runs[self._place]
        if run.why != why or key_of(run.schedule) != key_of(schedule):
            raise self.log.differs(self._place)
        self._place += 1
        return run.outcome
