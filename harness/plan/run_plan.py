"""Defines the plan of a run, which states all actions of the run and leaves nothing to chance.

A plan is written to `plan.json` and is the first event of the log. `chaos run --plan` runs a stored plan again.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    computed_field,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from harness.backends.contract import Launch
from harness.errors import CannotRunError, ScenarioError, UsageError
from harness.faults.contract import Fault, NamedFault, Target
from harness.log.consequences import May
from harness.plan.changes import changed
from harness.spec.secrets import refuse_literals
from harness.trainers.contract import Workload
from harness.trainers.shared.outcome_inputs import outcome_digest

Path = tuple[str | int, ...]
NS_MAX = 2**63 - 1  # 292 years
NOT_STARTED_NS = 600 * 10**9
WIDENED_TIMES = 3
CONTROL = "blindness-check"  # the tag of a run of a broken trainer, which must fail: no evidence of any other
FIRST_LOOK = "first-look"  # the tag of what `chaos init` watched: no run to be judged, compared or run again
OCCURRENCES_MAX = 20_000  # faults of a plan, each firing counted
TARGETS_MAX = 300_000  # of all of them together; one fault on all ranks of the largest job has 262,144

Expect = dict[str, dict[str, JsonValue] | Literal["off"]]
"""Score → its bounds as the scenario has them; `off`: it is not judged. What they mean is for the score to say: it
reads them from the log."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class When(_Model):
    """The moment at which a fault is injected: all given conditions must hold. `after_ns` counts from the job's start
    or from the event `event` of the fault `following`. `more_steps` counts from the begin of a rehearsal."""

    step: int | None = Field(None, ge=1)
    more_steps: int | None = Field(None, ge=0)
    phase: str | None = None
    following: str | None = None
    event: Literal["injected", "effect", "recovered", "healed"] | None = None
    after_ns: int | None = Field(None, ge=0, le=NS_MAX)

    @model_serializer
    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in self if value is not None}


class PlannedFault(NamedFault):
    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(\.[0-9]{1,4})?$")
    when: When
    targets: tuple[Target, ...]
    domain: str = ""  # the label, or any, whose nodes the engine tells when the job has them; there are no targets yet

    @model_validator(mode="before")
    @classmethod
    def _without_derived(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if key != "kills"} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _aimed(self) -> Self:
        if not self.targets and not self.domain:
            raise ValueError("targets: none; name one at least")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        return data if self.domain else {name: value for name, value in data.items() if name != "domain"}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kills(self) -> bool:
        return May.KILL in self.action.may

    def nodes(self) -> set[int]:
        return {target.node_index for target in self.targets}

    def in_words(self) -> str:
        where = "one domain" if self.domain == "any" else f"the domain {self.domain}"
        return self.action.describe(self.targets) if self.targets else f"{self.kind} on all nodes of {where}"

    def at(self, places: Mapping[str, Sequence[int]], workload: Workload, seed: int) -> Self:
        """Returns the fault with the nodes (or ranks) of its failure domain, such as a rack, as targets. `places` maps
        each domain's label to its nodes. Raises `CannotRunError` for a label that no node has."""
        if not self.domain:
            return self
        key, known = workload.node_labels_from, ", ".join(sorted(places)) or "none"
        label = self.domain
        if label == "any" and places:
            label = random.Random(f"{seed}/{self.id}/domain").choice(sorted(places))
        if label not in places:
            raise CannotRunError(f"fault {self.id}: no node of the job has {key}={label}; their labels: {known}")
        each = workload.ranks_per_node
        ranks = [rank for node in places[label] for rank in range(node * each, (node + 1) * each)]
        ranks = [rank for rank in ranks if rank < workload.world_size]
        of_nodes = self.action.aims_at == "node"
        aims = tuple(map(Target, places[label])) if of_nodes else tuple(Target(workload.node_of(r), r) for r in ranks)
        return self.model_copy(update={"targets": aims, "domain": ""})


class Header(_Model):
    name: str
    title: str
    tags: tuple[str, ...] = ()
    price_per_gpu_hour: float | None = None
    labels: dict[str, str] = {}
    file_digest: str | None = None  # SHA-256 of the scenario's file
    traces: dict[str, str] = {}  # by id of a replaying fault: the use of the trace, in words

    @property
    def is_control(self) -> bool:
        return CONTROL in self.tags


class Abort(_Model):
    if_no_step_for_ns: int = Field(60 * 10**9, ge=0, le=NS_MAX)
    wall_clock_ns: int = Field(ge=0, le=NS_MAX)
    if_not_started_for_ns: int = Field(NOT_STARTED_NS, ge=0, le=NS_MAX)
    widened_by_start: bool = False  # the first limit is at least three times the first start

    def idle_ns_max(self, first_start_ns: int) -> int:
        """Returns the longest allowed time without a step, in ns, if the job's first start took `first_start_ns`."""
        widened = WIDENED_TIMES * first_start_ns if self.widened_by_start else 0
        return max(self.if_no_step_for_ns, widened)


class Limits(_Model):
    nodes_at_once: int | None = Field(None, ge=1)
    cool_down_ns: int = Field(0, ge=0, le=NS_MAX)
    gpu_hours: float | None = Field(None, gt=0)  # a job that reaches it is stopped


class Plan(_Model):
    version: Literal[1] = 1
    run_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
    seed: int = Field(ge=-(2**63), le=2**64 - 1)
    backend: str
    profile: str | None = None
    scenario: Header
    workload: Workload
    faults: tuple[PlannedFault, ...] = Field((), max_length=OCCURRENCES_MAX)
    expect: Expect = {}
    abort: Abort
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._contradictions()):
            details = [
                InitErrorDetails(type=PydanticCustomError("value_error", "{why}", {"why": why}), loc=path, input=None)
                for path, why in problems
            ]
            raise ValidationError.from_exception_data("Plan", details)
        return self

    def _contradictions(self) -> Iterator[tuple[Path, str]]:
        if sum(len(fault.targets) for fault in self.faults) > TARGETS_MAX:
            yield ("faults",), f"all faults together have more than the {TARGETS_MAX:,} targets that are allowed"
        ids: set[str] = set()
        every = {fault.id for fault in self.faults}
        for place, fault in enumerate(self.faults):
            at: Path = ("faults", place)
            if fault.id in ids:
                yield (*at, "id"), f"{fault.id!r} is already the id of another fault; ids are unique"
            ids.add(fault.id)
            yield from (((*at, key), f"fault {fault.id}: {why}") for key, why in self._misplaced(fault, every))

    def _misplaced(self, fault: PlannedFault, ids: set[str]) -> Iterator[tuple[str, str]]:
        steps, places, allowed = self.workload.steps, self.workload.nodes, self.limits.nodes_at_once
        if fault.when.step is not None and steps is not None and fault.when.step >= steps:
            yield "when", f"step {fault.when.step} is never reached; the workload has {steps} steps"
        followed = fault.when.following
        if followed is not None and (followed == fault.id or followed not in ids):
            yield "when", f"it follows {followed!r}, but this plan has no such other fault"
        if not all(0 <= target.node_index < places and self._has(target, fault.action) for target in fault.targets):
            yield "targets", f"not all are a {fault.action.aims_at} of this workload: {self.workload.in_words()}"
        if change := fault.action.change():
            try:
                found = changed(self.workload, change)
                yield from (("parameters", why) for _, why in found.trainer.problems(found))
            except UsageError as error:
                yield "parameters", str(error)
        if allowed is not None and len(fault.nodes()) > allowed:
            yield "targets", f"it acts on {len(fault.nodes())} nodes; limits: nodes_at_once is {allowed}"

    def _has(self, target: Target, fault: Fault) -> bool:
        if target.rank is None:
            return fault.aims_at == "node"
        return 0 <= target.rank < self.workload.world_size and self.workload.node_of(target.rank) == target.node_index

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @field_validator("workload")
    @classmethod
    def _no_secrets(cls, workload: Workload) -> Workload:
        refuse_literals({name: value for _, name, value in workload.environment()})
        return workload

    @classmethod
    def from_json(cls, data: object) -> Self:
        return cls.model_validate(data)

    def launch(self) -> Launch:
        """Returns all commands that a run of this plan starts on its nodes. Has no side effects."""
        launch = self.workload.trainer.launch(self.workload, self.run_id, self.seed)
        return replace(launch, notice_s=max((fault.action.notice_s or 0.0 for fault in self.faults), default=0.0))

    def changed_by(self, fault: PlannedFault) -> Self:
        workload = self.workload
        for each in self.faults[: self.faults.index(fault) + 1]:
            if change := each.action.change():
                workload = changed(workload, change)
        return self.model_copy(update={"workload": workload})

    def outcome_digest(self) -> str:
        return outcome_digest(self.workload, self.seed, self.backend)

    def with_steps(self, steps: int) -> Self:
        """Returns the plan with this number of steps. Raises `ScenarioError` if a fault's step is never reached."""
        workload = self.workload.model_copy(update={"steps": steps})
        for fault in self.faults:
            if fault.when.step is not None and fault.when.step >= steps:
                never = f"step {fault.when.step} is never reached; the fault-free run did {steps} steps"
                raise ScenarioError([f"fault {fault.id}: {never}"])
        return self.model_copy(update={"workload": workload})

    def placed(self, labels: Sequence[str]) -> Self:
        """Returns the plan with nodes as targets instead of failure domains (such as racks). `labels` has each node's
        label. Raises `CannotRunError` if the job lacks a domain, or limits forbid a fault."""
        places = {label: [at for at, its in enumerate(labels) if its == label] for label in sorted({*labels} - {""})}
        faults = tuple(fault.at(places, self.workload, self.seed) for fault in self.faults)
        told = {"node_labels": {label: tuple(at) for label, at in places.items()}, "node_labels_from": ""}
        workload = self.workload.model_copy(update=told)
        found = self.model_copy(update={"faults": faults, "workload": workload})
        if problems := [why for _, why in found._contradictions()]:
            raise CannotRunError("\n".join(problems))
        return found

    def labelled(self, labels: Mapping[str, str]) -> Self:
        header = self.scenario.model_copy(update={"labels": {**self.scenario.labels, **labels}})
        return self.model_copy(update={"scenario": header})

    def as_control(self) -> Self:
        """Returns the same plan, tagged as a control run, which must fail."""
        header = self.scenario.model_copy(update={"tags": tuple(dict.fromkeys([*self.scenario.tags, CONTROL]))})
        return self.model_copy(update={"scenario": header})

    def again(self, run_id: str) -> Self:
        return self.model_copy(update={"run_id": run_id})

    def without_faults(self, run_id: str, nodes: int | None = None) -> Self:
        """Returns the plan of a fault-free run with the same seed and workload, on `nodes` nodes if this is given."""
        workload = self.workload.on_nodes(nodes or self.workload.max_nodes)
        return self.model_copy(update={"run_id": run_id, "workload": workload, "faults": (), "expect": {}})
