"""Traces: CSV files of what happened to somebody's nodes, with the columns time, node and event.

A time is a number of seconds, or a moment in ISO 8601; all rows of a file have the same kind. Rows may stand in any
order. Lines that begin with # are remarks.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import pathlib
from dataclasses import dataclass

from harness.errors import ScenarioError
from harness.spec.document import PROBLEMS_MAX, printable, read_text, short

BYTES_MAX = 4 * 2**20
ROWS_MAX = 10_000
WORD_MAX = 200
COLUMNS = ("time", "node", "event")


@dataclass(frozen=True)
class Happening:
    """`at_s`: seconds since the first row in time. `line`: of the file, from 1."""

    at_s: float
    node: str
    event: str
    line: int


def load_trace(path: pathlib.Path) -> list[Happening]:
    """The rows in the order of time. Raises `ScenarioError` with every mistake, `UsageError` for an unreadable file."""
    return parse_trace(read_text(path, BYTES_MAX), str(path))


def parse_trace(text: str, source: str) -> list[Happening]:
    rows, problems = [], list[str]()
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(number, line) for number, line in lines if not line.startswith("#")]
    head = [word.strip() for word in lines[0][1].split(",")] if lines else []
    if tuple(head) != COLUMNS:
        raise ScenarioError([f"{source}:{lines[0][0] if lines else 1}: the first line must be {','.join(COLUMNS)}"])
    if len(lines) - 1 > ROWS_MAX:
        raise ScenarioError([f"{source}: more than the {ROWS_MAX:,} rows that are allowed in a trace"])
    for number, line in lines[1:]:
        try:
            rows.append(_row(line, number))
        except ValueError as error:
            problems.append(printable(f"{source}:{number}: {error}"))
    kinds = {kind for kind, _ in rows}
    if not problems and len(kinds) > 1:
        problems.append(f"{source}: some times are seconds and some are moments; write all in one way")
    if not rows and not problems:
        problems.append(f"{source}: no row follows the first line")
    if problems:
        raise ScenarioError(problems[:PROBLEMS_MAX])
    first_s = min(row.at_s for _, row in rows)
    found = [Happening(row.at_s - first_s, row.node, row.event, row.line) for _, row in rows]
    return sorted(found, key=lambda row: (row.at_s, row.line))


def _row(line: str, number: int) -> tuple[str, Happening]:
    """The kind of its time, and the row with its time as written."""
    try:
        (fields,) = csv.reader([line], strict=True)
    except csv.Error as error:
        raise ValueError(f"not a CSV line: {error}") from error
    if len(fields) != len(COLUMNS):
        raise ValueError(f"{len(fields)} columns; allowed: {', '.join(COLUMNS)}")
    at, node, event = (field.strip() for field in fields)
    for name, word in (("node", node), ("event", event)):
        if not word or len(word) > WORD_MAX or not word.isprintable():
            raise ValueError(f"{name}: {short(word)!r} is not allowed: 1 to {WORD_MAX} printable characters")
    kind, at_s = _time(at)
    return kind, Happening(at_s, node, event, number)


def _time(text: str) -> tuple[str, float]:
    seconds = None
    with contextlib.suppress(ValueError):
        seconds = float(text)
    if seconds is not None:
        if not 0 <= seconds <= 1e11:  # nor is it NaN
            raise ValueError(f"time: {short(text)!r} is not allowed: 0 to 1e11 seconds")
        return "seconds", seconds
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"time: {short(text)!r} is neither seconds nor a moment like 2026-03-01T12:00:00Z") from error
    return "moments", (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
