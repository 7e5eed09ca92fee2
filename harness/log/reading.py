"""Reads the event files of a run, with all times on one clock and with the steps as columns.

Processes on the harness's own machine (same kernel boot id) already log times on the harness's monotonic clock. All
times in a file from another machine are shifted by a constant. The constant of a file is computed from the wall and
monotonic times in the first lines of the file and of the harness's file, and from a `clock` event, which holds the
offset between the wall clocks of the two machines. A jump of a wall clock during the run does not change the times of
processes that are already running. If the constants of one machine's files differ too much, as after a jump of its wall
clock, the most reliable constant is used.

The very frequent `step` events are decoded directly into columns, and never into dictionaries.
"""

import contextlib
import functools
import hashlib
import itertools
import math
import multiprocessing
import operator
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from harness.errors import EventLogError
from harness.log import checked_lines, event_log, files, line_numbers, sample_indices, vocabulary
from harness.log.checked_lines import Record
from harness.log.files import EventFile
from harness.log.line_numbers import LineGap
from harness.log.sample_indices import Samples
from harness.log.vocabulary import Field
from harness.units import counted

Column = npt.NDArray[Any]
_STEP = {each.column: each for each in checked_lines.FIELDS["step"] if each.column}
_KINDS: dict[str, type] = {vocabulary.INTEGER: np.int64, vocabulary.NUMBER: np.float64, vocabulary.LABEL: np.int64}
_OF_KIND: dict[str, list[str]] = {kind: [] for kind in _KINDS}  # what is read together
for _name, _field in _STEP.items():
    _OF_KIND[vocabulary.INTEGER if _field.kind == vocabulary.FLAG else _field.kind].append(_name)
_told = {kind: operator.attrgetter(*(_STEP[name].name for name in names)) for kind, names in _OF_KIND.items()}
_NARROW = {"data_pass": np.int32, "applied": np.int8, "samples": np.int32}  # `samples`: their number in `Log.samples`
COLUMNS: dict[str, type] = {name: _KINDS[kind] for kind, names in _OF_KIND.items() for name in names} | _NARROW
_ALWAYS = ("step", "begin", "end")  # columns of each log
PARALLEL_BYTES_MIN = 256 * 2**20
DRIFT_MAX = 500e-6  # of two clocks against each other; NTP slews no faster
JUMP_NS_MIN = 128_000_000  # RFC 5905: what is less is slewed
APART_NS_MAX = 366 * 86400 * 10**9  # of anything in a log from the harness's first line
NOT_TOLD = int(np.iinfo(np.int64).min)
UNTOLD = -math.nan  # of a float column; "nan" is read without the sign


def _in_line(each: Field) -> tuple[str, Any, Any]:
    if each.kind == vocabulary.NUMBER:
        return each.name, checked_lines.kind_of(each) | None, UNTOLD
    if each.kind == vocabulary.LABEL:
        return each.name, checked_lines.kind_of(each) | None, None
    return each.name, checked_lines.kind_of(each), NOT_TOLD if each.otherwise is None else each.otherwise


_NUMBER = next(each for each in vocabulary.COMMON if each.name == "line")
_OTHERS: list[tuple[str, Any, Any]] = [("event", str, ""), ("samples", msgspec.Raw, None), ("dropped", int, 0)]
_OTHERS += [("line", checked_lines.kind_of(_NUMBER), line_numbers.NONE)]
_Line = msgspec.defstruct("Line", [*_OTHERS, *map(_in_line, _STEP.values())], gc=False)  # as far as a step needs it
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode


_UNTOLD: dict[str, float] = {
    name: NOT_TOLD if each.otherwise is None else each.otherwise for name, each in _STEP.items()
}
_UNTOLD |= dict.fromkeys(_OF_KIND[vocabulary.NUMBER], UNTOLD) | dict.fromkeys(_OF_KIND[vocabulary.LABEL], 0)
_UNTOLD["samples"] = sample_indices.UNTOLD


class Columns(dict[str, Column]):
    """The steps of a log as columns, by name. A column that the log lacks reads as a column in which each row says "not
    logged"."""

    def __missing__(self, name: str) -> Column:
        return np.broadcast_to(np.array(_UNTOLD[name], COLUMNS[name]), len(dict.__getitem__(self, "end")))

    def rows(self, mine: slice | npt.NDArray[Any]) -> "Columns":
        """Returns the rows `mine` of each column: as views if `mine` is a slice, otherwise as copies."""
        taken = ((name, column[mine]) for name, column in self.items())
        return Columns({name: column if len(column) else np.zeros(0, column.dtype) for name, column in taken})


@dataclass(frozen=True)
class Writer:
    """The contents of one event file: the header, the steps, and all other events (each with its time `at` in ns).
    `dropped` counts events that were lost because the disk was full."""

    name: str
    header: Record
    events: list[Record]
    steps: Columns
    torn: bool
    dropped: int
    start: int = 0  # where its rows begin in `Log.steps`
    samples: Samples = field(default_factory=Samples)  # handed over to the log, as its steps are
    gaps: tuple[LineGap, ...] = ()  # lines that are missing, where its lines are numbered
    problems: Sequence[str] = ()  # what contradicts itself in their numbers

    @property
    def numbered(self) -> bool:
        return "line" in self.header

    @property
    def role(self) -> str:
        return event_log.role_of(self.header)


@dataclass(frozen=True)
class Log:
    """All events of a run, with times in ns on the harness's clock. `uncertainty_ns` is the largest clock uncertainty
    of any event file. `steps` holds the steps of all files, one file after the other. Each `Writer` holds views of its
    own rows."""

    writers: Sequence[Writer]
    steps: Columns
    harness: Writer | None
    uncertainty_ns: int
    problems: Sequence[str]
    samples: Samples = field(default_factory=Samples)
    wordless: Sequence[EventFile] = ()  # files without a complete line


def read(directory: pathlib.Path) -> Log:
    """Reads all event files of a run. Raises `EventLogError` if a line is damaged, except for an incomplete last
    line."""
    writers, problems, wordless, table = list[Writer](), list[str](), list[EventFile](), _Table()
    sources = files.find(directory)
    for source, writer in zip(sources, _read_files(sources), strict=True):
        if writer is None:
            wordless.append(source)
        else:
            problems += writer.problems
            writers.append(replace(writer, start=table.add(writer), samples=Samples()))
    if not writers:
        raise EventLogError(f"{files.visible(str(directory))}: the event log is empty")
    steps = table.whole()
    for writer, following in zip(writers, [*(writer.start for writer in writers[1:]), table.rows], strict=True):
        writer.steps.update(steps.rows(slice(writer.start, following)))
    return replace(_on_one_clock(writers, steps, problems), samples=table.samples(), wordless=wordless)


class _Table:
    """Collects the steps of all event files in one table, because thousands of small arrays would fragment the
    memory."""

    def __init__(self) -> None:
        self.rows = self._room = 0
        self._columns = Columns({name: np.zeros(0, COLUMNS[name]) for name in _ALWAYS})
        self._samples: list[Samples] = []
        self._told = 0  # steps that tell their samples

    def add(self, writer: Writer) -> int:
        """Moves the steps of `writer` into the table, which leaves `writer.steps` empty. Returns the index of the first
        moved row."""
        start = self.rows
        steps = Columns(writer.steps)
        writer.steps.clear()
        if writer.role == "trainer":
            self.rows += len(steps["end"])
            if self.rows > self._room:
                # Room is made in steps of an eighth. Large arrays grow in place: their pages are moved and not copied.
                self._room = self.rows + self.rows // 8
                for column in self._columns.values():
                    column.resize(self._room, refcheck=False)
            if "samples" in steps:
                steps["samples"] = sample_indices.renumbered(steps["samples"], self._told)
            self._samples += [writer.samples] if len(writer.samples) else []
            self._told += len(writer.samples)
            for name in steps.keys() - self._columns.keys():  # nobody told it before
                self._columns[name] = np.empty(self._room, COLUMNS[name])
                self._columns[name][:start] = _UNTOLD[name]
            for name, column in self._columns.items():
                column[start : self.rows] = steps[name] if name in steps else _UNTOLD[name]
        return start

    def samples(self) -> Samples:
        return sample_indices.joined(self._samples)

    def whole(self) -> Columns:
        for column in self._columns.values():
            column.resize(self.rows, refcheck=False)
        return self._columns


def _read_files(sources: Sequence[EventFile]) -> Iterator[Writer | None]:
    done = 0
    if sum(source.size for source in sources) >= PARALLEL_BYTES_MIN:
        # Children are started afresh, not forked: a caller may have threads. They break where its main module cannot
        # be imported a second time or memory is short; what they did not read is then read here.
        spawn = multiprocessing.get_context("spawn")
        children = ProcessPoolExecutor(mp_context=spawn, initializer=_end_with_its_parent)
        with contextlib.suppress(BrokenProcessPool), children as pool:
            for writer in pool.map(read_source, sources, chunksize=max(1, len(sources) // 1024)):
                done += 1
                yield writer
    yield from map(read_source, sources[done:])


def _end_with_its_parent() -> None:
    """Ends this child process as soon as its parent ends. A closed pipe does not show the end of the parent, because
    the child holds both ends of each pipe."""

    def follow() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def read_source(source: EventFile) -> Writer | None:
    """Reads one event file, with times on the clock of its writer. Returns `None` if the file has no complete line."""
    parts, header, first, number, blocks = list[_Part](), None, b"", 1, files.Blocks(source)
    for lines in blocks:
        if header is None and lines:
            first, *lines = lines
            header, number = event_log.read_header(source, first), 2
        if header is not None:
            parts.append(_read_block(source, number, lines, event_log.role_of(header), first))
        number += len(lines)
    if header is None:
        return None
    header["event"] = ""
    # A line that comes again counts once.
    once = {hash(repr(record)): record for part in parts for record in part.events}
    rest = sorted(_kept([*once.values()], event_log.role_of(header)), key=operator.itemgetter("mono_ns"))
    for record in (header, *rest):
        record["at"] = record["mono_ns"]
    for record in rest:  # of its place in the file nobody asks any more
        record.pop("line", None)
        record.pop("line_fork", None)
    dropped = max(header.get("dropped", 0), *(part.dropped for part in parts))
    gaps, problems = tuple[LineGap, ...](), list[str]()
    if "line" in header:
        numbers = np.concatenate([part.numbers for part in parts])
        if (numbers != np.arange(1, len(numbers) + 1)).any():  # some line is missing, or moved
            gaps, problems = line_numbers.look(source, header)
        dropped = sum(gap.lines for gap in gaps if gap.full_disk)
    told = sample_indices.joined([part.samples for part in parts])
    steps = _steps_of(parts)
    return Writer(source.name, header, rest, steps, blocks.torn, dropped, samples=told, gaps=gaps, problems=problems)


class _Part(NamedTuple):
    events: list[Record]
    columns: Columns
    dropped: int
    samples: Samples
    numbers: Column


def _steps_of(parts: Sequence[_Part]) -> Columns:
    """Joins blocks of steps, sorted by end time. A step without a logged begin counts as begun when the previous step
    ended."""
    told = [part for part in parts if "end" in part.columns]
    for part, base in zip(told, itertools.accumulate((len(part.samples) for part in told), initial=0), strict=False):
        if "samples" in part.columns:
            part.columns["samples"] = sample_indices.renumbered(part.columns["samples"], base)
    if len(told) == 1:
        steps = told[0].columns
    elif told:
        names = dict.fromkeys(itertools.chain.from_iterable(part.columns for part in told))
        steps = Columns({name: np.concatenate([part.columns[name] for part in told]) for name in names})
    else:
        steps = Columns({name: np.zeros(0, COLUMNS[name]) for name in _ALWAYS})
    if (steps["end"][1:] < steps["end"][:-1]).any():
        steps = steps.rows(np.argsort(steps["end"], kind="stable"))
    untold = steps["begin"] == NOT_TOLD
    if untold.any():
        previous = np.concatenate([steps["end"][:1], steps["end"][:-1]])
        steps["begin"] = np.where(untold, previous, steps["begin"])
    return steps


def _read_block(source: EventFile, number: int, raw: Sequence[bytes], role: str, header: bytes) -> _Part:
    if role == "trainer":
        with contextlib.suppress(ValueError, OverflowError, RecursionError):
            lines = list(map(_decoder.decode, raw))
            columns, consumed = _columns([line for line in lines if line.event == "step"])
            others = [index for index, line in enumerate(lines) if line.event != "step" and raw[index] != header]
            dropped = max(map(operator.attrgetter("dropped"), lines), default=0)
            numbers: Column = np.fromiter(map(operator.attrgetter("line"), lines), np.int64, len(lines))
            del lines
            rest = [event_log.read_event(source, number + index, raw[index], role) for index in others]
            return _Part(_kept(rest, role), columns, dropped, consumed, numbers)
    return _read_slowly(source, number, raw, role, header)


def _read_slowly(source: EventFile, number: int, raw: Sequence[bytes], role: str, header: bytes) -> _Part:
    lines = ((index, line) for index, line in enumerate(raw, number) if line != header)
    found = [event_log.read_event(source, index, line, role) for index, line in lines]
    steps = [record for record in found if record["event"] == "step" and role == "trainer"]
    rest = [record for record in found if record["event"] != "step" or role != "trainer"]
    dropped = max((record.get("dropped", 0) for record in found), default=0)
    numbers: Column = np.array([record.get("line", line_numbers.NONE) for record in found], np.int64)
    for record in steps:
        if "samples" in record:
            record["samples"] = msgspec.Raw(_encode(record["samples"]))
    columns, consumed = _columns([msgspec.convert(record, _Line) for record in steps])
    return _Part(_kept(rest, role), columns, dropped, consumed, numbers)


def _kept(rest: Sequence[Record], role: str) -> list[Record]:
    """Drops events with an undeclared name, except the last event, which shows how long the process lived."""
    declared = [record for record in rest[:-1] if (role, record["event"]) in checked_lines.DECLARED]
    return [checked_lines.own(record, role) for record in (*declared, *rest[-1:])]


def _columns(lines: Sequence[Any]) -> tuple[Columns, Samples]:
    columns = Columns()
    for kind, names in _OF_KIND.items():
        told = itertools.chain.from_iterable(map(_told[kind], lines))
        numbers = map(_fingerprint, told) if kind == vocabulary.LABEL else told
        values: Column = np.fromiter(numbers, _KINDS[kind], len(lines) * len(names))
        if kind == vocabulary.NUMBER:  # None and "nan" are floats to numpy
            unsigned = np.flatnonzero(np.isnan(values) & ~np.signbit(values)).tolist()
            asked = ((place, _told[kind](lines[place // len(names)])[place % len(names)]) for place in unsigned)
            values[[place for place, value in asked if value is None]] = UNTOLD
        table = values.reshape(-1, len(names))
        untold = ~is_told(table) if kind == vocabulary.NUMBER else table == [_UNTOLD[name] for name in names]
        for place, (name, rows) in enumerate(zip(names, untold.sum(axis=0).tolist(), strict=True)):
            if rows and not _STEP[name].optional:
                raise ValueError(name)
            if rows < len(lines):
                columns[name] = table[:, place].astype(COLUMNS[name])
    of_steps, consumed = sample_indices.read(list(map(operator.attrgetter("samples"), lines)))
    if len(consumed):
        columns["samples"] = of_steps
    return columns, consumed


def is_told(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Marks the values of a column that were logged. A logged "nan" counts as logged."""
    return np.asarray(~(np.isnan(values) & np.signbit(values)), np.bool_)


@functools.lru_cache(maxsize=1 << 16)
def _fingerprint(text: str | int | None) -> int:
    """Returns a 63-bit hash that does not change between runs of Python, or 0 for `None`."""
    if text is None:
        return 0
    return int.from_bytes(hashlib.blake2b(str(text).encode(), digest_size=8).digest()) >> 1


def _on_one_clock(writers: Sequence[Writer], steps: Columns, problems: list[str]) -> Log:
    harness = next((writer for writer in writers if writer.role == event_log.HARNESS), None)
    judges = sum(writer.role in (event_log.HARNESS, event_log.NOT_BELIEVED) for writer in writers)
    if harness is None:
        problems.append("the harness wrote nothing into this log")
    elif judges > 1:
        problems.append(f"{judges} harnesses wrote into this log")
    if harness is not None and harness.dropped:
        problems.append(f"{harness.dropped} events of the harness were lost to a full disk")
    if harness is not None and (lost := sum(gap.lines for gap in harness.gaps if not gap.full_disk)):
        problems.append(f"the harness's log lacks {counted(lost, 'line')}")
    reference = (harness or writers[0]).header
    compared = [event for event in (harness.events if harness else ()) if event["event"] == "clock"]
    uncertainty_ns = _move_all(writers, reference, compared, problems)
    for writer in writers:
        _check_near(writer, reference["mono_ns"])
    uncertainty_ns += max((writer.header.get("uncertainty_ns", 0) for writer in writers), default=0)
    return Log(writers, steps, harness, uncertainty_ns, tuple(dict.fromkeys(problems)))


def _move_all(writers: Sequence[Writer], reference: Record, compared: Sequence[Record], problems: list[str]) -> int:
    by_host: dict[str, list[Record]] = {}
    for event in compared:
        by_host.setdefault(event["host"], []).append(event)
    foreign: dict[str, list[tuple[Writer, _Shift]]] = {}
    for writer in writers:
        if writer.header.get("clock") == reference.get("clock"):
            continue
        known = by_host.get(str(writer.header.get("host")), [])
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
    return uncertainty_ns


class _Shift(NamedTuple):
    ns: int
    uncertain_ns: int
    apart_ns: int  # from the file's first line to the clock comparison in use


def _shift(header: Record, reference: Record, known: Sequence[Record]) -> _Shift:
    """Returns the shift (ns) from a file's monotonic clock to the harness's. Uses the comparison of clocks that is
    nearest in time to the file's first line."""
    foreign = header["wall_ns"] - reference["wall_ns"] + reference["mono_ns"]
    measured = [(each["at"], each["offset_ns"], each.get("uncertainty_ns", 0)) for each in known]
    nearest = ((abs(at - (foreign - offset)), offset, uncertain) for at, offset, uncertain in measured)
    apart, offset, uncertain = min(nearest, default=(0, 0, 0))
    return _Shift(foreign - offset - header["mono_ns"], uncertain, apart)


def _move(writer: Writer, shift: int) -> None:
    if abs(shift) > vocabulary.WALL_NS_MAX:
        raise _too_far(writer, shift)
    for record in (writer.header, *writer.events):
        record["at"] += shift
    for gap in writer.gaps:
        gap.since += shift
        gap.until += shift
    writer.steps["begin"] += shift
    writer.steps["end"] += shift


def _check_near(writer: Writer, reference_ns: int) -> None:
    """Raises `EventLogError` for times over a year away from the harness's, whose sums might not fit into 64 bits."""
    times = [record["at"] for record in (writer.header, *writer.events)]
    for column in (writer.steps["begin"], writer.steps["end"]):
        times += [int(column.min()), int(column.max())] if len(column) else []
    furthest = max(times, key=lambda at: abs(at - reference_ns))
    if abs(furthest - reference_ns) > APART_NS_MAX:
        raise _too_far(writer, furthest - reference_ns)


def _too_far(writer: Writer, apart_ns: int) -> EventLogError:
    days = apart_ns / (86400 * 10**9)
    host = checked_lines.shown(writer.header.get("host"))
    return EventLogError(
        f"{writer.name}: events {days:+.0f} days off the harness's clock; at most "
        f"{APART_NS_MAX // (86400 * 10**9)} can be judged; check the clocks of host {host}"
    )
