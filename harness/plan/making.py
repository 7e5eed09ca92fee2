"""Makes a plan from a scenario and a seed. The same scenario and seed give the same plan, byte for byte.

All random choices of a run are made when its plan is made.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from harness import units
from harness.errors import ScenarioError, choice
from harness.faults.contract import Target
from harness.mesh import LAST, Mesh
from harness.node.emitter import Axis
from harness.plan.run_plan import NS_MAX, OCCURRENCES_MAX, TARGETS_MAX, Abort, Header, Limits, Plan, PlannedFault, When
from harness.spec.document import dotted
from harness.spec.scenario import Abort as AbortSpec
from harness.spec.scenario import Count, FaultSpec, NotRank, Percent, Scenario, Selector
from harness.spec.scenario import When as Trigger
from harness.trainers.contract import Workload


def make_plan(scenario: Scenario, seed: int, backend: str, run_id: str, profile: str | None = None) -> Plan:
    """Makes a run's plan. Raises `ScenarioError` for an impossible target, or a trigger that can never fire."""
    planned = _plan_faults(scenario, seed)
    places = {fault.id: fault.place("when") for fault in scenario.faults}
    return _checked(
        [places[fault.id.partition(".")[0]] for fault in planned],
        run_id=run_id,
        seed=seed,
        backend=backend,
        profile=profile,
        scenario=Header(
            name=scenario.name,
            title=scenario.title,
            tags=tuple(scenario.tags),
            price_per_gpu_hour=scenario.price_per_gpu_hour,
            labels=scenario.labels,
            file_digest=scenario.file_digest,
            traces={
                fault.id: fault.when.replay.words(scenario.workload.nodes)
                for fault in scenario.faults
                if fault.when.replay is not None
            },
        ),
        workload=scenario.workload,
        faults=planned,
        expect=scenario.expect,
        abort=_abort(scenario.abort),
        limits=Limits(
            nodes_at_once=scenario.limits.allowed_nodes(scenario.workload.nodes),
            cool_down_ns=scenario.limits.cool_down.ns,
            gpu_hours=scenario.limits.gpu_hours,
        ),
    )


def _abort(spec: AbortSpec) -> Abort:
    given = spec.if_no_step_for
    limits = {"if_not_started_for_ns": spec.if_not_started_for.ns, "wall_clock_ns": spec.wall_clock.ns}
    return Abort(**limits, if_no_step_for_ns=given.ns) if given else Abort(**limits, widened_by_start=True)


def _checked(places: Sequence[str], **parts: Any) -> Plan:
    try:
        return Plan(**parts)
    except ValidationError as error:
        told = []
        for problem in error.errors(include_url=False):
            # A contradiction names its fault; anything else is a value out of bounds, the seed perhaps.
            place = "" if problem["type"] == "value_error" else f"{dotted(problem['loc'])}: "
            match problem["loc"]:
                case ("faults", int(number), "when"):
                    place = places[number]
            told.append(place + problem["msg"].removeprefix("Value error, "))
        raise ScenarioError(told) from error


def _plan_faults(scenario: Scenario, seed: int) -> tuple[PlannedFault, ...]:
    planned: list[PlannedFault] = []
    targets = 0
    for fault in scenario.faults:
        dice = random.Random(f"{seed}/{fault.id}")
        once = fault.when.times is None and fault.when.replay is None
        for number, (when, spec) in enumerate(_firings(fault, scenario.workload, seed, dice), 1):
            name = fault.id if once else f"{fault.id}.{number}"
            later = spec.target.domain if spec.target.domain and scenario.workload.node_labels_from else ""
            aims = () if later else _resolve(spec, scenario.workload, dice)
            what = {"id": name, "fault": fault.kind, "parameters": fault.action, "when": when, "targets": aims}
            planned.append(PlannedFault(**what, domain=later))
            targets += len(aims)
            if len(planned) > OCCURRENCES_MAX:
                raise ScenarioError([f"faults: more than the {OCCURRENCES_MAX:,} firings that are allowed in a plan"])
            if targets > TARGETS_MAX:
                raise ScenarioError([f"faults: more than the {TARGETS_MAX:,} targets that are allowed in a plan"])
    return tuple(planned)


def _firings(fault: FaultSpec, workload: Workload, seed: int, dice: random.Random) -> Iterator[tuple[When, FaultSpec]]:
    if fault.when.replay is None:
        yield from ((when, fault) for when in _occurrences(fault.when, dice))
        return
    try:
        for strike in fault.when.replay.strikes(workload.nodes, seed):
            yield When(after_ns=min(strike.at_ns, NS_MAX)), fault.aimed(strike.nodes, workload)
    except ScenarioError as error:
        raise ScenarioError([fault.place("when") + problem for problem in error.problems]) from error


def _occurrences(when: Trigger, dice: random.Random) -> list[When]:
    if when.every is None and when.rate is None:
        after_ns = None if when.after is None else when.after.ns
        event = when.event or ("injected" if when.following is not None else None)
        return [When(step=when.step, phase=when.phase, following=when.following, event=event, after_ns=after_ns)]
    times = when.times or 1
    if when.every is not None:
        gaps_ns = [when.every.ns] * times
    else:  # exponential times between firings: a Poisson process
        mean_ns = 3600e9 / units.parse_per_hour(when.rate)
        gaps_ns = [round(-math.log(1.0 - dice.random()) * mean_ns) for _ in range(times)]
    # A moment after centuries comes at the end of time.
    return [When(after_ns=min(at_ns, NS_MAX)) for at_ns in itertools.accumulate(gaps_ns)]


def _resolve(spec: FaultSpec, workload: Workload, dice: random.Random) -> tuple[Target, ...]:
    if spec.target.coordinates or spec.target.domain is not None:
        if spec.target.domain is not None:
            nodes = _domain(spec, spec.target.domain, workload.node_labels, dice)
            ranks = [rank for rank in range(workload.world_size) if workload.node_of(rank) in nodes]
        else:
            ranks = _at(spec, Mesh(workload.mesh), dice)
            nodes = sorted({workload.node_of(rank) for rank in ranks})
        aims_at_nodes = spec.action.aims_at == "node"
        return tuple(map(Target, nodes)) if aims_at_nodes else tuple(Target(workload.node_of(r), r) for r in ranks)
    if spec.target.rank is not None:
        chosen = _choose(spec, spec.target.rank, range(workload.world_size), "rank", 1, dice)
        return tuple(Target(workload.node_of(rank), rank) for rank in chosen)
    assert spec.target.node is not None  # the scenario's check: one of the two is given
    chosen = _choose(spec, spec.target.node, range(workload.nodes), "node", workload.ranks_per_node, dice)
    return tuple(Target(index) for index in chosen)


def _domain(spec: FaultSpec, label: str, labels: Mapping[str, Sequence[int]], dice: random.Random) -> Sequence[int]:
    if not labels:
        known = "no engine tells before the start where it will place nodes, and the workload does not say it; "
        known += "write workload: {node_labels: {rack0: [0, 1], rack1: [2, 3]}}, or {node_labels_from: KEY}"
    elif label == "any":
        return labels[dice.choice([*labels])]
    elif label in labels:
        return labels[label]
    else:
        known = f"unknown domain {label!r}; {choice(label, [*labels])}"
    raise ScenarioError([f"{spec.place('target')}fault {spec.id}: {known}"])


def _at(spec: FaultSpec, mesh: Mesh, dice: random.Random) -> list[int]:
    chosen: dict[Axis, int] = {}
    for axis, index in spec.target.coordinates.items():
        place, size = f"{spec.place('target')}fault {spec.id}", mesh.sizes.get(axis)
        if size is None:
            axes = f"choose one of: {', '.join(mesh.sizes)}" if mesh.sizes else "say the sizes in workload: mesh:"
            raise ScenarioError([f"{place}: the workload's mesh has no axis {axis}; {axes}"])
        if isinstance(index, int) and index >= size:
            raise ScenarioError([f"{place}: unknown {axis} {index}; choose one of: 0 to {size - 1}"])
        chosen[axis] = size - 1 if index == LAST else dice.randrange(size) if index == "any" else int(index)
    return mesh.ranks(chosen)


def _choose(
    spec: FaultSpec, selector: Selector, places: Sequence[int], what: str, ranks_each: int, dice: random.Random
) -> Sequence[int]:
    def refused(problem: str) -> ScenarioError:
        return ScenarioError([f"{spec.place('target')}fault {spec.id}: {problem}"])

    if selector == "any":
        return [dice.choice(places)]
    if selector == "all":
        return places
    if isinstance(selector, (int, tuple)):
        chosen = [selector] if isinstance(selector, int) else sorted(set(selector))
        if unknown := [place for place in chosen if place not in places]:
            raise refused(f"unknown {what} {unknown[0]}; choose one of: 0 to {len(places) - 1}")
        return chosen
    if isinstance(selector, NotRank):
        others = [place for place in places if place != selector.not_rank // ranks_each]
        if not others:
            raise refused(f"every {what} has rank {selector.not_rank}; none is left to choose")
        return [dice.choice(others)]
    if isinstance(selector, Count):
        count = selector.count
    else:
        assert isinstance(selector, Percent)
        count = max(1, round(len(places) * selector.percent / 100))  # a fault without a target proves nothing
    if count > len(places):
        raise refused(f"{count} {what}s asked for; there are {len(places)}")
    return sorted(dice.sample(places, count))
