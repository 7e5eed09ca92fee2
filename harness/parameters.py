"""Defines the base class of all models that people write in YAML. Unknown keys, NaN, and text in place of a number are
errors."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema

from harness import units

# `25%`, or 25
Percentage = Annotated[
    float,
    BeforeValidator(units.parse_percent),
    WithJsonSchema({"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?%$", "examples": [25]}),
]
Share = Annotated[float, BeforeValidator(units.parse_percent), Field(gt=0, le=100)]  # the same, but above 0


def _take_numbers_only(schema: Any) -> None:
    """Makes numbers strict in a model's schema, because by default pydantic takes `true` and `'1'` for the number 1."""
    if isinstance(schema, dict):
        if schema.get("type") in ("int", "float"):
            schema["strict"] = True
        for part in schema.values():
            _take_numbers_only(part)
    elif isinstance(schema, list):
        for part in schema:
            _take_numbers_only(part)


class Parameters(BaseModel):
    """The base of every model that a YAML file is read into. In YAML, `steps: true` and `factor: '100'` are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _take_numbers_only(schema)
        return schema
