"""Parses each line of an event log into a record (a dictionary), and checks its fields against
`harness.log.vocabulary`.

Fields that the vocabulary does not declare are kept, and not checked. A `null` in an optional field of an event counts
as a missing field. The header, which is the first line of a file, must not contain `null`.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from harness.log import sample_indices, vocabulary
from harness.log.files import visible
from harness.log.planned_size import PlannedSize
from harness.log.vocabulary import EVENTS, Event, Field
from harness.node.emitter import SCHEMA_VERSION

DEPTH_MAX = 32
SHOWN_CHARS_MAX = 60
_PLACE = re.compile(r"\$((?:\.\w+|\[\d+\]|\[\.\.\.\])*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")

# `sample_indices` checks these limits.
_RUN = msgspec.Meta(extra_json_schema={"minItems": 2, "maxItems": 3})
_RUNS = msgspec.Meta(extra_json_schema={"maxItems": vocabulary.RUNS_MAX})

Record = dict[str, Any]


class Damaged(ValueError):
    """An invalid line of an event log; the message says what is wrong with the line."""


def kind_of(field: Field, within: str = "") -> Any:
    kinds: dict[str, Any] = {
        vocabulary.INTEGER: Annotated[int, msgspec.Meta(ge=field.least, le=field.most)],
        vocabulary.NUMBER: float | Literal["nan", "inf", "-inf"],
        vocabulary.SHARE: Annotated[float, msgspec.Meta(ge=0, le=1)],
        vocabulary.TEXT: Annotated[str, msgspec.Meta(max_length=field.most)],
        vocabulary.FLAG: bool,
        vocabulary.LABEL: Annotated[str, msgspec.Meta(max_length=field.most)]
        | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
        vocabulary.TEXTS: list[str],
        vocabulary.RUNS: Annotated[list[Annotated[list[int], _RUN]], _RUNS],
    }
    if field.kind in (vocabulary.OBJECT, vocabulary.OBJECTS):
        one: Any = struct(f"{within}.{field.name}", field.fields) if field.fields else dict[str, Any]
        return one if field.kind == vocabulary.OBJECT else Annotated[list[one], msgspec.Meta(max_length=field.most)]
    return Literal[field.values] if field.closed else kinds[field.kind]


def struct(name: str, fields: Sequence[Field], about: str = "", untold: Any = None, **more: Any) -> Any:
    """Returns a msgspec struct type with these fields. A missing optional field gets the value `untold`."""
    nothing = None if untold is None else msgspec.UnsetType
    told: list[Any] = []
    for field in fields:
        kind, meaning = kind_of(field, name), msgspec.Meta(description=field.in_words)
        if field.optional:
            told.append((field.name, Annotated[kind | nothing, meaning], untold))
        else:
            told.append((field.name, Annotated[kind, meaning]))
    return msgspec.defstruct(name, told, omit_defaults=True, kw_only=True, namespace={"__doc__": about}, **more)


FIELDS = {each.name: (*vocabulary.COMMON, *each.fields) for each in EVENTS}
TIMES = tuple(field for field in vocabulary.COMMON if field.name != "event")
Header = struct("header", vocabulary.HEADER, "The first line of a file.", untold=msgspec.UNSET)
Unknown = struct("unknown", vocabulary.COMMON, "An event of another name is ignored.")
DECLARED: dict[tuple[str, str], Event] = {(role, each.name): each for each in EVENTS for role in each.roles}
TYPES: dict[str, type[msgspec.Struct]] = {
    each.name: struct(each.name, (*TIMES, *each.fields), each.in_words, tag=each.name, tag_field="event")
    for each in EVENTS
}
_OPTIONAL = {each.name: frozenset(field.name for field in (*TIMES, *each.fields) if field.optional) for each in EVENTS}
_READERS = frozenset(("at", "key", "process", "node", "incarnation", "rank", "local_rank", "pid"))
_FOREIGN = {key: _READERS - {field.name for field in event.fields} for key, event in DECLARED.items()}


def json_schema() -> dict[str, Any]:
    types = (*TYPES.values(), Unknown, Header)
    (*events, _), parts = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    parts["unknown"]["properties"]["event"] = {"type": "string", "not": {"enum": [*TYPES]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of an event file",
        "anyOf": [{"$ref": "#/$defs/header"}, {"$ref": "#/$defs/event"}],
        "$defs": {"event": {"anyOf": events}, **parts},
    }


def parse(line: bytes) -> Record:
    """Parses a line of an event log as a JSON object, without checking its fields. Raises `Damaged` if the line is not
    a JSON object, or is nested too deeply."""
    try:
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            # It knows NaN and lone surrogates, which other writers use.
            record = json.loads(line.decode("utf-8-sig", "surrogatepass"))
    except RecursionError:
        raise Damaged(f"nested deeper than {DEPTH_MAX}") from None
    except ValueError as error:
        raise Damaged(f"not a complete JSON line ({error})") from None
    if not isinstance(record, dict):
        raise Damaged(f"an event must be a JSON object, not {shown(record)}")
    # Nothing in a plain line can need cleaning: it has no escape, only ASCII, and is not deep.
    nothing_hidden = b"\\" not in line and line.isascii() and b"\x7f" not in line
    plain = nothing_hidden and line.count(b"{") + line.count(b"[") <= DEPTH_MAX
    return record if plain else _clean_tree(record, 0)


def header(record: Record) -> Record:
    """Checks the header, the first line of an event file. Raises `Damaged` if the header is invalid."""
    told = record.get("schema")
    if told != SCHEMA_VERSION or isinstance(told, bool):
        raise Damaged(f"event schema {shown(told)}; this version reads schema {SCHEMA_VERSION}")
    _converted(record, Header, vocabulary.HEADER, "header")
    return record


def event(record: Record, role: str) -> Record:
    """Checks the declared fields of an event, and returns the event without optional fields that are `null`. Raises
    `Damaged` if a declared field is missing, has the wrong type, or exceeds its limits. If the event is not declared
    for this `role` (trainer, agent or harness), only the common fields are checked."""
    name = record.get("event")
    if not isinstance(name, str) or (role, name) not in DECLARED:
        _converted(record, Unknown, vocabulary.COMMON, "event")
        return record
    _converted(record, TYPES[name], FIELDS[name], f"{name} event")
    if name == "plan" and (ranks := PlannedSize.of(record["plan"]).assumed_world_size) > vocabulary.RANKS_MAX:
        raise Damaged(f"plan event: a job of {ranks} ranks; at most {vocabulary.RANKS_MAX} can be judged")
    if name == "step" and record.get("samples") is not None:
        try:
            sample_indices.checked(record["samples"])
        except ValueError as error:
            raise Damaged(f"step event: samples: {error}") from None
    if None not in record.values():
        return record
    optional = _OPTIONAL[name]
    return {key: value for key, value in record.items() if value is not None or key not in optional}


def own(record: Record, role: str) -> Record:
    """Removes undeclared fields that have the name of a field that log readers add, such as `at`."""
    foreign = _FOREIGN.get((role, record["event"]), _READERS)
    return record if foreign.isdisjoint(record) else {k: v for k, v in record.items() if k not in foreign}


def _converted(record: Record, to: type[msgspec.Struct], fields: Sequence[Field], what: str) -> msgspec.Struct:
    try:
        return msgspec.convert(record, to)
    except msgspec.ValidationError as error:
        raise Damaged(f"{what}: {_explained(str(error), record, fields)}") from None


def _explained(message: str, record: Record, fields: Sequence[Field]) -> str:
    place = _PLACE.search(message)
    steps = re.findall(r"\w+", place[1]) if place else []
    missing = _MISSING.search(message)
    if missing:
        return f"{'.'.join([*steps, missing[1]])} is missing"
    value: Any = record
    declared: Field | None = None
    for step in steps:
        value = value[int(step)] if isinstance(value, list) else value.get(step) if isinstance(value, dict) else None
        inside = declared.fields if declared else fields
        declared = next((field for field in inside if field.name == step), declared)
    if declared is None:
        return message
    may_be = allowed(declared)
    if steps[-1].isdigit():  # it is one of a list
        known = f" like {', '.join(map(json.dumps, declared.values))}" if declared.values else ""
        may_be = {vocabulary.TEXTS: f"a text{known}", vocabulary.OBJECTS: "an object"}.get(declared.kind, may_be)
    return f"{'.'.join(steps)} must be {may_be}, not {shown(value)}"


def allowed(field: Field) -> str:
    if field.closed:
        return " or ".join(json.dumps(value) for value in field.values)
    words = {
        vocabulary.INTEGER: f"an integer from {field.least} to {field.most}",
        vocabulary.NUMBER: 'a number, "nan", "inf" or "-inf"',
        vocabulary.SHARE: "a number from 0 to 1",
        vocabulary.TEXT: "a text" + (f" of at most {field.most} characters" if field.most else ""),
        vocabulary.FLAG: "true or false",
        vocabulary.LABEL: f"a text of at most {field.most} characters or an integer of 64 bits",
        vocabulary.TEXTS: "a list of texts",
        vocabulary.OBJECT: "an object",
        vocabulary.OBJECTS: "a list of " + (f"at most {field.most} " if field.most else "") + "objects",
        vocabulary.RUNS: "a list of runs, each [first, count] or [first, count, stride]",
    }
    return words[field.kind]


def shown(value: Any) -> str:
    """Formats a value for an error message: shortened, and with control characters escaped."""
    try:
        text = visible(value if isinstance(value, str) else repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits; lists in lists in lists
        return f"a very large {type(value).__name__}"
    text = text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def _clean_tree(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _clean(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth >= DEPTH_MAX:
        raise Damaged(f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, list):
        return [_clean_tree(item, depth + 1) for item in value]
    return {_clean(key): _clean_tree(item, depth + 1) for key, item in value.items()}


def _clean(text: str) -> str:
    return text if text.isascii() and text.isprintable() else visible(text, keep="\n\t")
