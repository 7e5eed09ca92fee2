"""Checks a scenario's expected scores by the pydantic model that the caller gives for each score's bounds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from harness.errors import choice
from harness.spec.document import Document, Path, checked

OFF = "off"


@dataclass(frozen=True)
class Allowed:
    """The bounds that a scenario may set for a score. A score that is judged `by_default` may be set to `off`, too."""

    bounds: type[BaseModel]
    by_default: bool = False


ScoreBounds = Mapping[str, Allowed]
"""Name of a score → what may stand under it in `expect:`."""


def check_expectations(document: Document, expect: Any, scores: ScoreBounds) -> None:
    for path, message in wrong_expectations(expect, scores) if isinstance(expect, dict) else ():
        document.problem(path, message)


def wrong_expectations(expect: Mapping[str, Any], scores: ScoreBounds) -> Iterator[tuple[Path, str]]:
    """Yields the place and the reason of each mistake under `expect:`, such as an unknown score or an invalid bound."""
    for name, written in expect.items():
        score, _, key = name.partition(".")
        if name not in scores and score in scores:
            yield ("expect", name), f"write {score}: {{{key}: {written!s:.60}}}; {name} is its name in reports"
        elif name not in scores:
            yield ("expect", name), f"unknown score {name!r}; {choice(name, scores)}"
        elif written != OFF:
            problems = checked(scores[name].bounds, written)[1]
            yield from ((("expect", name, *path), message) for path, message in problems)
        elif not scores[name].by_default:
            can_be_off = ", ".join(name for name, score in scores.items() if score.by_default)
            yield ("expect", name), f"off is for what is judged by default: {can_be_off}"


def bounds_schema(scores: ScoreBounds) -> tuple[dict[str, Any], dict[str, Any]]:
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for name, allowed in scores.items():
        schema = allowed.bounds.model_json_schema()
        definitions |= schema.pop("$defs", {})
        properties[name] = {"anyOf": [schema, {"const": OFF}]} if allowed.by_default else schema
    return {"type": "object", "properties": properties, "additionalProperties": False}, definitions
