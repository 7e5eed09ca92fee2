"""Reads the plan file of a game day: a training job, and a schedule of faults and pauses. Each error message names the
line of the mistake."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from harness import units
from harness.errors import ScenarioError
from harness.parameters import Parameters, Share
from harness.spec.document import Document, Path, read_text
from harness.spec.replay import ReplaySpec
from harness.spec.scenario import LABELS_MAX, Abort, Labels, Limits, Line, Name, Overrides, check_secrets, find_scenario
from harness.trainers.contract import Workload
from harness.units import Duration

ENTRIES_MAX = 500
FIRINGS_MAX = 1000  # most firings of one random campaign
FOLDER = "gamedays"

# Scenarios for the events of a trace, by default.
TRACE_EVENTS = {"evicted": "spot-evict", "failed": "node-loss", "killed": "rank-kill", "hung": "silent-hang"}


def _web_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ValueError(
            f"{text[:80]!r} is not a web address: write http:// or https:// and a host, without a password"
        )
    return text


WebAddress = Annotated[Line, AfterValidator(_web_address)]


class Steady(Parameters):
    """The conditions under which a game day's job counts as steady. The job must be steady before each injection of
    faults, and at the end of each planned rest."""

    steps: int = Field(20, ge=2, le=1000, description="Of the newest steps nine of ten must be within the band.")
    band: Share = Field(50.0, description="Around the median time of these steps.")
    checkpoint: bool = Field(True, description="A checkpoint must have been committed.")
    loss_falling: bool = Field(True, description="The mean loss of the newest steps is below that of the first ones.")
    within: Duration = Field(Duration("10m"), description="Without it until then, the day ends without injecting more.")


class Alert(Parameters):
    name: Line
    within: Duration = Field(description="From the moment at which the first fault acts.")


class People(Parameters):
    """Time limits for people to react to the first fault of a rehearsal, counted from the start of this fault."""

    detect: Duration | None = None
    acknowledge: Duration | None = None
    mitigate: Duration | None = None


class Watched(Parameters):
    alerts: list[Alert] = Field([], max_length=100)
    people: People = People()


class _Rehearsed(Parameters):
    name: Name | None = Field(None, description="Of the rehearsal; default: the scenario's name.")
    profile: Line | None = None
    overrides: Overrides = Field(default_factory=dict)
    runbook: WebAddress | None = Field(None, description="What people are to do about it.")
    expect: Watched = Watched()


class Rehearse(_Rehearsed):
    """One scenario whose faults are injected into the job of a game day. `overrides` may set the same keys as a profile
    in a scenario file, except `workload`."""

    scenario: Line


class Random(Parameters):
    scenarios: list[Line] = Field(min_length=1, max_length=100)
    rate: Line = Field(description="Of its rehearsals, like 30/h; the times between them are random.")
    times: int = Field(ge=1, le=FIRINGS_MAX)

    @model_validator(mode="after")
    def _is_a_rate(self) -> Random:
        units.parse_per_hour(self.rate)
        return self


class Replay(ReplaySpec):
    trace: Line = Field(description="A file beside the plan or in `traces/` there, or a shipped trace.")
    first: int | None = Field(None, ge=1, le=FIRINGS_MAX, description="Only so many of its rehearsals.")
    events: dict[Line, Line] = Field(TRACE_EVENTS, description="Which scenario rehearses an event of this name.")


_KINDS = ("scenario", "parallel", "pause", "random", "replay", "rest")


class DayEntry(_Rehearsed):
    scenario: Line | None = None
    parallel: list[Rehearse] | None = Field(None, min_length=2, max_length=100)
    pause: Line | None = Field(None, description="What is asked; a person presses continue.")
    random: Random | None = None
    replay: Replay | None = None
    rest: Duration | None = Field(None, description="At least so long, and until the job is steady again.")

    @model_validator(mode="after")
    def _one_kind(self) -> DayEntry:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"{' + '.join(given) or 'nothing'} given; write exactly one of: {', '.join(_KINDS)}")
        stray = [key for key in ("profile", "overrides", "expect") if key in self.model_fields_set]
        if stray and given != ["scenario"]:
            raise ValueError(f"{stray[0]}: belongs to scenario:")
        return self

    @property
    def kind(self) -> str:
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    @property
    def rehearses(self) -> list[Rehearse]:
        if self.scenario is None:
            return list(self.parallel or ())
        kept = {key: getattr(self, key) for key in Rehearse.model_fields}
        return [Rehearse.model_construct(**kept)]


class Budget(Parameters):
    """Limits on the GPU time that a game day may waste after its job was first steady. The day's schedule ends early if
    a limit is exceeded."""

    wasted_gpu_hours: float | None = Field(None, gt=0)
    wasted_percent: Share | None = Field(None, description="Of the GPU time since then.")


class Http(Parameters):
    url: WebAddress
    status: int = Field(200, ge=100, le=599)
    contains: Line | None = Field(None, description="What its answer must hold.")


class PromQL(Parameters):
    server: WebAddress
    query: Annotated[str, Field(min_length=1, max_length=2000)]


class Probe(Parameters):
    name: Name
    command: list[Line] | None = Field(None, min_length=1, max_length=100, description="Run on this host; no shell.")
    http: Http | None = None
    promql: PromQL | None = None
    when: list[Literal["before", "during", "after"]] = Field(["before", "after"], min_length=1, max_length=3)
    every: Duration = Field(Duration("5s"), description="Between two questions of during.")
    timeout: Duration = Duration("10s")

    @model_validator(mode="after")
    def _one_question(self) -> Probe:
        given = [kind for kind in ("command", "http", "promql") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"{' + '.join(given) or 'nothing'}: write exactly one of: command, http, promql")
        if self.every.ns < 10**9:
            raise ValueError(f"every: {self.every} is too often; at least 1s")
        if not 0 < self.timeout.s <= 300:
            raise ValueError(f"timeout: {self.timeout} is not allowed; more than 0s, at most 5m")
        return self


WhenDone = Literal["stop", "wait"]


class GameDay(Parameters):
    version: Literal[1]
    name: Name
    title: Line
    workload: Workload = Field(default_factory=Workload, description="The job that keeps running.")
    fault_free: bool = Field(True, description="Also run the job without a fault, to compare with; it is kept.")
    steady: Steady = Steady()
    entries: list[DayEntry] = Field(min_length=1, max_length=ENTRIES_MAX)
    limits: Limits = Limits()
    budget: Budget = Budget()
    probes: list[Probe] = Field([], max_length=50)
    when_done: WhenDone = Field(
        "stop",
        description="When the schedule is over and the job is steady again: stop ends the job, and the day with its "
        "verdict; wait lets the job go on to its own end.",
    )
    abort: Abort = Field(default_factory=lambda: Abort(if_no_step_for=Duration("10m"), wall_clock=Duration("24h")))
    price_per_gpu_hour: float | None = Field(None, ge=0)
    labels: Labels = Field({}, description="For reports, like project and team.", max_length=LABELS_MAX)


def load_gameday(path: pathlib.Path) -> tuple[GameDay, Document]:
    """Reads and checks the plan file of a game day. Raises `ScenarioError` with all mistakes in the file. The returned
    document maps each value to its line in the file, for error messages."""
    return parse_gameday(read_text(path), str(path))


def are_strikes(data: Any) -> bool:
    """Returns True if `data` is a plan of faults for a job that runs already (`chaos gameday --attach`)."""
    entries = data.get("entries") if isinstance(data, dict) else None
    return isinstance(entries, list) and any(isinstance(each, dict) and "strike" in each for each in entries)


def parse_gameday(text: str, source: str) -> tuple[GameDay, Document]:
    document = Document(text, source)
    if not isinstance(document.data, dict):
        raise ScenarioError([document.at((), "a game day is a mapping that starts with version: 1")])
    if are_strikes(document.data):
        why = "its entries are strikes on a job that runs already: chaos gameday --attach docker:KEY=VALUE PLAN"
        raise ScenarioError([document.at(("entries",), why)])
    day = document.valid(GameDay, document.data)
    trainer = day.workload.trainer.beside(pathlib.Path(source).parent.absolute())
    day = day.model_copy(update={"workload": day.workload.model_copy(update={"trainer": trainer})})
    for place, why in day.workload.trainer.problems(day.workload):
        document.problem(("workload", *place), why)
    check_secrets(document, day.workload)
    _check_names(day, document)
    document.raise_problems()
    return day, document


def _check_names(day: GameDay, document: Document) -> None:
    for place, entry in enumerate(day.entries):
        at: Path = ("entries", place)
        for number, each in enumerate(entry.rehearses):
            here = (*at, "parallel", number) if entry.parallel else at
            if "workload" in each.overrides:
                why = "the workload is that of the day: one job keeps running"
                document.problem((*here, "overrides", "workload"), why)
    seen: set[str] = set()
    for place, probe in enumerate(day.probes):
        if probe.name in seen:
            document.problem(("probes", place, "name"), f"{probe.name!r} is already the name of another probe")
        seen.add(probe.name)


def find_gameday(name: str, scenarios: pathlib.Path) -> pathlib.Path:
    return find_scenario(name, scenarios / FOLDER, "game day")
