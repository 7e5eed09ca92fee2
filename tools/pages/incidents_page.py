"""The table of public incidents, from docs/incidents.yaml."""

import pathlib
from collections.abc import Sequence
from typing import Literal, Self

import yaml
from pydantic import Field, HttpUrl, TypeAdapter, model_validator

from harness.parameters import Parameters

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
HEAD = ("Incident", "Scenarios", "Reference trainer", "Reproduced", "Missing")


class Incident(Parameters):
    """One incident. Without `scenarios`, nothing of it is reproduced."""

    incident: str = Field(description="What happened.")
    sources: dict[str, HttpUrl] = Field(min_length=1, description="Name and address of what is public about it.")
    scenarios: tuple[str, ...] = Field((), description="Those that rehearse it, or a part of it.")
    verdict: Literal["pass", "fail", "inconclusive"] | None = Field(None, description="Of the reference trainer.")
    reproduced: str = Field("", description="What the scenarios have of it.")
    missing: str = Field("", description="What they lack.")

    @model_validator(mode="after")
    def _told_if_rehearsed(self) -> Self:
        if bool(self.scenarios) != bool(self.verdict) or bool(self.scenarios) != bool(self.reproduced):
            raise ValueError("scenarios, verdict and reproduced belong together: write all three, or none")
        return self

    @property
    def cells(self) -> tuple[str, ...]:
        sources = ", ".join(f"[{name}]({address})" for name, address in self.sources.items())
        return (
            f"{self.incident} ({sources})",
            ", ".join(self.scenarios) or "none yet",
            self.verdict or "–",
            self.reproduced or "–",
            self.missing or "–",
        )


def incidents() -> Sequence[Incident]:
    """Returns all incidents. Raises `pydantic.ValidationError` for a wrong entry."""
    return TypeAdapter(list[Incident]).validate_python(yaml.safe_load((DOCS / "incidents.yaml").read_text()))


def table() -> str:
    """Returns the table as Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *(each.cells for each in incidents())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
