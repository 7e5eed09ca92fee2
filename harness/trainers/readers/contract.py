"""Defines the contract of readers, which follow trainers that cannot be observed by the files that they write.

Each format has one file in `harness/trainers/readers/`, whose name is its name in the YAML:

    trainer: {command: [...], read: {torchtitan: "{run_dir}/out/structured_logs/*.jsonl"}}

The file holds `READER`, a subclass of `Reader`: its parameters, the kinds that it `tells`, and how bytes become events
of a trainer. The bytes are hostile: a reader raises nothing over them but `ValueError`, if it cannot understand them.
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
    """One event in a trainer's output. `wall_ns`: its time by the source's clock; `None`: that of reading counts.

    `took_ns` is the duration of the step, if known; `rank` is the event's rank.
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
    """Reads one output file of a trainer, bit by bit as it grows."""

    @abc.abstractmethod
    def feed(self, data: bytes) -> Iterator[Told]:
        """Yields the events in newly written bytes of an output file. A reader of whole files gets all of the file each
        time. Raises `ValueError` for bytes that it does not understand; the rest of the file is read on."""


class Reader(Parameters, abc.ABC):
    """The base of readers of trainers' output. `file` may hold `*`, `**`, `{node}`, `{incarnation}` and `{rank}`."""

    tells: ClassVar[frozenset[Tell]]
    source: ClassVar[type[Source]]
    timed: ClassVar[bool] = False  # whether each event says when it was
    whole: ClassVar[bool] = False  # whether the file is written anew each time, and read as a whole

    file: Annotated[str, AfterValidator(_checked_pattern)] = NODE_LOGS

    def open(self) -> Source:
        """Begins to read one output file."""
        return self.source()

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def folder(self) -> str:
        """Returns the folder, below the run's folder, that holds all output files to read."""
        fixed = _PART.split(self.file.removeprefix(RUN_DIR))[0]
        return fixed.rpartition("/")[0] or "."

    def matching(self) -> re.Pattern[str]:
        """Returns the pattern of paths, relative to the run's folder."""
        text = self.file.removeprefix(RUN_DIR)
        parts = re.split(f"({_PART.pattern})", text)
        return re.compile("".join(_WILD[part] if part in _WILD else re.escape(part) for part in parts))


class LineSource(Source):
    """Reads an output file line by line. Lines that are too long are left out; of the others, the first `chars_max`
    characters are read."""

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
    """Parses a number as trainers print it. Returns `None` for any other text."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    try:
        return float(text)
    except (ValueError, OverflowError):
        return None


def count(value: object) -> int | None:
    """Parses a whole number that is not negative and fits a float exactly. Returns `None` for any other text."""
    found = number(value)
    return int(found) if found is not None and found.is_integer() and 0 <= found < 2**53 else None


def known(**fields: Any) -> dict[str, Any]:
    """Returns the fields of an event that are known (not `None`)."""
    return {name: value for name, value in fields.items() if value is not None}


_FAMILY = Family("reader", "harness.trainers.readers", "READER")
reader_names = _FAMILY.names
load_reader: Callable[[str], type[Reader]] = _FAMILY.load


def build_reader(written: object) -> Reader:
    """Builds a reader from YAML: `{torchtitan: <file>}` or `{lines: {file: …, regex: …}}`."""
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
