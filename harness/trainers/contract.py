"""Defines what each kind of trainer must provide, and the workload that a trainer runs.

Each kind of trainer has one file in `harness/trainers/`, which defines `TRAINER`, a subclass of `Trainer`. The file's
name is the trainer's name in YAML. In YAML, a trainer is written as its name (`trainer: reference`) or, with
parameters, as a mapping (`trainer: {command: [python, train.py]}`).
"""

from __future__ import annotations

import abc
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from harness.backends.contract import Launch
from harness.errors import UsageError
from harness.log import untrusted_files
from harness.mesh import Mesh
from harness.node.emitter import Axis, Tell
from harness.parameters import Parameters
from harness.plugins import Family
from harness.trainers.checkpoints.contract import AUTO, check_layout
from harness.trainers.readers.contract import Reader
from harness.trainers.shared.field_forms import Written
from harness.trainers.shared.stores import DIRECTORY, check_store
from harness.units import Duration

Path = tuple[str | int, ...]
NODES_MAX = 4096
RANKS_PER_NODE_MAX = 64
STEPS_MAX = 1_000_000_000


def _no_nul(word: str) -> str:
    if "\0" in word:
        raise ValueError(f"{word[:80]!r}: a word of a command cannot hold a NUL character")
    return word


Word = Annotated[str, AfterValidator(_no_nul)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
WORDS_MAX = 10_000  # of one command


class Trainer(Parameters, abc.ABC):
    """The base class of all kinds of trainers. The fields of a subclass are the trainer's parameters in YAML."""

    steps: ClassVar[int | None] = None  # of a workload that does not say how many; `None`: the fault-free run's count
    phases: ClassVar[tuple[str, ...]] = ()  # phases and failpoints that its workers tell; empty: they are not known

    @abc.abstractmethod
    def launch(self, workload: Workload, run_id: str, seed: int) -> Launch:
        """Returns the commands that run the workload. The backend fills in the values that differ between nodes."""

    def beside(self, folder: pathlib.Path) -> Trainer:
        """Returns the trainer with the paths of its files resolved against `folder`, the scenario's folder."""
        return self

    def also_with(self, workload: Workload, words: Sequence[str]) -> Workload:
        """Returns the workload with the arguments `words` added to the trainer's command. Raises `UsageError` if the
        trainer takes no arguments."""
        if words:
            raise UsageError(f"{self.in_words()} takes no further words")
        return workload

    def problems(self, workload: Workload) -> Iterator[tuple[Path, str]]:
        """Yields (path below `workload`, reason) for each part of the scenario that this trainer does not support."""
        return iter(())

    @abc.abstractmethod
    def files(self) -> list[pathlib.Path]:
        """Returns the local files that decide how the trainer runs. Raises `UsageError` if a file is missing."""

    def environment(self) -> Mapping[str, str]:
        """Returns the environment variables that a scenario sets, with references to secrets, such as `${HF_TOKEN}`."""
        return {}

    def declares(self) -> frozenset[Tell] | None:
        """Returns the kinds of evidence, such as losses, that the trainer's events hold, or `None` if unknown."""
        return None

    @property
    def teller(self) -> str:
        """Returns a text that names who logs the trainer's progress: the trainer itself, or a reader of its output."""
        return "its trainer"

    def paced_by(self, checkpoint: Checkpoint) -> bool:
        """Returns True if the trainer saves at the interval of the workload's `checkpoint`."""
        return True

    def reader(self) -> Reader | None:
        """Returns the reader of the trainer's output files, or `None` for a trainer that logs events itself."""
        return None

    def in_words(self) -> str:
        return f"the {self.name} trainer"

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def to_json(self) -> str | dict[str, Any]:
        return self.model_dump(mode="json") or self.name


_FAMILY = Family("trainer", "harness.trainers", "TRAINER")
trainer_names = _FAMILY.names
load_trainer: Callable[[str], type[Trainer]] = _FAMILY.load


def build_trainer(written: object) -> Trainer:
    """Builds a scenario's trainer. Raises `ValueError` for an unknown trainer or wrong fields."""
    if isinstance(written, Trainer):
        return written
    own = written if isinstance(written, Mapping) else {}
    name = next((name for name in trainer_names() if name == written or name in own), None)
    if name is None:
        known = {name: load_trainer(name).model_fields for name in trainer_names()}
        allowed = ", ".join(f"{{{name}: …}}" if name in fields else name for name, fields in known.items())
        hint = f"write {{torchrun: {written}}}, or " if isinstance(written, str) and written.endswith(".py") else ""
        raise ValueError(f"unknown trainer; {hint}choose one of: {allowed}")
    return load_trainer(name).model_validate(dict(own))


def _schema() -> dict[str, Any]:
    kinds = {name: load_trainer(name) for name in trainer_names()}
    forms = [kind.model_json_schema() if name in kind.model_fields else {"const": name} for name, kind in kinds.items()]
    return {"anyOf": forms, "default": "reference"}


AnyTrainer = Annotated[Trainer, Written(build_trainer, Trainer.to_json, _schema)]


class Checkpoint(Parameters):
    """Where and how often a job saves. `path` is relative to the run's folder, or begins with a placeholder."""

    every_steps: int = Field(20, ge=1, le=STEPS_MAX, description="A checkpoint after every this many steps.")
    every: Duration | None = Field(
        None, description="A checkpoint after this much time since the last one, instead of every_steps."
    )
    keep: int = Field(2, ge=1, le=STEPS_MAX, description="How many checkpoints are kept.")
    store: Annotated[str, AfterValidator(check_store)] = Field(
        DIRECTORY, description="directory: one that all nodes see; s3: an S3-compatible server beside the nodes."
    )
    path: str = Field("{checkpoints}", max_length=200, description="The folder in which the trainer saves.")
    layout: str = Field(AUTO, description="How checkpoints look there; auto recognises them.")

    @field_validator("path")
    @classmethod
    def _below_the_run(cls, given: str) -> str:
        untrusted_files.below(_without_placeholder(given))
        return given

    @field_validator("layout")
    @classmethod
    def _known(cls, given: str) -> str:
        return check_layout(given)

    @model_validator(mode="after")
    def _steps_or_time(self) -> Checkpoint:
        if self.every is not None and self.every.ns <= 0:
            raise ValueError(f"every: {self.every} must be greater than 0")
        if self.every is not None and "every_steps" in self.model_fields_set:
            raise ValueError("every_steps and every exclude each other: a checkpoint by steps, or by time")
        return self

    @property
    def folder(self) -> str:
        return _without_placeholder(self.path)

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits `path`, `layout` and `every` from the JSON if they have default values, as older versions did."""
        unsaid = {("path", "{checkpoints}"), ("layout", AUTO), ("every", None)}
        data: dict[str, Any] = dump(self)
        if self.every is not None:
            del data["every_steps"]
        return {name: value for name, value in data.items() if (name, value) not in unsaid}


def _without_placeholder(path: str) -> str:
    return path.replace("{checkpoints}", "checkpoints", 1).removeprefix("{run_dir}/")


def _places(given: object) -> object:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f'{given!r} is no list of nodes; write [0, 1] or ["0-17"]')
    found: list[object] = []
    for each in given:
        first, dash, last = str(each).partition("-")
        if isinstance(each, str) and dash and first.isdecimal() and last.isdecimal():
            if not int(first) <= int(last) < NODES_MAX:
                raise ValueError(f"{each!r}: a range goes up, and ends below {NODES_MAX}")
            found += range(int(first), int(last) + 1)
        else:
            found.append(each)
    return found


Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
NodePlaces = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(min_length=1),
    BeforeValidator(_places),
    AfterValidator(lambda given: tuple(sorted(set(given)))),
]


class Shards(Parameters):
    """The training data: the source of Python's standard library, cut into files in the run's folder `data/`."""

    shards: int = Field(8, ge=1, le=1000)


class Workload(Parameters):
    """The job: its trainer, size and steps."""

    trainer: AnyTrainer = Field(default_factory=lambda: load_trainer("reference")())
    nodes: int = Field(2, ge=1, le=NODES_MAX)
    max_nodes: int = Field(
        None,
        validate_default=True,
        ge=1,
        description="The job uses this many at most, the others are spares; default: all.",
    )
    min_nodes: int = Field(
        None, validate_default=True, ge=1, description="The job goes on with this many; default: all of them."
    )
    ranks_per_node: int = Field(1, ge=1, le=RANKS_PER_NODE_MAX)
    mesh: dict[Axis, Annotated[int, Field(ge=1)]] = Field(
        {},
        validate_default=True,
        description="Ranks along each axis, outermost first, as the trainer lays them out: {pp: 2, dp: 2, tp: 2}. Then "
        "a target may be a coordinate.",
    )
    node_labels: dict[Label, NodePlaces] = Field(
        {},
        validate_default=True,
        description="Nodes of each rack, switch or NVLink domain: {rack0: [0, 1], rack1: [2-17]}. Then a target may be "
        "such a domain.",
    )
    node_labels_from: str = Field(
        "",
        validate_default=True,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._/:-]{0,252})?$",
        description="Or the key of the label by which the engine tells it when the job has its nodes: on Kubernetes "
        "topology.kubernetes.io/zone, nvidia.com/gpu.clique or another label of nodes; on Slurm switch, switch:1 (the "
        "level, from the leaves) or block.",
    )
    steps: int | None = Field(
        None,
        validate_default=True,
        ge=1,
        le=STEPS_MAX,
        description="Steps of the whole job; default: 200 for the reference trainer, for any other as many as the "
        "fault-free run does.",
    )
    checkpoint: Checkpoint = Checkpoint()
    data: Shards | None = Field(None, description="Training data of the run's own, in files that faults may damage.")
    args: list[Word] = Field([], max_length=WORDS_MAX, description="Further arguments of the reference trainer.")
    env: dict[Variable, Word] = Field(
        {}, description="Environment of the reference trainer, such as NCCL_*; secrets by reference: ${TOKEN}."
    )
    restore_drill: bool | None = Field(
        None,
        description="After a completed run with faults the command starts again on copies of the checkpoints, from the "
        "last one and from the one before; default: where the harness sees the checkpoints.",
    )

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits optional fields with default values, such as `env`, from the JSON, as older versions of the harness
        did. Omits the interval between saves if the trainer ignores it."""
        data: dict[str, Any] = dump(self)
        if not self.trainer.paced_by(self.checkpoint):
            data["checkpoint"].pop("every_steps", None)
        unsaid: list[tuple[str, object]] = [
            ("restore_drill", None),
            ("env", {}),
            ("mesh", {}),
            ("node_labels", {}),
            ("node_labels_from", ""),
            ("max_nodes", self.nodes),
        ]
        return {name: value for name, value in data.items() if (name, value) not in unsaid}

    @field_validator("steps", mode="before")
    @classmethod
    def _default_is_the_trainers(cls, given: object, info: ValidationInfo) -> object:
        trainer = info.data.get("trainer")
        return trainer.steps if given is None and trainer is not None else given

    @field_validator("max_nodes", "min_nodes", mode="before")
    @classmethod
    def _default_is_all(cls, given: object, info: ValidationInfo) -> object:
        return info.data.get("max_nodes", info.data.get("nodes", 1)) if given is None else given

    @field_validator("max_nodes", "min_nodes")
    @classmethod
    def _not_above_all(cls, given: int, info: ValidationInfo) -> int:
        nodes, most = info.data.get("nodes", given), info.data.get("max_nodes", given)
        if given > nodes:
            raise ValueError(f"{info.field_name} is {given}, more than the {nodes} nodes there are")
        if given > most:
            raise ValueError(f"min_nodes is {given}, more than max_nodes, {most}")
        return given

    @field_validator("mesh")
    @classmethod
    def _as_large_as_the_job(cls, given: dict[Axis, int], info: ValidationInfo) -> dict[Axis, int]:
        spares = info.data.get("max_nodes") != info.data.get("nodes")
        ranks = info.data.get("max_nodes", 1) * info.data.get("ranks_per_node", 1)
        size = Mesh(given).world_size
        if given and size != ranks:
            raise ValueError(f"the mesh has {size} ranks; {'max_' * spares}nodes times ranks_per_node is {ranks}")
        return given

    @field_validator("node_labels")
    @classmethod
    def _of_nodes_there_are(cls, given: dict[str, tuple[int, ...]], info: ValidationInfo) -> dict[str, tuple[int, ...]]:
        nodes = info.data.get("nodes", NODES_MAX)
        for label, places in given.items():
            if label == "any":
                raise ValueError("any: no name of a domain; as a target it means one by chance")
            if unknown := [place for place in places if place >= nodes]:
                raise ValueError(f"{label}: unknown node {unknown[0]}; choose from 0 to {nodes - 1}")
        return given

    @field_validator("node_labels_from")
    @classmethod
    def _one_source(cls, given: str, info: ValidationInfo) -> str:
        if given and info.data.get("node_labels"):
            raise ValueError("write node_labels or node_labels_from, not both: a node's domain has one source")
        return given

    def domain(self, nodes: Set[int]) -> str:
        found = (label for label, places in self.node_labels.items() if {*places} == nodes)
        names = " and ".join(found)
        return f"{names} is node{'s' * (len(nodes) > 1)} {', '.join(map(str, sorted(nodes)))}" if names else ""

    @property
    def world_size(self) -> int:
        return self.max_nodes * self.ranks_per_node

    def environment(self) -> Iterator[tuple[Path, str, str]]:
        """Yields the environment variables that the scenario sets for the trainer, with their keys below `workload`."""
        yield from ((("env", name), name, value) for name, value in self.env.items())
        for name, value in self.trainer.environment().items():
            yield ("trainer", "env", name), name, value

    def in_words(self) -> str:
        return f"nodes 0 to {self.nodes - 1}, ranks 0 to {self.world_size - 1}"

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def on_nodes(self, nodes: int) -> Workload:
        return self.model_copy(
            update=dict.fromkeys(("nodes", "max_nodes", "min_nodes"), nodes)
            | {"node_labels": {}, "node_labels_from": ""}
        )

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
