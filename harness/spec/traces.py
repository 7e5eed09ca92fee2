"""Reads traces: published records of when nodes joined and left a cluster, or a user's CSV file.

`FORMATS` lists the formats, each recognised by its first line. Each trace becomes a list of lost nodes, in order of
time. A file whose rows are not in order of time is refused, because such a file may have other errors, too.
"""

import contextlib
import csv
import datetime
import hashlib
import itertools
import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, RootModel

from harness.errors import ScenarioError, UsageError, choice
from harness.spec.document import PROBLEMS_MAX, Document, printable, read_text, short

ROWS_MAX = 100_000  # and nodes that go in all of them
WORD_MAX = 200
SECONDS_MAX = 1e11
DAY_S = 86_400.0
FOLDER = "traces"  # beside the file that names one
COLUMNS = ("time", "node", "event")
EVICTED, FAILED = "evicted", "failed"  # what a game day rehearses by these names


class Happening(NamedTuple):
    """The loss of a node, `at_s` seconds after the first row of a trace. `node` is empty if the trace has no names."""

    at_s: float
    node: str
    event: str
    line: int


@dataclass(frozen=True)
class Trace:
    """A record of the nodes that a cluster lost. `nodes` is the peak number of nodes, or the number of node names if a
    trace holds only losses. `node_days` is the nodes' total running time, if known. `digest` is the file's SHA-256."""

    name: str
    format: str
    digest: str
    happenings: tuple[Happening, ...]
    nodes: int
    node_days: float | None


class _Row(NamedTuple):
    at_s: float
    change: int
    line: int
    node: str = ""
    event: str = EVICTED


def find_trace(name: str, *folders: pathlib.Path) -> pathlib.Path:
    """Finds a trace in `folders`, or in their subfolders `traces/`. Raises `UsageError` if no folder has the trace."""
    places = [place for folder in folders for place in (folder, folder / FOLDER)]
    if found := next((place / name for place in places if os.path.lexists(place / name)), None):
        return found
    known = sorted({path.name for place in places for path in place.glob("*.csv")})
    where = " nor in ".join(map(str, places))
    raise UsageError(f"unknown trace {short(name)!r}: it is neither in {where}; {choice(name, known)}")


def load_trace(path: pathlib.Path) -> Trace:
    """Reads a trace of node failures. Raises `ScenarioError` with all mistakes, or `UsageError`."""
    return parse_trace(read_text(path), str(path))


def _lines(text: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]


def parse_trace(text: str, source: str) -> Trace:
    lines = _lines(text)
    number, first = lines[0] if lines else (1, "")
    if len(lines) > ROWS_MAX:
        raise ScenarioError([f"{source}: more than the {ROWS_MAX:,} lines that are allowed in a trace"])
    for name, (begin, read) in FORMATS.items():
        if re.match(begin, first):
            return _trace(read(text, source), name, text, source)
    published = ", ".join(name for name in FORMATS if name != "CSV")
    known = f"the first line must be {','.join(COLUMNS)}, or that of a trace of {published}"
    raise ScenarioError([f"{source}:{number}: {known}"])


def _trace(rows: Sequence[_Row], name: str, text: str, source: str) -> Trace:
    problems = [
        f"{source}:{row.line}: its time is before that of line {before.line}; rows must be in the order of time"
        for before, row in itertools.pairwise(rows)
        if row.at_s < before.at_s
    ]
    went = [row for row in rows if row.change < 0]
    if not went:
        problems.append(f"{source}: no node goes in it: nothing can be replayed")
    if -sum(row.change for row in went) > ROWS_MAX:
        problems.append(f"{source}: more than the {ROWS_MAX:,} nodes that may go in a trace")
    if problems:
        raise ScenarioError(problems[:PROBLEMS_MAX])
    begin_s = rows[0].at_s
    happenings = tuple(
        Happening(row.at_s - begin_s, row.node, row.event, row.line) for row in went for _ in range(-row.change)
    )
    there = list(itertools.accumulate(row.change for row in rows))
    tells_who_came = max(there) > 0
    lasted_s = (after.at_s - row.at_s for row, after in itertools.pairwise(rows))
    up_s = sum(up * seconds for up, seconds in zip(there, lasted_s, strict=False))
    nodes = max(there) if tells_who_came else len({row.node for row in happenings})
    digest = hashlib.sha256(text.encode()).hexdigest()
    source_name = pathlib.PurePath(source).name
    return Trace(source_name, name, digest, happenings, nodes, up_s / DAY_S if tells_who_came and up_s else None)


def _csv_rows(text: str, source: str, read: Callable[[list[str], int], _Row]) -> list[_Row]:
    rows, problems = [], []
    for number, line in _lines(text):
        try:
            (fields,) = csv.reader([line], strict=True)
            rows.append(read([field.strip() for field in fields], number))
        except csv.Error as error:
            problems.append(printable(f"{source}:{number}: not a CSV line: {error}"))
        except ValueError as error:
            problems.append(printable(f"{source}:{number}: {error}"))
    if problems:
        raise ScenarioError(problems[:PROBLEMS_MAX])
    return rows


def _csv(text: str, source: str) -> list[_Row]:
    """Reads a CSV trace with the columns `time` (in seconds or ISO 8601) and, optionally, `node` and `event`."""
    head: list[str] = []
    kinds = set()

    def read(fields: list[str], number: int) -> _Row:
        if not head:
            head.extend(fields)
            if tuple(head) != COLUMNS[: len(head)]:
                raise ValueError(f"the first line must be {','.join(COLUMNS)}; node and event may be left out")
            return _Row(0.0, 0, number)
        if len(fields) != len(head):
            raise ValueError(f"{len(fields)} columns; allowed: {', '.join(head)}")
        for name, word in zip(head[1:], fields[1:], strict=True):
            _check_word(name, word)
        kind, at_s = _time(fields[0])
        kinds.add(kind)
        node, event = [*fields[1:], *("", FAILED)[len(fields) - 1 :]]
        return _Row(at_s, -1, number, node, event)

    _, *rows = _csv_rows(text, source, read)
    if len(kinds) > 1:
        raise ScenarioError([f"{source}: some times are seconds and some are moments; write all in one way"])
    return rows


def _check_word(name: str, word: str) -> None:
    if not word or len(word) > WORD_MAX or not word.isprintable():
        raise ValueError(f"{name}: {short(word)!r} is not allowed: 1 to {WORD_MAX} printable characters")


def _time(text: str) -> tuple[str, float]:
    seconds = None
    with contextlib.suppress(ValueError):
        seconds = float(text)
    if seconds is not None:
        if not 0 <= seconds <= SECONDS_MAX:  # nor is it NaN
            raise ValueError(f"time: {short(text)!r} is not allowed: 0 to {SECONDS_MAX:g} seconds")
        return "seconds", seconds
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"time: {short(text)!r} is neither seconds nor a moment like 2026-03-01T12:00:00Z") from error
    return "moments", (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _bamboo(text: str, source: str) -> list[_Row]:
    """Reads a Bamboo trace, whose rows are `ms,add|remove,node`. The first rows of a trace add the initial nodes."""
    there: set[str] = set()

    def read(fields: list[str], number: int) -> _Row:
        if len(fields) != 3 or not re.fullmatch("[0-9]{1,14}", fields[0]) or fields[1] not in ("add", "remove"):
            raise ValueError(f"{short(','.join(fields))!r} is not allowed: write MS,add,NODE or MS,remove,NODE")
        _check_word("node", node := fields[2])
        adds = fields[1] == "add"
        if adds == (node in there):
            raise ValueError(f"{node} is {'added, but was there' if adds else 'removed, but was not there'}")
        there.symmetric_difference_update({node})
        return _Row(int(fields[0]) / 1000, 1 if adds else -1, number, node)

    return _csv_rows(text, source, read)


_Model = TypeVar("_Model", bound=BaseModel)
_Counts = Annotated[list[Annotated[int, Field(ge=0, le=ROWS_MAX)]], Field(min_length=2, max_length=ROWS_MAX)]


class _Metadata(BaseModel):
    gap_seconds: float = Field(gt=0, le=SECONDS_MAX / ROWS_MAX, allow_inf_nan=False)


class _Counted(BaseModel):
    metadata: _Metadata
    data: _Counts


class _Fault(BaseModel):
    node_id: str = Field(min_length=1, max_length=WORD_MAX)
    event_time: float = Field(ge=0, le=SECONDS_MAX / DAY_S, allow_inf_nan=False)
    event_type: Literal["fault_start", "fault_end"]


class _Faults(RootModel[list[_Fault]]):
    pass


def _json(model: type[_Model], text: str, source: str) -> tuple[_Model, Document]:
    document = Document(text, source)
    return document.valid(model, document.data), document


def _skypilot(text: str, source: str) -> list[_Row]:
    """Reads a SkyPilot trace: a series of node counts at equal intervals."""
    counted, document = _json(_Counted, text, source)
    gap_s, counts = counted.metadata.gap_seconds, [0, *counted.data]
    line = document.mark(("data",)).line
    return [_Row(place * gap_s, now - before, line) for place, (before, now) in enumerate(itertools.pairwise(counts))]


def _infinitehbd(text: str, source: str) -> list[_Row]:
    """Reads an InfiniteHBD trace: begin and end of each node's faults, in days. A node is lost while it has a fault."""
    found, document = _json(_Faults, text, source)
    open_on: Counter[str] = Counter()
    rows = []
    for place, fault in enumerate(found.root):
        was_down = open_on[fault.node_id] > 0
        open_on[fault.node_id] = max(0, open_on[fault.node_id] + (1 if fault.event_type == "fault_start" else -1))
        change = was_down - (open_on[fault.node_id] > 0)
        rows.append(_Row(fault.event_time * DAY_S, change, document.mark((place,)).line, fault.node_id, FAILED))
    return rows


_Reader = Callable[[str, str], list[_Row]]
FORMATS: dict[str, tuple[str, _Reader]] = {  # how its first line begins
    "CSV": (r"time\s*(,|$)", _csv),
    "Bamboo": (r"[0-9]+,(add|remove),", _bamboo),
    "SkyPilot": (r"\s*\{", _skypilot),
    "InfiniteHBD": (r"\s*\[", _infinitehbd),
}
