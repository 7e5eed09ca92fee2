"""Reads the plan of faults for a job that somebody else started. Each error message names the line of the mistake."""

from __future__ import annotations

import pathlib
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from harness.campaign.own_log import reader_as
from harness.errors import ScenarioError
from harness.gameday.day_file import Probe
from harness.parameters import Parameters, Share
from harness.report.commands import pages_here
from harness.spec.document import Document, read_text
from harness.spec.scenario import Line, Name
from harness.units import Duration

ENTRIES_MAX = 200
LASTS_S_MAX = 3600.0
Verb = Literal["pause", "stop", "disconnect", "kill", "evict", "delete"]


def _one_number(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError(rf"{text!r} has {groups} groups; write exactly one, around the number: step (\d+)")
    return text


def _short_enough(value: Duration) -> Duration:
    if not 0 < value.s <= LASTS_S_MAX:
        raise ValueError(f"{value} is not allowed; more than 0s, at most 1h")
    return value


def _reader(given: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if given is not None:
        reader_as(given)
    return given


Time = Annotated[Duration, AfterValidator(_short_enough)]


class Progress(Parameters):
    """A rising number in the job's log, such as the step, that shows the job's progress. Without a progress number, the
    verdict on a fault can be `pass` only if all nodes end with exit code 0."""

    log: Annotated[Line, AfterValidator(_one_number)] = Field(description=r"With one group: step (\d+).")
    read: Annotated[str | dict[str, Any] | None, AfterValidator(_reader)] = Field(
        None, description="What wrote its log, as for `chaos score --read`: steps done again must be the same."
    )
    within: Time = Field(Duration("2m"), description="It must rise before a strike, and pass its highest after it.")


class AttachedEntry(Parameters):
    strike: Verb | None = None
    nodes: int = Field(1, ge=1, description="How many at once; the seed decides which.")
    lasts: Time = Field(Duration("10s"), description="Then it is undone.")
    rest: Time | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> AttachedEntry:
        if (self.strike is None) == (self.rest is None):
            raise ValueError("write exactly one of: strike, rest")
        return self


class Limits(Parameters):
    nodes: Share = Field(50.0, description="At most this part of the job's nodes at once.")


class AttachedDay(Parameters):
    version: Literal[1]
    name: Name
    title: Line
    progress: Progress | None = None
    limits: Limits = Limits()
    probes: list[Probe] = Field([], max_length=50)
    entries: list[AttachedEntry] = Field(min_length=1, max_length=ENTRIES_MAX)

    def nodes_max(self, nodes: int) -> int:
        """Returns the largest number of nodes on which a fault may act at once. A job with one node allows faults only
        if the limit is 100 %."""
        return int(nodes * self.limits.nodes / 100 + 1e-9)


def load_attached(path: pathlib.Path) -> AttachedDay:
    """Reads and checks the plan of faults for a running job. Raises `ScenarioError` with all mistakes in the file."""
    document = Document(read_text(path), str(path))
    data = document.data
    if isinstance(data, dict) and any(key in data for key in ("workload", "steady", "budget")):
        why = "this is the plan of a job that the harness starts; with --attach write strikes, as docs/gameday.md says"
        raise ScenarioError([document.at((), pages_here(why))])
    day = document.valid(AttachedDay, data)
    if not any(entry.strike for entry in day.entries):
        raise ScenarioError([document.at(("entries",), "no entry strikes: nothing is rehearsed")])
    return day
