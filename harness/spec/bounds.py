"""What a scenario expects of each score. The models of the scores' bounds are handed in: no score is known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from harness.errors import choice
from harness.spec.document import Document

ScoreBounds = Mapping[str, type[BaseModel]]
"""Name of a score → the model of what may stand under it in `expect:`."""


def check_expectations(document: Document, expect: Any, scores: ScoreBounds) -> None:
    """Adds a problem for each unknown score and each wrong bound. Linear in what is expected."""
    for name, bounds in expect.items() if isinstance(expect, dict) else ():
        if name not in scores:
            document.problem(("expect", name), f"unknown score {name!r}; {choice(name, scores)}")
        else:
            document.check(scores[name], bounds, ("expect", name))


def bounds_schema(scores: ScoreBounds) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON Schema of `expect:`, and the definitions that it refers to."""
    bounds = {name: model.model_json_schema() for name, model in scores.items()}
    definitions: dict[str, Any] = {}
    for schema in bounds.values():
        definitions |= schema.pop("$defs", {})
    return {"type": "object", "properties": bounds, "additionalProperties": False}, definitions
