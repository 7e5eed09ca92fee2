"""Reads tables of failure rates (failures per node-day by cause), and the distribution of times between failures."""

from __future__ import annotations

import pathlib
from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.errors import UsageError, choice
from harness.faults.contract import fault_names
from harness.forecast.job_model import RATE_MAX, Gaps, number
from harness.parameters import Parameters
from harness.report.html_page import resource
from harness.spec.document import Document, read_text
from harness.spec.scenario import Line

DEFAULT = "llama3"
Count = Annotated[int, Field(ge=1, le=10**9)]


class CauseRate(Parameters):
    name: Line
    count: Count | None = Field(None, description="Failures in the node-days of the table.")
    per_1000_node_days: Annotated[float, Field(gt=0, le=RATE_MAX)] | None = None
    node: bool = Field(False, description="The node has to be replaced.")
    silent: bool = Field(False, description="Nothing ends by itself, as in a hang.")
    faults: list[str] = Field([], max_length=20, description="What stands for it in a run, the best first.")

    @model_validator(mode="after")
    def _has_one_rate(self) -> CauseRate:
        if (self.count is None) == (self.per_1000_node_days is None):
            raise ValueError("write one of count: and per_1000_node_days:")
        if unknown := next((each for each in self.faults if each not in fault_names()), None):
            raise ValueError(f"unknown fault {unknown!r}; {choice(unknown, fault_names())}")
        return self


class RateTable(Parameters):
    source: Line
    node_days: Annotated[float, Field(gt=0, le=1e9)] | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="Of the nodes that failed.")
    causes: list[CauseRate] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _counts_over_something(self) -> RateTable:
        if self.node_days is None and any(each.count is not None for each in self.causes):
            raise ValueError("node_days: is missing: failures are counted over some")
        return self

    def of_nodes_with(self, gpus: int) -> RateTable:
        """Converts a table of failure rates to nodes with this many GPUs, with the same rate per GPU. Returns the table
        unchanged if the number of GPUs on the table's own nodes is unknown."""
        if self.gpus_per_node in (None, gpus):
            return self
        factor, source = (
            gpus / self.gpus_per_node,
            f"{self.source}; per GPU as often, there a node had {self.gpus_per_node}",
        )
        causes = [
            each.model_copy(update={"per_1000_node_days": each.per_1000_node_days and factor * each.per_1000_node_days})
            for each in self.causes
        ]
        days = self.node_days and self.node_days / factor
        return self.model_copy(update={"node_days": days, "source": source, "causes": causes, "gpus_per_node": gpus})

    def per_node_day(self, cause: CauseRate) -> float:
        if cause.per_1000_node_days is not None:
            return cause.per_1000_node_days / 1000
        assert cause.count is not None and self.node_days is not None
        return cause.count / self.node_days


class RateTables(Parameters):
    version: Literal[1]
    tables: dict[Line, RateTable] = Field(min_length=1, max_length=100)


def shipped() -> dict[str, RateTable]:
    return _parse(resource(f"{__package__}/failure_rates.yaml"), "failure_rates.yaml").tables


def load_rates(name: str) -> tuple[str, RateTable]:
    """Returns the shipped table of failure rates with this name, or the table in the file with this path. Raises
    `UsageError` if there is no such table."""
    known = shipped()
    if name in known:
        return name, known[name]
    path = pathlib.Path(name)
    if not path.suffix and not path.exists():
        raise UsageError(f"--rates {name[:80]}: neither a file nor a table; {choice(name, known)}")
    tables = _parse(read_text(path), str(path)).tables
    if len(tables) > 1:
        raise UsageError(f"--rates {path}: it has {len(tables)} tables; a file has one")
    ((own, table),) = tables.items()
    return own, table


def _parse(text: str, source: str) -> RateTables:
    document = Document(text, source)
    return document.valid(RateTables, document.data)


def load_gaps(text: str) -> Gaps:
    """Parses the distribution of the times between failures: `poisson`, or `weibull:` with a shape, such as
    `weibull:0.6`. Raises `UsageError` for any other text."""
    kind, _, shape = text.partition(":")
    if text == "poisson":
        return Gaps()
    if kind == "weibull":
        value = number(shape, "--failures weibull", 0.2, 5)
        return Gaps(value, (), f"in bursts (Weibull, shape {value:g})" if value < 1 else f"Weibull, shape {value:g}")
    raise UsageError(f"--failures {text[:80]}: write poisson or weibull:SHAPE, as weibull:0.6; a file is for --trace")
