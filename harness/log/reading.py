"""Event files → writers on one clock, with their steps as columns.

Every writer's times are shifted onto the harness's monotonic clock as soon as they are read:

* a writer on the harness's own machine (same boot id) already uses that clock;
* any other writer keeps its own monotonic clock, moved by one constant: its first line pairs wall and
  monotonic time, a `clock` event gives its host's wall-clock offset, and the harness's first line pairs wall
  and monotonic time there. A wall clock that jumps later in the run therefore moves nothing, and one that jumps
  before a further writer starts there is seen: its first line is at odds with the others of that host.

`step` events are by far the most: they are decoded straight into columns and never live as dictionaries.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import multiprocessing
import operator
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from harness.emitter import SCHEMA_VERSION
from harness.errors import EventLogError
from harness.log import events

Column = npt.NDArray[Any]
COLUMNS: dict[str, type] = {
    "step": np.int64,
    "begin": np.int64,
    "end": np.int64,
    "loss": np.float64,
    "grad_norm": np.float64,
    "lr": np.float64,
    "digest": np.int64,
    "first": np.int64,
    "count": np.int64,
    "data_ns": np.int64,
    "checkpoint_ns": np.int64,
    "sync_ns": np.int64,
}
_INTEGERS = {name: name for name in ("step", "first", "count", "data_ns", "checkpoint_ns", "sync_ns")}
_INTEGERS |= {"begin": "begin_ns", "end": "mono_ns"}
PARALLEL_BYTES_MIN = 256 * 2**20
DRIFT_MAX = 500e-6  # of two clocks against each other; NTP slews no faster
JUMP_NS_MIN = 128_000_000  # RFC 5905: what is less is slewed
NO_BEGIN = int(np.iinfo(np.int64).min)


class _Line(msgspec.Struct, gc=False):
    """One line of a trainer's file, as far as a step needs it."""

    event: str = ""
    mono_ns: int = 0
    step: int = -1
    begin_ns: int = NO_BEGIN
    loss: float | str | None = None
    grad_norm: float | str | None = None
    lr: float | str | None = None
    digest: str | int | None = None
    first: int = -1
    count: int = -1
    data_ns: int = 0
    checkpoint_ns: int = 0
    sync_ns: int = 0
    dropped: int = 0


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True)
class Writer:
    """One file: its first line, its events other than steps (each with `at`, its time), and its steps."""

    name: str
    header: dict[str, Any]
    events: list[dict[str, Any]]
    steps: dict[str, Column]
    torn: bool
    dropped: int
    start: int = 0  # where its rows begin in `Log.steps`

    @property
    def role(self) -> str:
        return str(self.header.get("role"))


@dataclass(frozen=True)
class Log:
    """All writers of a run on the harness's clock. `uncertainty_ns` is the worst clock uncertainty among them.

    `steps` holds the steps of all of them, one after the other; what each writer has are views of it.
    """

    writers: Sequence[Writer]
    steps: dict[str, Column]
    harness: Writer | None
    uncertainty_ns: int
    problems: Sequence[str]


def read(directory: pathlib.Path) -> Log:
    """Reads a run's `events` directory. Raises `EventLogError` for anything but a torn last line per file."""
    if not directory.is_dir():
        raise EventLogError(f"{directory}: no event log here")
    writers, problems, table = list[Writer](), list[str](), _Table()
    paths = events.writers_in(directory)
    for path, writer in zip(paths, _read_files(paths), strict=True):
        if writer is None:
            problems.append(f"{path.name} holds no whole line")
        else:
            writers.append(replace(writer, start=table.add(writer)))
    if not writers:
        raise EventLogError(f"{directory}: the event log is empty")
    steps = table.whole()
    for writer, following in zip(writers, [*(writer.start for writer in writers[1:]), table.rows], strict=True):
        mine = slice(writer.start, following)  # an empty view would keep the whole table in memory
        writer.steps.update({n: c[mine] if mine.start < mine.stop else np.zeros(0, c.dtype) for n, c in steps.items()})
    return _on_one_clock(writers, steps, problems)


class _Table:
    """Gathers the steps of many writers in one place: thousands of small arrays would fragment the memory."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[str, Column] = {name: np.zeros(0, kind) for name, kind in COLUMNS.items()}

    def add(self, writer: Writer) -> int:
        """Takes a worker's steps away from it; returns the row where they begin."""
        start = self.rows
        steps = dict(writer.steps)
        writer.steps.clear()
        if writer.role == "trainer":
            self.rows += len(steps["end"])
            self._reserve(self.rows)
            for name, column in self._columns.items():
                column[start : self.rows] = steps[name]
        return start

    def _reserve(self, rows: int) -> None:
        """Makes room in steps of an eighth; large arrays grow in place, their pages are moved and not copied."""
        if rows > len(self._columns["end"]):
            for column in self._columns.values():
                column.resize(rows + rows // 8, refcheck=False)

    def whole(self) -> dict[str, Column]:
        for column in self._columns.values():
            column.resize(self.rows, refcheck=False)
        return self._columns


def _read_files(paths: Sequence[pathlib.Path]) -> Iterator[Writer | None]:
    """One after the other, or, when there is much to read, on all cores."""
    done = 0
    if sum(path.stat().st_size for path in paths) >= PARALLEL_BYTES_MIN:
        # Children are started afresh, not forked: a caller may have threads. They break where its main module cannot
        # be imported a second time or memory is short; what they did not read is then read here.
        with (
            contextlib.suppress(BrokenProcessPool),
            ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            for writer in pool.map(read_file, paths, chunksize=max(1, len(paths) // 1024)):
                done += 1
                yield writer
    yield from map(read_file, paths[done:])


def read_file(path: pathlib.Path) -> Writer | None:
    """One writer on its own clock; `None` when not even its first line was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EventLogError(f"{path}: cannot be read: {error.strerror}") from error
    whole = data.rfind(b"\n") + 1
    try:
        lines = _decoder.decode_lines(data[:whole])
        others = _decode_others(data[:whole], lines)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _read_slowly(path)
    if not others or others[0].get("schema") != SCHEMA_VERSION:
        return _read_slowly(path)
    header, *rest = others
    steps = _columns([line for line in lines if line.event == "step"])
    return _finished(path, header, rest, steps, whole < len(data), max(line.dropped for line in lines))


def _decode_others(data: bytes, lines: Sequence[_Line]) -> list[dict[str, Any]]:
    """The lines that are not steps, as dictionaries."""
    raw = data.split(b"\n")
    if len(raw) != len(lines) + 1:
        raise msgspec.DecodeError("an empty line")  # decode_lines skips those; the slow reader names the line
    return [msgspec.json.decode(raw[index]) for index, line in enumerate(lines) if line.event != "step"]


def _read_slowly(path: pathlib.Path) -> Writer | None:
    """The reader that names the bad line; used when the fast one stumbles, and for events with odd fields."""
    log = events.read_writer(path)
    if log is None:
        return None
    lines, rest = [], []
    for number, record in enumerate(log.events, 2):
        if record.get("event") != "step":
            rest.append(record)
            continue
        try:
            lines.append(msgspec.convert({k: v for k, v in record.items() if v is not None}, _Line))
        except msgspec.ValidationError as error:
            raise EventLogError(f"{path}:{number}: not a proper step event: {error}") from error
    dropped = max(int(record.get("dropped", 0)) for record in (log.header, *log.events))
    return _finished(path, log.header, rest, _columns(lines), log.torn, dropped)


def _finished(
    path: pathlib.Path,
    header: dict[str, Any],
    rest: list[dict[str, Any]],
    steps: dict[str, Column],
    torn: bool,
    dropped: int,
) -> Writer:
    """Gives every event its time (`at`) and checks what nothing can be read without."""
    for record in (header, *rest):
        if not isinstance(record.get("mono_ns"), int) or not isinstance(record.get("wall_ns", 0), int):
            raise EventLogError(f"{path}: an event without mono_ns: {json.dumps(record)[:80]}")
        record["at"] = record["mono_ns"]
        record.setdefault("event", "")
    return Writer(path.stem, header, rest, steps, torn, dropped)


def _columns(lines: Sequence[_Line]) -> dict[str, Column]:
    def column(field: str) -> Iterable[Any]:
        return map(operator.attrgetter(field), lines)

    n = len(lines)
    columns: dict[str, Column] = {name: np.fromiter(column(field), np.int64, n) for name, field in _INTEGERS.items()}
    columns["digest"] = np.fromiter(map(_fingerprint, column("digest")), np.int64, n)
    for name in ("loss", "grad_norm", "lr"):
        # numpy turns None and the names of JSON's missing numbers ("nan", "inf") into floats by itself.
        columns[name] = np.array(list(column(name)), dtype=np.float64)
    unknown = columns["begin"] == NO_BEGIN
    if unknown.any():  # a trainer that does not say when a step began: it began when the one before ended
        previous = np.concatenate([columns["end"][:1], columns["end"][:-1]])
        columns["begin"] = np.where(unknown, previous, columns["begin"])
    return columns


@functools.lru_cache(maxsize=1 << 16)
def _fingerprint(text: str | int | None) -> int:
    """A sample digest as a 63-bit number that is the same in every run; 0 means none was given."""
    if text is None:
        return 0
    return int.from_bytes(hashlib.blake2b(str(text).encode(), digest_size=8).digest()) >> 1


def _on_one_clock(writers: Sequence[Writer], steps: dict[str, Column], problems: list[str]) -> Log:
    judges = [writer for writer in writers if writer.role == "harness"]
    harness = judges[0] if judges else None
    if len(judges) != 1:
        problems.append(f"{len(judges) or 'no'} harness{'es' * bool(judges)} wrote into this log")
    if harness is not None and harness.dropped:
        problems.append(f"{harness.dropped} events of the harness were lost to a full disk")
    reference = (harness or writers[0]).header
    offsets = _offsets(harness)
    foreign: dict[str, list[tuple[Writer, _Shift]]] = {}
    for writer in writers:
        if writer.header.get("clock") == reference.get("clock"):
            continue
        known = offsets.get(str(writer.header.get("host")), [])
        if not known:
            problems.append(f"the clock of host {writer.header.get('host')!r} was never compared with the harness's")
        found = _shift(writer.header, reference, known)
        foreign.setdefault(str(writer.header.get("clock")), []).append((writer, found))
    uncertainty_ns = 0
    for same_clock in foreign.values():
        first, surest = min(same_clock, key=lambda pair: pair[1].apart_ns)
        for writer, found in same_clock:
            drift_ns = DRIFT_MAX * abs(writer.header["mono_ns"] - first.header["mono_ns"])
            shift = found if abs(found.ns - surest.ns) <= drift_ns + JUMP_NS_MIN else surest
            uncertainty_ns = max(uncertainty_ns, shift.uncertain_ns)
            _move(writer, shift.ns)
    return Log(writers, steps, harness, uncertainty_ns, tuple(dict.fromkeys(problems)))


def _offsets(harness: Writer | None) -> dict[str, list[tuple[int, int, int]]]:
    """Per host its measured wall-clock offsets: (time, offset, uncertainty)."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for event in harness.events if harness else ():
        if event.get("event") == "clock":
            measured = (event["at"], int(event["offset_ns"]), int(event.get("uncertainty_ns", 0)))
            found.setdefault(str(event.get("host")), []).append(measured)
    return found


class _Shift(NamedTuple):
    """What to add to a foreign monotonic time."""

    ns: int
    uncertain_ns: int
    apart_ns: int  # between the file's first line and the comparison of clocks that this is taken from


def _shift(header: dict[str, Any], reference: dict[str, Any], known: Iterable[tuple[int, int, int]]) -> _Shift:
    """Offset: the host's clock minus ours."""
    foreign = header["wall_ns"] - reference["wall_ns"] + reference["mono_ns"]
    apart, offset, uncertain = min(
        ((abs(at - (foreign - offset)), offset, uncertain) for at, offset, uncertain in known), default=(0, 0, 0)
    )
    return _Shift(foreign - offset - header["mono_ns"], uncertain, apart)


def _move(writer: Writer, shift: int) -> None:
    for record in (writer.header, *writer.events):
        record["at"] += shift
    writer.steps["begin"] += shift
    writer.steps["end"] += shift
