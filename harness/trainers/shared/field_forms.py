"""Supports fields of a scenario that can be written in several forms, for which different models are built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Written:
    """Parses and writes a scenario's field that has several forms. `build` makes the model, or raises `ValueError` for
    an invalid form. `to_json` turns the model into JSON. `schema` makes a JSON Schema of all forms."""

    build: Callable[[object], object]
    to_json: Callable[[Any], object]
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        form = core_schema.plain_serializer_function_ser_schema(self.to_json)
        return core_schema.no_info_plain_validator_function(self.build, serialization=form)

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return self.schema()
