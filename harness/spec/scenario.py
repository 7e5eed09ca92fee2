"""YAML → Scenario. Every mistake is reported at once, each with file:line:column and what is allowed."""

from __future__ import annotations

import difflib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from harness import units
from harness.emitter import Tell
from harness.errors import ScenarioError, UsageError
from harness.faults.contract import Duration, Fault, fault_names, load_fault
from harness.judge.score import OFF, load_score, score_names
from harness.spec.secrets import refuse_literals

Path = tuple[str | int, ...]
_Checked = TypeVar("_Checked", bound=BaseModel)
Mark = tuple[int, int]  # line and column, both from 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Checkpoint(_Model):
    every_steps: int = Field(20, ge=1, description="A checkpoint after every this many steps.")
    keep: int = Field(2, ge=1, description="How many checkpoints are kept.")
    store: Literal["directory", "s3"] = Field(
        "directory", description="directory: one that all nodes see; s3: an S3-compatible server beside the nodes."
    )


class CustomTrainer(_Model):
    """Anybody's trainer: its command on every node, and one beside the nodes (a rendezvous store, say)."""

    command: list[str] = Field(min_length=1)
    control: list[str] | None = None
    env: Annotated[dict[str, str], AfterValidator(refuse_literals)] = Field(
        {}, description='Environment of both; secrets by reference: HF_TOKEN: "${HF_TOKEN}".'
    )
    tells: list[Tell] | None = Field(
        None, description="What its events tell; the rest is not judged. Default: what the log turns out to hold."
    )
    digest: list[str] = Field(
        [], description="Files that decide what the trainer does, besides those its commands name."
    )


class Shards(_Model):
    """The source of Python's standard library, cut into files in the run's folder `data/`."""

    shards: int = Field(8, ge=1, le=1000)


class WorkloadSpec(_Model):
    trainer: Literal["reference"] | CustomTrainer = "reference"
    nodes: int = Field(2, ge=1, le=4096)
    min_nodes: int | None = Field(None, ge=1, description="The job goes on with this many; default: all of them.")
    ranks_per_node: int = Field(1, ge=1, le=64)
    steps: int = Field(200, ge=1)
    checkpoint: Checkpoint = Checkpoint()
    data: Shards | None = Field(None, description="Training data of the run's own, in files that faults may damage.")
    args: list[str] = Field([], description="Further arguments of the reference trainer.")

    @model_validator(mode="after")
    def _min_nodes_fit(self) -> WorkloadSpec:
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"min_nodes is {self.min_nodes}, more than the {self.nodes} nodes there are")
        return self


class Count(_Model):
    count: int = Field(ge=1)


class Percent(_Model):
    percent: Annotated[float, BeforeValidator(units.parse_percent), Field(gt=0, le=100)]


class NotRank(_Model):
    not_rank: int = Field(ge=0)


Selector = Literal["any", "all"] | Annotated[int, Field(ge=0)] | Count | Percent | NotRank


class TargetSpec(_Model):
    """Which nodes, or which ranks: exactly one of the two."""

    node: Selector | None = None
    rank: Selector | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TargetSpec:
        if (self.node is None) == (self.rank is None):
            raise ValueError(
                "write either node: or rank:, with any, all, a number, {count: 2}, {percent: 25} or {not_rank: 0}"
            )
        return self


class When(_Model):
    """One trigger. `phase` may be combined with `step` (not before it) and `following` (not before that acts)."""

    step: int | None = Field(None, ge=1, description="After every rank has completed this step.")
    after: Duration | None = Field(None, description="This long after the start, or after the followed event.")
    every: Duration | None = Field(None, description="Again and again, `times` times.")
    rate: Annotated[str | None, Field(description="At random with this mean rate, `times` times.")] = None
    times: int | None = Field(None, ge=1, le=1000)
    phase: str | None = Field(None, min_length=1, description="When a rank enters this phase or failpoint.")
    following: str | None = Field(None, description="The id of another fault.")
    event: Literal["injected", "effect", "recovered", "healed"] | None = None

    @model_validator(mode="after")
    def _one_trigger(self) -> When:
        given = [
            name for name in ("step", "after", "every", "rate", "phase", "following") if getattr(self, name) is not None
        ]
        if tuple(given) not in _TRIGGERS:
            allowed = " · ".join(" + ".join(names) for names in _TRIGGERS)
            raise ValueError(f"{' + '.join(given) or 'nothing'} is no trigger; allowed: {allowed}")
        if self.rate is not None:
            units.parse_per_hour(self.rate)
        if (self.every or self.rate) and self.times is None:
            raise ValueError("every: and rate: need times: so that the run has an end")
        if self.times is not None and not (self.every or self.rate):
            raise ValueError("times: belongs to every: or rate:")
        if self.event is not None and self.following is None:
            raise ValueError("event: belongs to following:")
        return self


_TRIGGERS = (
    ("step",),
    ("after",),
    ("every",),
    ("rate",),
    ("phase",),
    ("step", "phase"),
    ("phase", "following"),
    ("following",),
    ("after", "following"),
)


class FaultSpec(_Model):
    """One fault of a scenario; `parameters` are the keys that belong to the fault itself."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    fault: str
    when: When
    target: TargetSpec
    parameters: dict[str, Any] = {}

    def build(self) -> Fault:
        return load_fault(self.fault).model_validate(self.parameters)


class Abort(_Model):
    if_no_step_for: Duration = "60s"
    wall_clock: Duration = "10m"


class Limits(_Model):
    """How much may be broken at once. A fault that would exceed it waits until the job has recovered."""

    nodes_at_once: int | None = Field(None, ge=1, description="The blast radius: nodes with a fault at work.")
    cool_down: Duration = Field("0s", description="From one recovery to the next fault.")


class Scenario(_Model):
    version: Literal[1]
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    title: str = Field(min_length=1)
    tags: list[str] = []
    workload: WorkloadSpec = WorkloadSpec()
    faults: list[FaultSpec] = []
    expect: dict[str, dict[str, Any] | Literal["off"]] = Field(
        {}, description="Bounds by score; off: what is judged by default is not."
    )
    abort: Abort = Abort()
    limits: Limits = Limits()
    price_per_gpu_hour: float | None = Field(None, ge=0, description="US dollars; adds costs to the report.")
    repeat: int = Field(1, ge=1, le=1000)
    profiles: dict[str, Any] = {}


_PROFILE_KEYS = ("workload", "faults", "expect", "abort", "limits", "repeat", "title")
_SPEC_KEYS = ("id", "fault", "when", "target")


def load_scenario(
    path: pathlib.Path, profile: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Reads and checks a file. Raises `ScenarioError` with every mistake found, `UsageError` for an unknown profile."""
    return parse_scenario(_read(path), str(path), profile, overrides)


def load_document(path: pathlib.Path, model: type[_Checked]) -> _Checked:
    """Another YAML file of ours, checked with the same care as a scenario."""
    document = _Document(_read(path), str(path))
    document.check(model, document.data)
    document.raise_problems()
    result: _Checked = document.result
    return result


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: cannot be read: {reason}") from error


def parse_scenario(
    text: str, source: str, profile: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """`overrides` are laid over the scenario, and over its profile, as a further profile of their own."""
    document = _Document(text, source)
    data = document.data
    if not isinstance(data, dict):
        raise ScenarioError([document.at((), "a scenario is a mapping that starts with version: 1")])
    profiles = data.get("profiles", {})
    if profile is not None:
        if not isinstance(profiles, dict) or profile not in profiles:
            known = ", ".join(profiles) if isinstance(profiles, dict) and profiles else "none"
            raise UsageError(f"{source}: there is no profile {profile!r}; this scenario has: {known}")
        document.merge(("profiles", profile))
    if overrides:
        document.data = data | {"profiles": {**(data.get("profiles") or {}), "overrides": dict(overrides)}}
        document.merge(("profiles", "overrides"))
    document.split_fault_parameters()
    document.check(Scenario, document.data)
    scenario: Scenario = document.result
    _check_faults(document, scenario)
    _check_expectations(document, scenario)
    document.raise_problems()
    return scenario


def find_scenario(name: str, directory: pathlib.Path) -> pathlib.Path:
    """A path as given, or `<directory>/<name>.yaml`."""
    given = pathlib.Path(name)
    if given.suffix in (".yaml", ".yml") or given.exists():
        return given
    path = directory / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in directory.glob("*.yaml"))
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"there is: {', '.join(known) or 'none'}"
        raise UsageError(f"there is no scenario {name!r} in {directory}; {hint}")
    return path


def json_schema() -> dict[str, Any]:
    """The published schema of scenario files: the core plus every fault's and every score's own keys."""
    schema = Scenario.model_json_schema()
    spec = schema["$defs"].pop("FaultSpec")
    base = {key: spec["properties"][key] for key in ("id", "when", "target")}
    variants = []
    for name in fault_names():
        fault = load_fault(name).model_json_schema()
        schema["$defs"] |= fault.pop("$defs", {})
        properties = base | {"fault": {"const": name}} | fault.get("properties", {})
        required = ["id", "fault", "when", "target", *fault.get("required", [])]
        variants.append(
            {
                "title": name,
                "description": fault.get("description", ""),
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        )
    schema["properties"]["faults"]["items"] = {"oneOf": variants}
    bounds = {}
    for name in score_names():
        bounds[name] = load_score(name).Bounds.model_json_schema()
        schema["$defs"] |= bounds[name].pop("$defs", {})
        if load_score(name).by_default:
            bounds[name] = {"anyOf": [bounds[name], {"const": OFF}]}
    schema["properties"]["expect"] = {"type": "object", "properties": bounds, "additionalProperties": False}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _check_faults(document: _Document, scenario: Scenario) -> None:
    ids = [fault.id for fault in scenario.faults]
    for index, spec in enumerate(scenario.faults):
        at: Path = ("faults", index)
        if spec.id in ids[:index]:
            document.problem((*at, "id"), f"{spec.id!r} is already the id of another fault; ids are unique")
        if spec.when.following is not None and (spec.when.following not in ids or spec.when.following == spec.id):
            others = ", ".join(i for i in ids if i != spec.id) or "no other fault here"
            document.problem(
                (*at, "when", "following"), f"there is no other fault {spec.when.following!r}; there is {others}"
            )
        if spec.fault not in fault_names():
            document.problem((*at, "fault"), f"there is no fault {spec.fault!r}; {_suggest(spec.fault, fault_names())}")
            continue
        document.check(load_fault(spec.fault), spec.parameters, at)
        aims_at = load_fault(spec.fault).aims_at
        if getattr(spec.target, aims_at) is None:
            document.problem((*at, "target"), f"{spec.fault} acts on a {aims_at}: write target: {{{aims_at}: …}}")


def _check_expectations(document: _Document, scenario: Scenario) -> None:
    for name, bounds in scenario.expect.items():
        if name not in score_names():
            document.problem(("expect", name), f"there is no score {name!r}; {_suggest(name, score_names())}")
        elif bounds == OFF:
            if not load_score(name).by_default:
                document.problem(("expect", name), f"off is for what is judged by default: {', '.join(_by_default())}")
        else:
            document.check(load_score(name).Bounds, bounds, ("expect", name))


def _by_default() -> list[str]:
    return [name for name in score_names() if load_score(name).by_default]


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(known)}"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's booleans only, so that `on` and `no` stay words; duplicate keys are errors."""


_Loader.yaml_implicit_resolvers = {
    key: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))


class _Document:
    """A YAML file as plain data, with the place of every key, and the problems found so far."""

    def __init__(self, text: str, source: str):
        self.source = source
        self.problems: list[str] = []
        self.marks: dict[Path, Mark] = {}
        self.result: Any = None
        try:
            loader = _Loader(text)
            root = loader.get_single_node()
            self.data: Any = self._build(loader, root, ()) if root is not None else None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
            raise ScenarioError([f"{source}:{place}: not valid YAML: {error.problem}"]) from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise ScenarioError([f"{source}:1:1: not valid YAML: {str(error).splitlines()[0]}"]) from error
        self.raise_problems()

    def _build(self, loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> Any:
        self.marks.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            found: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                key = loader.construct_object(key_node)
                here = (*path, key if isinstance(key, (str, int)) else str(key))
                mark = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                if here[-1] in found:
                    self.problems.append(f"{self.source}:{mark[0]}:{mark[1]}: {key!r} stands here twice")
                self.marks[here] = mark
                found[here[-1]] = self._build(loader, value_node, here)
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._build(loader, item, (*path, index)) for index, item in enumerate(node.value)]
        return loader.construct_object(node)

    def at(self, path: Path, message: str) -> str:
        """`file:line:column: where: message`, at the nearest known ancestor of `path`."""
        known = path
        while known not in self.marks and known:
            known = known[:-1]
        line, column = self.marks.get(known, (1, 1))
        where = ".".join(str(part) for part in path)
        return f"{self.source}:{line}:{column}: {where + ': ' if where else ''}{message}"

    def problem(self, path: Path, message: str) -> None:
        self.problems.append(self.at(path, message))

    def raise_problems(self) -> None:
        if self.problems:
            raise ScenarioError(list(dict.fromkeys(self.problems)))

    def merge(self, path: Path) -> None:
        """Lays the profile at `path` over the document; `faults` of a profile are keyed by fault id."""
        overlay: Any = self.data
        for part in path:
            overlay = overlay[part]
        if not isinstance(overlay, dict):
            raise ScenarioError([self.at(path, "a profile is a mapping like {workload: {nodes: 8}}")])
        for key, value in overlay.items():
            if key not in _PROFILE_KEYS:
                self.problem((*path, key), f"a profile may hold {', '.join(_PROFILE_KEYS)}")
            elif key == "faults":
                self._merge_faults(value, (*path, key))
            else:
                self.data[key] = self._lay(self.data.get(key), value, (*path, key), (key,))
        self.raise_problems()

    def _merge_faults(self, overlay: Any, path: Path) -> None:
        faults = self.data.get("faults") or []
        places = {fault.get("id"): index for index, fault in enumerate(faults) if isinstance(fault, dict)}
        if not isinstance(overlay, dict):
            self.problem(path, "faults of a profile are keyed by fault id, like {evict: {notice: 120s}}")
            return
        for fault_id, value in overlay.items():
            if fault_id not in places:
                self.problem(
                    (*path, fault_id), f"there is no fault {fault_id!r}; there is {', '.join(map(str, places))}"
                )
                continue
            index = places[fault_id]
            faults[index] = self._lay(faults[index], value, (*path, fault_id), ("faults", index))

    def _lay(self, base: Any, over: Any, source: Path, target: Path) -> Any:
        if isinstance(base, dict) and isinstance(over, dict) and target[-1] not in ("when", "target"):
            return base | {
                key: self._lay(base.get(key), value, (*source, key), (*target, key)) for key, value in over.items()
            }
        moved = {
            (*target, *path[len(source) :]): mark for path, mark in self.marks.items() if path[: len(source)] == source
        }
        self.marks |= moved
        return over

    def split_fault_parameters(self) -> None:
        """Moves a fault's own keys into `parameters`, where the model has them."""
        if not isinstance(self.data, dict) or not isinstance(self.data.get("faults"), list):
            return
        split = []
        for fault in self.data["faults"]:
            if isinstance(fault, dict):
                own = {key: value for key, value in fault.items() if key not in _SPEC_KEYS}
                fault = {key: fault[key] for key in _SPEC_KEYS if key in fault} | {"parameters": own}
            split.append(fault)
        self.data = self.data | {"faults": split}

    def check(self, model: type[BaseModel], data: Any, at: Path = ()) -> None:
        """Validates; structural mistakes of the scenario itself end the check, as nothing further can be said."""
        try:
            self.result = model.model_validate(data)
        except ValidationError as error:
            for problem in _unique(error):
                path = (*at, *_document_path(problem["loc"]))
                self.problem(path, _message(problem, model, path))
            if not at:
                self.raise_problems()


def _unique(error: ValidationError) -> list[Mapping[str, Any]]:
    """One problem per place: of a union's alternatives the one that got furthest is what the writer meant."""
    best: dict[Path, Mapping[str, Any]] = {}
    for problem in error.errors(include_url=False):
        best.setdefault(_document_path(problem["loc"]), problem)
    deepest = [path for path in best if not any(other != path and other[: len(path)] == path for other in best)]
    return [best[path] for path in deepest]


_UNION_TAGS = re.compile(
    r"literal\[|constrained|function-|^(int|Count|Percent|NotRank|CustomTrainer|str|float|dict)$|\[.*\]|\(.*\)"
)


def _document_path(loc: Sequence[str | int]) -> Path:
    """pydantic's location without the names of union members, which are not in the document."""
    return tuple(part for part in loc if isinstance(part, int) or not _UNION_TAGS.search(part))


def _message(problem: Mapping[str, Any], model: type[BaseModel], path: Path) -> str:
    kind = problem["type"]
    if kind == "extra_forbidden":
        return f"unknown key{_near_key(model, path)}"
    if kind == "missing":
        return "is missing"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    value = problem["input"]
    if kind == "value_error" and repr(value) in message:
        return str(message)
    shown = repr(value) if not isinstance(value, (dict, list, BaseModel)) else type(value).__name__
    if kind == "value_error":
        return str(message)
    return (
        f"{shown} is not allowed: it should be {message}"
        if problem["msg"].startswith("Input")
        else f"{shown}: {message}"
    )


def _near_key(model: type[BaseModel], path: Path) -> str:
    known = _keys_at(model, path)
    close = difflib.get_close_matches(str(path[-1]), known, 1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; allowed: {', '.join(known)}" if known else ""


def _keys_at(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that may stand where the unknown one stands."""
    if path[:1] == ("faults",) and len(path) == 3 and model is not Scenario:
        return [*_SPEC_KEYS, *model.model_fields]
    nested: dict[Path, type[BaseModel]] = {
        ("workload",): WorkloadSpec,
        ("workload", "checkpoint"): Checkpoint,
        ("abort",): Abort,
        ("limits",): Limits,
        (): Scenario,
    }
    parent = path[:-1]
    if parent[:1] == ("faults",) and parent[2:] in (("when",), ("target",)):
        return list((When if parent[2] == "when" else TargetSpec).model_fields)
    found = nested.get(parent) if model is Scenario else model
    return list(found.model_fields) if found else []
