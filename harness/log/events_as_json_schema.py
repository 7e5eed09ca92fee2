"""The vocabulary of the event log as a JSON Schema: of one line of an event file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.log import vocabulary
from harness.log.vocabulary import Field

Schema = dict[str, Any]


def json_schema() -> Schema:
    """A schema that every line of an event file keeps: its first one `header`, any other one `event`."""
    names = [event.name for event in vocabulary.EVENTS]
    unknown = _object(vocabulary.COMMON)
    unknown["properties"]["event"] = {"type": "string", "not": {"enum": names}}
    unknown["description"] = "An event of another name is ignored."
    events: dict[str, Schema] = {}
    for event in vocabulary.EVENTS:
        found = _object((*vocabulary.COMMON, *event.fields))
        found["properties"]["event"] = {"const": event.name}
        events[event.name] = found | {"description": f"{event.meaning} Written by: {', '.join(event.roles)}."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of an event file",
        "anyOf": [{"$ref": "#/$defs/header"}, {"$ref": "#/$defs/event"}],
        "$defs": {
            "header": _object(vocabulary.HEADER, nulls=False) | {"description": "The first line of a file."},
            "event": {"anyOf": [*({"$ref": f"#/$defs/{name}"} for name in names), {"$ref": "#/$defs/unknown"}]},
            **events,
            "unknown": unknown,
        },
    }


def _object(fields: Sequence[Field], nulls: bool = True) -> Schema:
    return {
        "type": "object",
        "properties": {field.name: _field(field, nulls) for field in fields},
        "required": [field.name for field in fields if not field.optional],
    }


def _field(field: Field, nulls: bool) -> Schema:
    unit = f" Unit: {field.unit}." if field.unit else ""
    known = f" Known values: {', '.join(field.values)}." if field.values and not field.closed else ""
    kind = _kind(field)
    if field.optional and nulls:
        kind = {"anyOf": [kind, {"type": "null"}]}
    return kind | {"description": f"{field.meaning}.{unit}{known}"}


def _kind(field: Field) -> Schema:
    if field.closed:
        return {"enum": list(field.values)}
    text: Schema = {"type": "string"} | ({} if field.most is None else {"maxLength": field.most})
    integer: Schema = {"type": "integer", "minimum": field.least, "maximum": field.most}
    run: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}
    one = _object(field.fields) if field.fields else {"type": "object"}
    kinds: dict[str, Schema] = {
        vocabulary.INTEGER: integer,
        vocabulary.NUMBER: {"anyOf": [{"type": "number"}, {"enum": list(vocabulary.NOT_FINITE)}]},
        vocabulary.TEXT: text,
        vocabulary.FLAG: {"type": "boolean"},
        vocabulary.LABEL: {"anyOf": [text, {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}]},
        vocabulary.TEXTS: {"type": "array", "items": {"type": "string"}},
        vocabulary.OBJECT: one,
        vocabulary.OBJECTS: {"type": "array", "items": one} | ({} if field.most is None else {"maxItems": field.most}),
        vocabulary.RUNS: {"type": "array", "items": run, "maxItems": vocabulary.RUNS_MAX},
    }
    return kinds[field.kind]
