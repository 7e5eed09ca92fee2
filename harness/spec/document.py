"""Reads a YAML file with the position of each value, so that mistakes are reported with file:line:column.

The reader is strict: it accepts only YAML 1.2 scalars and basic tags, and no duplicate keys. The size of the file, its
depth and its number of values are limited.
"""

import os
import pathlib
import re
import stat
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from harness.errors import ScenarioError, UsageError, choice
from harness.spec.secrets import is_secret

BYTES_MAX = 4 * 2**20
VALUES_MAX = 500_000  # keys and values, those that aliases repeat included
DEPTH_MAX = 40
DIGITS_MAX = 300
PROBLEMS_MAX = 50
SHOWN_MAX = 80  # characters of a bad value

_Checked = TypeVar("_Checked", bound=BaseModel)
Path = tuple[str | int, ...]


class Mark(NamedTuple):
    """A position in the file `source`: line and column, both from 1. An empty `source` means the file that is read."""

    line: int
    column: int
    source: str = ""


_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_TAG = "tag:yaml.org,2002:"
_TAGS = ("str", "int", "float", "bool", "null", "map", "seq")
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_SPECIAL = re.compile(r"(?:[-+]?\.inf|\.nan)\Z", re.IGNORECASE)


class MarkedMap(dict[Any, Any]):
    __slots__ = ("marks",)

    def __init__(self, data: Mapping[Any, Any], marks: Mapping[Any, Mark]):
        super().__init__(data)
        self.marks = dict(marks)


class MarkedList(list[Any]):
    __slots__ = ("marks",)

    def __init__(self, data: Sequence[Any], marks: Sequence[Mark]):
        super().__init__(data)
        self.marks = list(marks)


def read_text(path: pathlib.Path, bytes_max: int = BYTES_MAX) -> str:
    """Reads the text of a regular file, without blocking on devices. Raises `UsageError` if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        where = "" if path.is_absolute() else f" (looked for {path.absolute()})"
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{where}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a folder; name a file in it" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError(f"{path}: cannot be read: it is {what}")
    try:
        with open(descriptor, "rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:  # of /proc/self/mem, or a failing disk
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > bytes_max:
        raise UsageError(f"{path}: cannot be read: it is larger than the {bytes_max / 2**20:g} MiB that are allowed")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: cannot be read: it is not UTF-8 text") from error


class Document:
    """A YAML file as plain data, with the problems found so far. Raises `ScenarioError` for invalid YAML."""

    def __init__(self, text: str, source: str):
        self.source = source
        self.problems: list[str] = []
        self._told: set[Path] = set()  # where a problem was told
        reader = _Reader(text, self)
        try:
            self.data: Any = reader.read()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)
            line = "".join(text.splitlines()[place.line - 1 : place.line])
            tab = "; it has a tab: indent with spaces" if "\t" in line else ""
            raise self._refuse(place, f"not valid YAML: {error.problem}{tab}") from error
        except yaml.reader.ReaderError as error:
            before = text[: error.position] if isinstance(error.position, int) else ""
            raise self._refuse(Mark(before.count("\n") + 1, 1), f"not valid YAML: {error.reason}") from error
        except _Refused as error:
            raise self._refuse(error.mark, error.message) from None
        self.raise_problems()

    def _refuse(self, mark: Mark, message: str) -> ScenarioError:
        return ScenarioError([*self.problems, self._line(mark, message)])

    def _line(self, mark: Mark, message: str) -> str:
        return printable(f"{mark.source or self.source}:{mark.line}:{mark.column}: {message}")

    def at(self, path: Path, message: str) -> str:
        return self._line(self.mark(path), f"{dotted(path) + ': ' if path else ''}{message}")

    def mark(self, path: Path) -> Mark:
        """Returns the place in the file of the value at `path`, or of the nearest enclosing value."""
        return mark_in(self.data, path, Mark(1, 1))

    def problem(self, path: Path, message: str) -> None:
        self.problems.append(self.at(path, message))
        self._told.add(path)

    def problem_at(self, mark: Mark, message: str) -> None:
        self.problems.append(self._line(mark, message))

    def raise_problems(self) -> None:
        if self.problems:
            found = list(dict.fromkeys(self.problems))
            if len(found) > PROBLEMS_MAX:
                found[PROBLEMS_MAX:] = [f"{self.source}: and {len(found) - PROBLEMS_MAX} more mistakes"]
            raise ScenarioError(found)

    def check(
        self, model: type[_Checked], data: Any, at: Path = (), keys: Callable[[Path], Sequence[str]] | None = None
    ) -> _Checked | None:
        """Builds a pydantic model, or notes problems and returns `None`. `keys` returns the keys allowed at a path."""
        found, problems = checked(model, data, keys)
        for path, message in problems:
            if (*at, *path) not in self._told:
                self.problem((*at, *path), message)
        return found

    def valid(self, model: type[_Checked], data: Any, keys: Callable[[Path], Sequence[str]] | None = None) -> _Checked:
        found = self.check(model, data, keys=keys)
        self.raise_problems()
        assert found is not None, "what could not be checked has its problem"
        return found


def mark_in(data: Any, path: Path, default: Mark) -> Mark:
    here, mark = data, default
    for part in path:
        if isinstance(here, MarkedMap) and part in here:
            mark = here.marks.get(part, mark)
        elif isinstance(here, MarkedList) and isinstance(part, int) and part < len(here):
            mark = here.marks[part]
        else:
            break
        here = here[part]
    return mark


class _Refused(Exception):
    def __init__(self, mark: Mark, message: str):
        self.mark, self.message = mark, message


class _Reader:
    def __init__(self, text: str, document: Document):
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self.document = document
        self.values = 0
        self.anchors: dict[str, tuple[Any, int]] = {}  # name → value, and how many values it holds

    def read(self) -> Any:
        data = None
        for number, event in enumerate(each for each in self.events if isinstance(each, yaml.DocumentStartEvent)):
            if number:
                raise _Refused(_mark(event), "not valid YAML: a file holds one document")
            data = self._value(next(self.events), 0)
        return data

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self.values
        self._count(event, 1)
        if depth > DEPTH_MAX:
            raise _Refused(_mark(event), f"nested deeper than the {DEPTH_MAX} levels that are allowed")
        if event.tag not in (None, "!") and event.tag.removeprefix(_TAG) not in _TAGS:
            allowed = ", ".join(f"!!{tag}" for tag in _TAGS)
            raise _Refused(_mark(event), f"unknown tag {short(event.tag)!r}; choose one of: {allowed}")
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(depth)
        else:
            value = self._sequence(depth)
        if event.anchor:
            self.anchors[event.anchor] = value, self.values - before
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise _Refused(_mark(event), f"not valid YAML: unknown alias {short(event.anchor)!r}")
        value, size = self.anchors[event.anchor]
        self._count(event, size)
        return value

    def _count(self, event: Any, size: int) -> None:
        self.values += size
        if self.values > VALUES_MAX:
            raise _Refused(_mark(event), f"more than the {VALUES_MAX:,} keys and values that are allowed")

    def _mapping(self, depth: int) -> MarkedMap:
        data: dict[Any, Any] = {}
        marks: dict[Any, Mark] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            mark = _mark(event, self.document.source)
            key = self._value(event, depth + 1)
            if isinstance(key, (dict, list)):
                raise _Refused(mark, "not valid YAML: a key is a plain word")
            key = event.value if isinstance(event, yaml.ScalarEvent) else str(key)  # as it is written
            if key in data:
                self.document.problem_at(mark, f"duplicate key {short(key)!r}")
            data[key], marks[key] = self._value(next(self.events), depth + 1), mark
        return MarkedMap(data, marks)

    def _sequence(self, depth: int) -> MarkedList:
        data, marks = [], []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            marks.append(_mark(event, self.document.source))
            data.append(self._value(event, depth + 1))
        return MarkedList(data, marks)


def _mark(event: Any, source: str = "") -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1, source)


def _scalar(event: Any) -> Any:
    """Parses a scalar by the core schema of YAML 1.2, in which `on`, `no` and dates are texts."""
    text: str = event.value
    plain = event.tag in (None, "!") and event.implicit[0]
    kind = "plain" if plain else "str" if event.tag in (None, "!") else event.tag.removeprefix(_TAG)
    found = text if kind == "str" else _typed(text)
    if len(text) > DIGITS_MAX and not isinstance(found, str):
        raise _Refused(_mark(event), f"a number of more than the {DIGITS_MAX} digits that are allowed")
    if kind not in ("plain", "str") and type(found).__name__ != {"null": "NoneType"}.get(kind, kind):
        raise _Refused(_mark(event), f"{short(text)!r} is not of the type !!{kind}")
    return found


def _typed(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.match(text):
        return int(text[:DIGITS_MAX], {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.match(text):
        return float(text)
    return float(text.replace(".", "")) if _SPECIAL.match(text) else text


def short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def dotted(path: Path) -> str:
    return ".".join(short(str(part)) or "''" for part in path)


def printable(text: str) -> str:
    """Escapes all characters that could move a terminal's cursor or change the direction of text."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def checked(
    model: type[_Checked], data: Any, keys: Callable[[Path], Sequence[str]] | None = None
) -> tuple[_Checked | None, list[tuple[Path, str]]]:
    """Builds a pydantic model. Returns the model, or `None` and (path, message) for each invalid value."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        # One problem per place: of a union's alternatives the one that got furthest is what the writer meant.
        best: dict[Path, Mapping[str, Any]] = {}
        for problem in error.errors(include_url=False):
            best.setdefault(_document_path(problem["loc"]), problem)
        above = {path[:length] for path in best for length in range(len(path))}
        known = keys or (lambda path: keys_at(model, path))
        return None, [(path, _message(problem, path, known)) for path, problem in best.items() if path not in above]


_PATTERNS = {r"^[a-z0-9][a-z0-9-]{0,62}$": "at most 63 lower-case letters, digits and dashes, like my-test"}
_UNION_TAGS = re.compile(
    r"literal\[|constrained|function-|^(int|Count|Percent|NotRank|SuiteEntry|str|float|dict)$|\[.*\]|\(.*\)"
)


def _document_path(loc: Sequence[str | int]) -> Path:
    """Converts pydantic's location of an error to a path in the file, by leaving out parts such as names of types."""
    return tuple(
        part
        for place, part in enumerate(loc)
        if isinstance(part, int) or not (_UNION_TAGS.search(part) or (place == 2 and part == "parameters"))
    )


def _message(problem: Mapping[str, Any], path: Path, keys: Callable[[Path], Sequence[str]]) -> str:
    kind, text = problem["type"], problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key; {choice(path[-1], keys(path[:-1]))}"
    if kind == "missing":
        return "is missing: write version: 1" if path == ("version",) else "is missing"
    if kind == "string_pattern_mismatch" and (words := _PATTERNS.get(problem["ctx"]["pattern"])):
        return f"{short(repr(problem['input']))} is not allowed: it has {words}"
    if kind == "value_error":
        return _cut(text)
    if kind in ("too_long", "too_short"):
        given = problem["ctx"]
        bound = f"at most {given['max_length']:,}" if kind == "too_long" else f"at least {given['min_length']:,}"
        return f"the number of items is {given['actual_length']:,}; allowed: {bound}"
    text = _TYPES.sub(lambda found: "a mapping" if found[1] == "dictionary" else "a list", text)
    value = problem["input"]
    shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else short(repr(value))
    if any(isinstance(part, str) and is_secret(part) for part in path):
        shown = "the value"
    is_input = problem["msg"].startswith("Input")
    return _cut(f"{shown} is not allowed: it should be {text}" if is_input else f"{shown}: {text}")


_TYPES = re.compile(r"a valid (dictionary|list|tuple)( or (an )?instance of \w+)?")


def _cut(message: str) -> str:
    return message if len(message) <= 500 else message[:499] + "…"


def keys_at(model: type[BaseModel], path: Path) -> list[str]:
    here: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, str) and here is not None:
            fields = {field.alias or name: field for name, field in here.model_fields.items()}
            here = _model_in(fields[part].annotation) if part in fields else None
    return [field.alias or name for name, field in here.model_fields.items()] if here else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [inner for each in typing.get_args(annotation) if (inner := _model_in(each))]
    return found[0] if len(found) == 1 else None
