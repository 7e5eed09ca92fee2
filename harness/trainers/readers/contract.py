"""Defines what a reader must provide. A reader turns a trainer's output files into events.

Each output format has one file in `harness/trainers/readers/`. The YAML names a format by its file's name:

  trainer: {command: [...], read: {torchtitan: "{run_dir}/out/structured_logs/*.jsonl"}}

Each format's file defines `READER`, a subclass of `Reader`, whose `tells` names the kinds of evidence in its events.
Output files are untrusted: a reader raises `ValueError`, and no other error, for bytes that it cannot parse.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from harness.node.emitter import Tell
from harness.parameters import Parameters
from harness.plugins import Family
from harness.trainers.shared.field_forms import Written

LINE_BYTES_MAX = 64 * 2**10
EXPRESSION_CHARS_MAX = 2000  # of a line that regular expressions search: some take the square of its length
RUN_DIR = "{run_dir}/"
NODE_LOGS = "{run_dir}/logs/{node}.{incarnation}.log"
_WILD = {"**": ".*", "*": "[^/]*", "{node}": "(?P<node>[^/]+?)", "{incarnation}": r"(?P<incarnation>\d{1,7})"}
_WILD |= {"{rank}": r"(?P<rank>\d{1,6})"}
_PART = re.compile(r"\*\*|\*|\{\w*\}")


@dataclass(frozen=True)
class Told:
    """One event of rank `rank` in a trainer's output. `took_ns` is the duration of a step, or `None` if unknown.

    `wall_ns` is the event's time by the trainer's clock, or `None` if the output states no time.
    """

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    wall_ns: int | None = None
    took_ns: int | None = None
    rank: int = 0


def _checked_pattern(pattern: str) -> str:
    if not pattern.startswith(RUN_DIR) or ".." in pattern.split("/") or "\0" in pattern:
        raise ValueError(f"{pattern!r} must begin with {RUN_DIR} and stay below it")
    for part in _PART.findall(pattern.removeprefix(RUN_DIR)):
        if part not in _WILD:
            raise ValueError(f"unknown placeholder {part}; allowed are {', '.join(_WILD)}")
        if part.startswith("{") and pattern.count(part) > 1 and part in _WILD:
            raise ValueError(f"{part} may be used only once")
    return pattern


class Source(abc.ABC):
    """Reads one output file of a trainer while the file still grows."""

    @abc.abstractmethod
    def feed(self, data: bytes) -> Iterator[Told]:
        """Yields the events in `data`: the newly written bytes of an output file or, if the reader's `whole` is True,
        the whole file. Raises `ValueError` for bytes that the reader cannot parse."""


class Reader(Parameters, abc.ABC):
    """The base class of output readers. The path `file` may contain `*`, `**`, `{node}`, `{incarnation}`, `{rank}`."""

    tells: ClassVar[frozenset[Tell]]
    source: ClassVar[type[Source]]
    timed: ClassVar[bool] = False  # whether each event says when it was
    whole: ClassVar[bool] = False  # whether the file is written anew each time, and read as a whole

    file: Annotated[str, AfterValidator(_checked_pattern)] = NODE_LOGS

    def open(self) -> Source:
        return self.source()

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def folder(self) -> str:
        fixed = _PART.split(self.file.removeprefix(RUN_DIR))[0]
        return fixed.rpartition("/")[0] or "."

    def matching(self) -> re.Pattern[str]:
        text = self.file.removeprefix(RUN_DIR)
        parts = re.split(f"({_PART.pattern})", text)
        return re.compile("".join(_WILD[part] if part in _WILD else re.escape(part) for part in parts))


class LineSource(Source):
    """Reads an output file line by line. Skips lines longer than `LINE_BYTES_MAX`, and reads the first `chars_max`
    characters of every other line."""

    chars_max: ClassVar[int] = LINE_BYTES_MAX

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[Told]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest, self._skipping = b"", True
        for line in lines:
            if len(line) <= LINE_BYTES_MAX:
                yield from self.line(line.decode(errors="replace").rstrip("\r")[: self.chars_max])

    @abc.abstractmethod
    def line(self, text: str) -> Iterator[Told]:
        """Returns the events in one line of a trainer's output. Raises `ValueError` if no further line can be read."""


def number(text: object) -> float | None:
    """Parses a number in a trainer's output. Returns `None` if `text` is no number."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    try:
        return float(text)
    except (ValueError, OverflowError):
        return None


def count(value: object) -> int | None:
    """Parses a whole number from 0 to 2^53 - 1. Returns `None` for any other value."""
    found = number(value)
    return int(found) if found is not None and found.is_integer() and 0 <= found < 2**53 else None


def known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


_FAMILY = Family("reader", "harness.trainers.readers", "READER")
reader_names = _FAMILY.names
load_reader: Callable[[str], type[Reader]] = _FAMILY.load


def build_reader(written: object) -> Reader:
    """Builds a reader from YAML such as `{torchtitan: <file>}` or `{lines: {file: …, regex: …}}`."""
    if isinstance(written, Reader):
        return written
    if not isinstance(written, Mapping) or len(written) != 1:
        raise ValueError(f"write one reader with its file; choose one of: {', '.join(reader_names())}")
    name, given = next(iter(written.items()))
    return load_reader(_FAMILY.known(name)).model_validate(given if isinstance(given, Mapping) else {"file": given})


def _schema() -> dict[str, Any]:
    forms = {name: {"anyOf": [{"type": "string"}, load_reader(name).model_json_schema()]} for name in reader_names()}
    return {"type": "object", "properties": forms, "minProperties": 1, "maxProperties": 1}


Read = Annotated[Reader, Written(build_reader, lambda it: {it.name: it.model_dump(mode="json")}, _schema)]
