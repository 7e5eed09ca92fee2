"""Supports fields of a scenario that hold one of several models, chosen by the form in which it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Written:
    """How a scenario's field that may be written in several forms is read and written. `build` makes the model and
    raises `ValueError` for an invalid form; `to_json` writes it again; `schema` makes the JSON Schema of all forms."""

    build: Callable[[object], object]
    to_json: Callable[[Any], object]
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        form = core_schema.plain_serializer_function_ser_schema(self.to_json)
        return core_schema.no_info_plain_validator_function(self.build, serialization=form)

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return self.schema()
