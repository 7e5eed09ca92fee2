"""The parts of Grafana's dashboard JSON (schema version 38) that ours uses; a panel refuses any other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DataSource(Part):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Place(Part):
    x: int = Field(ge=0, le=23)
    y: int = Field(ge=0)
    w: int = Field(ge=1, le=24)
    h: Positive


class Target(Part):
    refId: str = Field(pattern="^[A-Z]$")
    datasource: DataSource
    expr: Text
    legendFormat: str = ""
    instant: bool = False
    format: Literal["time_series", "heatmap", "table"] = "time_series"


class Step(Part):
    color: Text
    value: float | None


class Thresholds(Part):
    mode: Literal["absolute", "percentage"]
    steps: list[Step] = Field(min_length=1)

    @model_validator(mode="after")
    def begins_below_all(self) -> Thresholds:
        assert self.steps[0].value is None, "the first step has no value"
        return self


class Colour(BaseModel):
    mode: Literal["thresholds", "palette-classic"]


class ValueMapping(BaseModel):
    type: str
    options: Any


class Defaults(Part):
    unit: Literal["none", "short", "percentunit", "s", "ops", "currencyUSD"]
    min: float = 0
    max: float = 0
    custom: dict[str, Any] = {}
    color: Colour | None = None
    mappings: list[ValueMapping] = []
    thresholds: Thresholds | None = None


class FieldConfig(Part):
    defaults: Defaults
    overrides: list[Any]


class Panel(Part):
    id: Positive
    type: Literal["stat", "timeseries", "heatmap"]
    title: Text
    description: Text
    datasource: DataSource
    gridPos: Place
    targets: list[Target] = Field(min_length=1)
    fieldConfig: FieldConfig
    options: dict[str, Any]


class Row(Part):
    id: Positive
    type: Literal["row"]
    title: Text
    collapsed: Literal[False]
    gridPos: Place
    panels: list[Any] = Field(max_length=0)


class Variable(BaseModel):
    name: Text
    type: Literal["datasource", "query"]
    query: str | dict[str, Any]
    current: Any


class Dashboard(BaseModel):
    title: Text
    uid: str = Field(pattern="^[a-zA-Z0-9_-]{1,40}$")
    schemaVersion: Literal[38]
    version: int
    refresh: Text
    time: dict[Literal["from", "to"], Text] = Field(min_length=2)
    templating: dict[Literal["list"], list[Variable]]
    annotations: dict[Literal["list"], list[Any]]
    panels: list[Annotated[Row | Panel, Field(discriminator="type")]]
