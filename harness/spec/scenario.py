"""Reads a scenario from YAML, and builds its faults. All mistakes are reported together, with their places."""

import hashlib
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    PlainValidator,
    PrivateAttr,
    Tag,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from harness import units
from harness.errors import ScenarioError, UsageError, choice
from harness.faults.contract import NamedFault, fault_names, load_fault
from harness.node.emitter import AXES, Axis
from harness.parameters import Parameters, Percentage
from harness.spec.document import Document, Path, keys_at, read_text, short
from harness.spec.expected_scores import ScoreBounds, check_expectations
from harness.spec.profile import lay_profile
from harness.spec.replay import Replay, ReplaySpec
from harness.spec.secrets import refuse_literals
from harness.trainers.contract import Workload
from harness.units import Duration

FAULTS_MAX = 20_000
TITLE_MAX = 200  # characters
REPEAT_MAX = 1000


def _on_one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: only printable characters, on one line")
    return text


Line = Annotated[str, Field(min_length=1, max_length=TITLE_MAX), AfterValidator(_on_one_line)]
LABELS_MAX = 20
Labels = dict[Annotated[str, Field(pattern=r"^[a-zA-Z][a-zA-Z0-9._-]{0,62}$")], Line]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


def _as_read(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Checks a value, but returns it as written, so that mistakes are reported at their places in the file."""
    check(given)
    return given


Overrides = Annotated[dict[str, Any], WrapValidator(_as_read)]  # of a scenario, in a suite or a game day


class Count(Parameters):
    count: int = Field(ge=1)


class Percent(Parameters):
    percent: Annotated[Percentage, Field(gt=0, le=100)]


class NotRank(Parameters):
    not_rank: int = Field(ge=0)


_Place = Annotated[int, Field(ge=0)]
Coordinate = Literal["last", "any"] | _Place
_Places = Annotated[tuple[_Place, ...], Field(min_length=1)]
_SELECTORS = "any, all, a number, a list of numbers, {count: 2}, {percent: 25} or {not_rank: 0}"


def _form(given: object) -> str | None:
    if isinstance(given, Mapping):
        return {("count",): "Count", ("percent",): "Percent", ("not_rank",): "NotRank"}.get(tuple(given))
    if isinstance(given, Parameters):
        return type(given).__name__
    forms = (str, "[word]"), (int, "[number]"), (Sequence, "[list]")
    return next((name for kind, name in forms if isinstance(given, kind)), None)


Selector = Annotated[
    Annotated[Literal["any", "all"], Tag("[word]")]
    | Annotated[_Place, Tag("[number]")]
    | Annotated[_Places, Tag("[list]")]
    | Annotated[Count, Tag("Count")]
    | Annotated[Percent, Tag("Percent")]
    | Annotated[NotRank, Tag("NotRank")],
    Discriminator(_form, custom_error_type="form", custom_error_message=f"write {_SELECTORS}"),
]


class TargetSpec(Parameters):
    """A fault's target in a scenario: exactly one of nodes, ranks, a failure domain, or coordinates in the mesh."""

    node: Selector | None = None
    rank: Selector | None = None
    domain: str | None = Field(
        None, description="All nodes with this label of workload: node_labels, or of the engine; any: of one label."
    )
    pp: Coordinate | None = Field(None, description="The pipeline stage.")
    dp: Coordinate | None = Field(None, description="The replica.")
    fsdp: Coordinate | None = Field(None, description="The place among ranks that shard the same weights.")
    cp: Coordinate | None = Field(None, description="The place among ranks that split sequences.")
    tp: Coordinate | None = Field(None, description="The place among ranks that split tensors.")
    ep: Coordinate | None = Field(None, description="The place among ranks that split experts.")

    @property
    def coordinates(self) -> dict[Axis, int | str]:
        given = {axis: getattr(self, axis) for axis in AXES}
        return {axis: index for axis, index in given.items() if index is not None}

    @model_validator(mode="before")
    @classmethod
    def _a_mapping(cls, given: object) -> object:
        if not isinstance(given, (Mapping, TargetSpec)):
            raise ValueError("write {node: any} or {rank: any}")
        return given

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        single = (self.node, self.rank, self.domain, self.coordinates or None)
        if sum(each is not None for each in single) != 1:
            where = "a label of workload: node_labels, such as {domain: rack0}; or coordinates in the workload's mesh, "
            raise ValueError(f"write either node: or rank:, with {_SELECTORS}; or {where}such as {{pp: last, tp: 0}}")
        return self


def _rate(given: object) -> object:
    if given is not None:
        units.parse_per_hour(given)
    return given


class When(ReplaySpec):
    """The moments at which a fault acts. If `phase` and `step` (or `following`) are set, the fault waits for both."""

    step: int | None = Field(None, ge=1, description="After every rank has completed this step.")
    after: Duration | None = Field(None, description="This long after the start, or after the followed event.")
    every: Duration | None = Field(None, description="Again and again, `times` times.")
    rate: Annotated[str | None, BeforeValidator(_rate), Field(description="At this mean rate, `times` times.")] = None
    times: int | None = Field(None, ge=1, le=1000)
    phase: Line | None = Field(None, description="When a rank enters this phase or failpoint.")
    following: str | None = Field(None, description="The id of another fault.")
    event: Literal["injected", "effect", "recovered", "healed"] | None = None
    only: Line | None = Field(None, description="Of the trace, the events of this name.")
    _replay: Replay | None = PrivateAttr(None)

    @property
    def replay(self) -> Replay | None:
        return self._replay

    def beside(self, folder: pathlib.Path) -> Self:
        """Returns the trigger with its trace loaded from `folder`. Raises `UsageError` if the loading fails."""
        if self.trace is None:
            return self
        found = self.model_copy()
        found._replay = self.found(folder, events=None if self.only is None else {self.only})
        return found

    @model_validator(mode="before")
    @classmethod
    def _a_mapping(cls, given: object) -> object:
        if not isinstance(given, (Mapping, When)):
            raise ValueError("write {step: 90}, {after: 30s}, or another trigger with its key")
        return given

    @model_validator(mode="after")
    def _one_trigger(self) -> Self:
        triggers = ("step", "after", "every", "rate", "trace", "phase", "following")
        given = [name for name in triggers if getattr(self, name) is not None]
        if tuple(given) not in _TRIGGERS:
            allowed = " · ".join(" + ".join(names) for names in _TRIGGERS)
            raise ValueError(f"{' + '.join(given) or 'nothing'} is not a trigger; allowed: {allowed}")
        if (self.every or self.rate) and self.times is None:
            raise ValueError("every: and rate: need times: so that the run has an end")
        if self.times is not None and not (self.every or self.rate):
            raise ValueError("times: belongs to every: or rate:")
        if self.event is not None and self.following is None:
            raise ValueError("event: belongs to following:")
        if self.only is not None and self.trace is None:
            raise ValueError("only: belongs to trace:")
        return self


_ALLOWED = "step after every rate trace phase step+phase phase+following following after+following"
_TRIGGERS = [tuple(each.split("+")) for each in _ALLOWED.split()]


class FaultSpec(NamedFault):
    """A fault as written in a scenario. In YAML, the fault's parameters stand beside `id`, `when` and `target`."""

    id: Name
    when: When
    target: TargetSpec
    _places: Mapping[str, str] = PrivateAttr({})

    def place(self, key: str) -> str:
        return self._places.get(key, "")

    def aimed(self, nodes: Sequence[int], workload: Workload) -> Self:
        if self.action.aims_at == "node":
            target = TargetSpec(node=tuple(nodes))
        else:
            target = TargetSpec(rank=tuple(node * workload.ranks_per_node for node in nodes))
        return self.model_copy(update={"target": target})


class Abort(Parameters):
    if_not_started_for: Duration = Field(Duration("10m"), description="Until the first step of the job.")
    if_no_step_for: Duration | None = Field(
        None,
        description="From the first step on, restarts included; default: 60s, or three times what the first start of "
        "this run took if that is more.",
    )
    wall_clock: Duration = Duration("10m")


def _number_or_percent(given: object) -> object:
    if isinstance(given, str) and given.endswith("%") and units.parse_percent(given) > 0:
        return given
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return given
    raise ValueError(f"{short(repr(given))} is neither a number of nodes from 1 on nor a percentage such as 10%")


Nodes = Annotated[
    int | str,
    PlainValidator(_number_or_percent),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}]}),
]


class Limits(Parameters):
    """Limits on faults that act at the same time. A fault that would exceed a limit waits until the job has
    recovered."""

    nodes_at_once: Nodes | None = Field(None, description="The blast radius: nodes with a fault, or a percentage.")
    cool_down: Duration = Field(Duration("0s"), description="From one recovery to the next fault.")
    gpu_hours: float | None = Field(None, gt=0, description="GPU time of one job; the job is stopped there.")

    def allowed_nodes(self, nodes: int) -> int | None:
        """Returns how many of `nodes` nodes may have a fault at the same time: rounded down, but at least one."""
        if isinstance(self.nodes_at_once, str):
            return max(1, int(nodes * units.parse_percent(self.nodes_at_once) / 100))
        return self.nodes_at_once


class Header(Parameters):
    """The part of a scenario that is shown in lists of scenarios."""

    version: Literal[1]
    name: Name
    title: Line
    tags: list[Line] = Field([], max_length=100)
    labels: Labels = Field({}, description="For reports, like project and team.", max_length=LABELS_MAX)


class Scenario(Header):
    """A job, its faults, and what is expected of the job."""

    workload: Workload = Field(default_factory=Workload)
    faults: list[FaultSpec] = Field([], max_length=FAULTS_MAX)
    expect: dict[str, dict[str, JsonValue] | Literal["off"]] = Field(
        {}, description="Bounds by score; off: not judged."
    )
    abort: Abort = Abort()
    limits: Limits = Limits()
    price_per_gpu_hour: float | None = Field(None, ge=0, description="US dollars; adds costs to the report.")
    repeat: int = Field(1, ge=1, le=REPEAT_MAX)
    profiles: dict[str, Any] = Field(default_factory=dict)
    _file_digest: str | None = PrivateAttr(None)

    @property
    def file_digest(self) -> str | None:
        return self._file_digest


_OF_A_FAULT = ("id", "fault", "when", "target")


def load_header(path: pathlib.Path) -> Header:
    """Reads only the header of a scenario file. Raises `ScenarioError` if a field of the header is invalid."""
    document = _document(read_text(path), str(path))
    return document.valid(Header, {key: document.data[key] for key in Header.model_fields if key in document.data})


def load_scenario(
    path: pathlib.Path,
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    scores: ScoreBounds | None = None,
) -> Scenario:
    """Reads a scenario file. Raises `ScenarioError` with all mistakes, and `UsageError` for an unknown profile."""
    return parse_scenario(read_text(path), str(path), profile, overrides, scores)


def parse_scenario(
    text: str,
    source: str,
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    scores: ScoreBounds | None = None,
) -> Scenario:
    """Reads a scenario from a text. `overrides` is a second profile, applied last. Without `scores`, the values under
    `expect` are not checked here; the judge reports invalid values later."""
    document = _document(text, source)
    if profile is not None:
        written = document.data.get("profiles")
        profiles = written if isinstance(written, dict) else {}
        if profile not in profiles:
            raise UsageError(f"{document.source}: unknown profile {profile!r}; {choice(profile, profiles)}")
        lay_profile(document, profiles[profile], ("profiles", profile))
    if overrides:
        lay_profile(document, overrides, ("overrides",))
    document.raise_problems()
    scenario = scenario_of(document, pathlib.Path(source).parent.absolute(), scores)
    scenario._file_digest = hashlib.sha256(text.encode()).hexdigest()
    return scenario


def scenario_of(document: Document, folder: pathlib.Path, scores: ScoreBounds | None = None) -> Scenario:
    """Checks a YAML file's data as a scenario, with paths relative to `folder`. Raises `ScenarioError` for mistakes."""
    if scores is not None:
        check_expectations(document, document.data.get("expect"), scores)
    scenario = document.valid(Scenario, _with_parameters(document.data), keys=lambda path: _keys_at(document, path))
    scenario = _with_its_files(scenario, document, folder)
    for place, why in scenario.workload.trainer.problems(scenario.workload):
        document.problem(("workload", *place), why)
    check_secrets(document, scenario.workload)
    _check_faults(document, scenario.faults, scenario.workload.trainer.phases)
    document.raise_problems()
    return scenario


def _document(text: str, source: str) -> Document:
    document = Document(text, source)
    if not isinstance(document.data, dict):
        raise ScenarioError([document.at((), "a scenario is a mapping that starts with version: 1")])
    for kind, (key, command) in OTHERS.items():
        if key in document.data and "faults" not in document.data:
            raise ScenarioError([document.at((key,), _no_scenario(kind, "here", f"{command} {source}"))])
    return document


# What else lies beside scenarios, by its folder: the key under which such a file names them, and what runs it.
OTHERS = {"suites": ("scenarios", "chaos gate"), "gamedays": ("entries", "chaos gameday")}


def has_key(path: pathlib.Path, key: str) -> bool:
    """Returns True if a YAML file, even an invalid one, has this key at its top level."""
    return re.search(rf"^{key}\s*:", read_text(path), re.MULTILINE) is not None


def _no_scenario(kind: str, where: str, command: str) -> str:
    return f"no scenario, but one of the {kind}: name one of the scenarios that stand {where}; {command} runs them all"


def find_scenario(name: str, directory: pathlib.Path, what: str = "scenario") -> pathlib.Path:
    """Returns `name` if it is a path, else `<name>.yaml` in `directory`. `what` names the kind of file in errors."""
    given = pathlib.Path(name)
    is_path = given.suffix in (".yaml", ".yml") or os.sep in name or (os.path.lexists(given) and not given.is_dir())
    return given if is_path else _named(name, directory, what)


def _named(name: str, directory: pathlib.Path, what: str = "scenario") -> pathlib.Path:
    path = directory / f"{name}.yaml"
    if not os.path.lexists(path):
        for kind, (key, command) in OTHERS.items():
            if os.path.lexists(other := directory / kind / f"{name}.yaml"):
                if not has_key(other, key):
                    return other
                raise UsageError(f"{short(name)!r} is {_no_scenario(kind, f'in {other}', f'{command} {name}')}")
        known = sorted(file.stem for file in directory.glob("*.yaml"))
        raise UsageError(f"unknown {what} {short(name)!r} in {directory}; {choice(name, known)}")
    return path


def find_beside(name: str, folder: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    given = pathlib.Path(name)
    return folder / given if given.suffix in (".yaml", ".yml") else _named(name, directory)


def _with_parameters(data: Mapping[Any, Any]) -> dict[Any, Any]:
    faults = data.get("faults")
    if not isinstance(faults, list):
        return dict(data)
    found = []
    for fault in faults:
        if isinstance(fault, dict):
            own = {key: value for key, value in fault.items() if key not in _OF_A_FAULT}
            fault = {key: value for key, value in fault.items() if key in _OF_A_FAULT} | {"parameters": own}
        found.append(fault)
    return {**data, "faults": found}


def _keys_at(document: Document, path: Path) -> Sequence[str]:
    if path[:1] != ("faults",) or len(path) < 2:
        return keys_at(Scenario, path)
    if path[2:3] in (("when",), ("target",)):
        return keys_at(FaultSpec, path[2:])
    kind = document.data["faults"][path[1]].get("fault")
    own = keys_at(load_fault(kind), path[2:]) if kind in fault_names() else []
    return own if len(path) > 2 else [*_OF_A_FAULT, *own]


def _with_its_files(scenario: Scenario, document: Document, folder: pathlib.Path) -> Scenario:
    trainer = scenario.workload.trainer.beside(folder)
    workload = scenario.workload.model_copy(update={"trainer": trainer})
    faults = list(scenario.faults)
    for index, fault in enumerate(faults):
        try:
            faults[index] = fault.model_copy(update={"action": fault.action.beside(folder)})
        except ValueError as error:
            document.problem(("faults", index, "file"), str(error))
        try:
            faults[index] = faults[index].model_copy(update={"when": fault.when.beside(folder)})
        except UsageError as error:
            for line in str(error).splitlines():
                document.problem(("faults", index, "when", "trace"), line)
    return scenario.model_copy(update={"workload": workload, "faults": faults})


def check_secrets(document: Document, workload: Workload) -> None:
    for place, name, value in workload.environment():
        try:
            refuse_literals({name: value})
        except ValueError as error:
            document.problem(("workload", *place), str(error))


def _circle(begin: str, followed: Mapping[str, str | None]) -> list[str]:
    chain = [begin]
    while len(chain) <= len(followed) and (other := followed.get(chain[-1])) is not None:
        chain.append(other)
        if other == begin:
            return chain[1:]
    return []


def _check_faults(document: Document, faults: Sequence[FaultSpec], phases: Sequence[str]) -> None:
    ids = {fault.id for fault in faults}
    followed_by = {fault.id: fault.when.following for fault in faults}
    seen: set[str] = set()
    for index, fault in enumerate(faults):
        at: Path = ("faults", index)
        if fault.id in seen:
            document.problem((*at, "id"), f"{fault.id!r} is already the id of another fault; ids are unique")
        seen.add(fault.id)
        fault._places = {key: document.at((*at, key), "") for key in ("target", "when")}
        if phases and fault.when.phase is not None and fault.when.phase not in phases:
            unknown = f"unknown phase {fault.when.phase!r}; {choice(fault.when.phase, phases)}"
            document.problem((*at, "when", "phase"), unknown)
        followed = fault.when.following
        if followed is not None and (followed not in ids or followed == fault.id):
            others = [each.id for each in faults[:20] if each is not fault]
            unknown = f"unknown other fault {followed!r}; {choice(followed, others)}"
            document.problem((*at, "when", "following"), unknown)
        elif circle := _circle(fault.id, followed_by):
            waits = f"{fault.id!r} would never act: it follows {', which follows '.join(map(repr, circle))}"
            document.problem((*at, "when", "following"), waits)
        if fault.when.trace is not None and "any" not in (fault.target.node, fault.target.rank):
            document.problem((*at, "target"), "the trace says how many, and the seed which ones: write any")
        aims_at = fault.action.aims_at
        if getattr(fault.target, aims_at) is None and not (fault.target.coordinates or fault.target.domain):
            document.problem((*at, "target"), f"{fault.kind} acts on a {aims_at}: write target: {{{aims_at}: …}}")
