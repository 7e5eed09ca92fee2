"""Scenario + seed → Plan. Pure: the same scenario and seed give the same plan, byte for byte.

All randomness of a run is spent here. A plan is plain data: it is written to `plan.json`, it is the first event
of the log, and everything after it reads only the plan.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict

from harness import units
from harness.backends.contract import Capability, load_backend
from harness.errors import CannotRunError, ScenarioError
from harness.faults.contract import Fault, Target, build_fault
from harness.spec.scenario import Count, FaultSpec, NotRank, Percent, Scenario, Selector, When

VERSION = 1


class PlannedTarget(TypedDict):
    node_index: int  # 0-based
    rank: int | None  # `None`: the whole node


@dataclass(frozen=True)
class PlannedFault:
    """One fault with nothing left to chance. `when` has exact values: see `Trigger`."""

    id: str
    fault: str
    parameters: Mapping[str, Any]
    when: Mapping[str, Any]
    targets: tuple[PlannedTarget, ...]
    kills: bool

    def nodes(self) -> set[int]:
        """0-based places of the nodes it acts on."""
        return {target["node_index"] for target in self.targets}

    def build(self) -> tuple[Fault, list[Target]]:
        return build_fault(self.fault, self.parameters), [Target(**target) for target in self.targets]


@dataclass(frozen=True)
class Plan:
    version: int
    run_id: str
    seed: int
    backend: str
    profile: str | None
    scenario: Mapping[str, Any]
    workload: Mapping[str, Any]
    faults: tuple[PlannedFault, ...]
    expect: Mapping[str, Mapping[str, Any] | str]  # `off`: not judged
    abort: Mapping[str, int]  # if_no_step_for_ns, wall_clock_ns
    limits: Mapping[str, int | None] = field(default_factory=dict)  # nodes_at_once, cool_down_ns

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        faults = tuple(PlannedFault(**{**fault, "targets": tuple(fault["targets"])}) for fault in data["faults"])
        return cls(**{**data, "faults": faults})

    def without_faults(self, run_id: str, nodes: int | None = None) -> Plan:
        """The fault-free twin: same seed, same workload; with `nodes`, on another number of nodes."""
        workload = dict(self.workload)
        workload["nodes"] = nodes or workload["nodes"]
        workload["min_nodes"] = workload["nodes"]
        return replace(self, run_id=run_id, workload=workload, faults=(), expect={})


def make_plan(scenario: Scenario, seed: int, backend: str, run_id: str, profile: str | None = None) -> Plan:
    """Raises `ScenarioError` for a target that cannot exist or a trigger that can never come."""
    spec = scenario.workload
    workload = spec.model_dump(mode="json")
    workload["min_nodes"] = spec.min_nodes or spec.nodes
    planned = [occurrence for fault in scenario.faults for occurrence in _plan_fault(fault, scenario, seed)]
    _check_blast_radius(planned, scenario.limits.nodes_at_once)
    header: dict[str, Any] = {"name": scenario.name, "title": scenario.title, "tags": scenario.tags}
    header |= {"price_per_gpu_hour": scenario.price_per_gpu_hour}
    return Plan(
        version=VERSION,
        run_id=run_id,
        seed=seed,
        backend=backend,
        profile=profile,
        scenario=header,
        workload=workload,
        faults=tuple(planned),
        expect=scenario.expect,
        abort={
            "if_no_step_for_ns": units.parse_duration_ns(scenario.abort.if_no_step_for),
            "wall_clock_ns": units.parse_duration_ns(scenario.abort.wall_clock),
        },
        limits={
            "nodes_at_once": scenario.limits.nodes_at_once,
            "cool_down_ns": units.parse_duration_ns(scenario.limits.cool_down),
        },
    )


def _check_blast_radius(planned: Sequence[PlannedFault], nodes_at_once: int | None) -> None:
    for fault in planned:
        if nodes_at_once is not None and len(fault.nodes()) > nodes_at_once:
            problem = f"fault {fault.id} acts on {len(fault.nodes())} nodes; limits: nodes_at_once is {nodes_at_once}"
            raise ScenarioError([problem])


def check_capabilities(plan: Plan, capability: Capability) -> None:
    """Refuses a plan that needs a verb the backend does not have here, and names the reason for each."""
    if not capability.available:
        raise CannotRunError(f"backend {plan.backend}: {capability.summary}")
    lacking = []
    for planned in plan.faults:
        fault, _ = planned.build()
        lacking += [f"fault {planned.id} ({planned.fault}): {what}" for what in fault.lacks()]
        for verb in sorted(fault.needed() - capability.verbs):
            reason = capability.missing.get(verb, f"backend {plan.backend} does not have it")
            lacking.append(
                f"fault {planned.id} ({planned.fault}) needs '{verb.value}': {reason}{_who_can(plan.backend, verb)}"
            )
    if lacking:
        raise CannotRunError("\n".join(lacking))


def _who_can(backend: str, verb: Any) -> str:
    from harness.backends.contract import backend_names

    others = [name for name in backend_names() if name != backend and verb in load_backend(name).probe().verbs]
    return f"; backend {others[0]} can do it here" if others else ""


def _plan_fault(spec: FaultSpec, scenario: Scenario, seed: int) -> list[PlannedFault]:
    fault = spec.build()
    dice = random.Random(f"{seed}/{spec.id}")
    planned = []
    for number, when in enumerate(_occurrences(spec.when, scenario, spec.id, dice), 1):
        identity = spec.id if spec.when.times is None else f"{spec.id}.{number}"
        targets = _resolve(spec, scenario, dice)
        parameters = fault.model_dump(mode="json")
        planned.append(PlannedFault(identity, spec.fault, parameters, when, targets, fault.kills))
    return planned


def _occurrences(when: When, scenario: Scenario, identity: str, dice: random.Random) -> list[dict[str, Any]]:
    """Each firing as exact values: step · after_ns · phase · following + event + after_ns."""
    if when.every is not None:
        period = units.parse_duration_ns(when.every)
        return [{"after_ns": period * (number + 1)} for number in range(when.times or 1)]
    if when.rate is not None:
        mean_ns = 3600e9 / units.parse_per_hour(when.rate)
        at, found = 0, []
        for _ in range(when.times or 1):
            at += round(-math.log(1.0 - dice.random()) * mean_ns)
            found.append({"after_ns": at})
        return found
    if when.step is not None and when.step >= scenario.workload.steps:
        total = scenario.workload.steps
        problem = f"fault {identity}: step {when.step} never comes before the end; the workload has {total} steps"
        raise ScenarioError([problem])
    exact: dict[str, Any] = {}
    for name in ("step", "phase", "following", "event"):
        if getattr(when, name) is not None:
            exact[name] = getattr(when, name)
    if when.following is not None:
        exact.setdefault("event", "injected")
    if when.after is not None:
        exact["after_ns"] = units.parse_duration_ns(when.after)
    return [exact]


def _resolve(spec: FaultSpec, scenario: Scenario, dice: random.Random) -> tuple[PlannedTarget, ...]:
    workload = scenario.workload
    world = workload.nodes * workload.ranks_per_node
    if spec.target.rank is not None:
        chosen = _choose(spec, spec.target.rank, list(range(world)), "rank", 1, dice)
        return tuple(PlannedTarget(node_index=rank // workload.ranks_per_node, rank=rank) for rank in chosen)
    assert spec.target.node is not None  # the scenario's check: one of the two is given
    chosen = _choose(spec, spec.target.node, list(range(workload.nodes)), "node", workload.ranks_per_node, dice)
    return tuple(PlannedTarget(node_index=index, rank=None) for index in chosen)


def _choose(
    spec: FaultSpec, selector: Selector, places: list[int], what: str, ranks_each: int, dice: random.Random
) -> list[int]:
    if selector == "any":
        return [dice.choice(places)]
    if selector == "all":
        return places
    if isinstance(selector, int):
        if selector not in places:
            raise ScenarioError(
                [f"fault {spec.id}: there is no {what} {selector}; there is {what} 0 to {len(places) - 1}"]
            )
        return [selector]
    if isinstance(selector, NotRank):
        others = [place for place in places if place != selector.not_rank // ranks_each]
        if not others:
            raise ScenarioError([f"fault {spec.id}: there is no {what} without rank {selector.not_rank}"])
        return [dice.choice(others)]
    count = selector.count if isinstance(selector, Count) else _share(selector, len(places))
    if count > len(places):
        raise ScenarioError([f"fault {spec.id}: {count} {what}s asked for; there are {len(places)}"])
    return sorted(dice.sample(places, count))


def _share(selector: Percent | str, total: int) -> int:
    """At least one: a fault without a target proves nothing."""
    assert isinstance(selector, Percent)
    return max(1, round(total * selector.percent / 100))
