"""Defines the command `chaos plan`, which describes what a scenario would do, or prints the request to the cluster
engine."""

import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
import yaml

from harness.backends.contract import load_backend
from harness.campaign.checked_files import load_scenario
from harness.campaign.experiment import new_run_id
from harness.cli.output import say
from harness.cli.shared_options import SCENARIOS, BackendOption, ProfileOption, ScenarioArg, ScenariosOption, SeedOption
from harness.errors import UsageError
from harness.evidence import reported
from harness.mesh import Mesh
from harness.node.emitter import TELLS
from harness.plan.capabilities import never_here
from harness.plan.making import make_plan
from harness.plan.run_plan import WIDENED_TIMES, Plan, PlannedFault, When
from harness.run import drill
from harness.spec.scenario import Scenario, find_scenario
from harness.trainers.contract import Workload
from harness.units import counted

BY_HARNESS = ("clocks",)  # compared by the harness, whatever the trainer tells
STRUCK_SHOWN = 4  # ranks of one fault whose place in the mesh is told


def plan(
    scenario: ScenarioArg,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    as_: Annotated[
        str, typer.Option("--as", help="The request to the engine: yaml, json, or a kind like jobset.")
    ] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="Of a kind of object: yaml or json.")] = "",
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Say what a scenario would do, or print the engine's request. Launches nothing.

    Example: chaos plan spot-evict --backend kubernetes --as jobset
    """
    if output not in ("", "yaml", "json") or (as_ in ("yaml", "json") and output not in ("", as_)):
        raise UsageError(f"--output {output}: allowed are yaml and json, and only one of them")
    spec, planned = plan_of(scenario, backend, seed, profile, scenarios)
    if not as_ and not output:
        for line in explanation(spec, planned):
            say(line)
        for reason in never_here(planned):
            say(f"Backend {backend} cannot do this: {reason}")
        return
    kind, output = ("", as_) if as_ in ("yaml", "json") else (as_, output or "yaml")
    engine, workload = load_backend(backend), planned.launch()
    request = engine.render_as(workload, kind, spec.name) if kind or engine.kinds else engine.render(workload)
    sys.stdout.write(native_text(request, output))


class _Dumper(yaml.SafeDumper):
    """A YAML dumper without anchors: a repeated value is written in full each time, which is easier to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def native_text(request: Any, output: str) -> str:
    """Formats a request to the cluster engine as YAML or JSON. In YAML, a list of objects becomes several documents, as
    `kubectl apply -f -` expects."""
    plain = json.loads(json.dumps(request, default=dataclasses.asdict))
    if output == "json":
        return json.dumps(plain, indent=2) + "\n"
    documents = plain if isinstance(plain, list) else [plain]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def plan_of(name: str, backend: str, seed: int, profile: str | None, scenarios: pathlib.Path) -> tuple[Scenario, Plan]:
    load_backend(backend)
    if not name:
        raise UsageError("name a scenario, or a stored plan with --plan; `chaos list` shows the scenarios")
    spec = load_scenario(find_scenario(name, scenarios), profile)
    return spec, make_plan(spec, seed, backend, new_run_id(spec.name), profile)


def explanation(spec: Scenario, plan: Plan) -> list[str]:
    work = plan.workload
    fewest = "needs all of them" if work.min_nodes == work.nodes else f"may go on with {work.min_nodes}"
    if spares := work.nodes - work.max_nodes:
        fewest = f"{fewest}, and uses {work.max_nodes}; spare: {counted(spares, 'node')}"
    steps = "as many steps as the fault-free run does" if work.steps is None else counted(work.steps, "step")
    saves, every = "It saves as often as its own command says.", spec.workload.checkpoint
    if work.trainer.paced_by(every):
        saves = f"A checkpoint every {every.every or counted(every.every_steps, 'step')}."
    lines = [
        f"{spec.name}: {spec.title}",
        f"{work.trainer.in_words()} runs {steps} on {counted(work.nodes, 'node')} with "
        f"{counted(work.ranks_per_node, 'rank')} each ({counted(work.world_size, 'rank')}); "
        f"it {fewest}. {saves}",
        "First the same run without any fault, unless one with this seed is cached.",
    ]
    for planned in plan.faults:
        lines.append(f"  {planned.id}: {_when_in_words(planned.when)}, {planned.in_words()}.")
        if domain := work.domain({target.node_index for target in planned.targets}):
            lines.append(f"    {domain}.")
        lines += [f"    {Mesh(work.mesh).in_words(rank)}." for rank in _struck(planned, work)]
        if (lasts := planned.action.lasts()) and "duration" not in planned.action.model_fields_set:
            lines.append(f"    Its duration, {lasts}, is the default: write `duration:` for another one.")
        if planned.action.over_rdma() is not None:
            kind, other = ("RDMA", "IP") if planned.action.over_rdma() else ("IP", "RDMA")
            lines.append(f"    It disturbs {kind}: a job that uses {other} on these nodes is refused before it starts.")
    lines += [f"  {fault} replays {words}." for fault, words in plan.scenario.traces.items()]
    if nodes_at_once := plan.limits.nodes_at_once:
        lines.append(f"  Never more than {counted(nodes_at_once, 'node')} with an active fault: further faults wait.")
    if cool_down_ns := plan.limits.cool_down_ns:
        lines.append(f"  After each recovery {cool_down_ns / 1e9:g} s without a fault.")
    for name, bounds in plan.expect.items():
        limits = bounds if isinstance(bounds, str) else ", ".join(f"{key} {value}" for key, value in bounds.items())
        lines.append(f"  expects {name}: {limits or 'nothing in particular'}")
    lines += [f"  {why}."] if (why := drill.why_not(plan)) else []
    lines += _cost_in_words(spec, plan)
    lines += untold(work.trainer.declares(), plan.expect, work.trainer.teller)
    abort = plan.abort
    start, idle = abort.if_not_started_for_ns / 1e9, abort.if_no_step_for_ns / 1e9
    wider = f" (or {WIDENED_TIMES} times the duration of its start, if that is more)" if abort.widened_by_start else ""
    lines.append(
        f"Seed {plan.seed}. Aborts when the first step takes longer than {start:g} s, or later no step comes for "
        f"{idle:g} s{wider}, or after {abort.wall_clock_ns / 1e9:g} s. Everything is undone at the end. "
        "Nothing was launched."
    )
    return lines


def untold(tells: frozenset[str] | None, expect: Mapping[str, Any], teller: str = "its trainer") -> list[str]:
    """Returns lines that say what cannot be judged because the trainer does not report it. `tells` holds the kinds of
    evidence that the trainer declares (`None`: no declaration). `teller` is the trainer's name in these lines."""
    if tells is None:
        text = "What its trainer reports is seen when it runs. Whatever is missing then will not be judged"
        return [f"{text}, and the verdict names it; what `trainer: {{tells: […]}}` names must be there."]
    tells = reported.stood_in_for(tells)
    silent = [kind for kind in TELLS if kind not in tells and kind not in (*BY_HARNESS, *reported.BY_FAULT)]
    if not silent:
        return [f"{teller[0].upper()}{teller[1:]} reports everything that is judged."]
    items = dict.fromkeys(reported.ITEMS[kind] for kind in silent)
    lines = [f"Not judged, because {teller} does not report it: {', '.join(items)}."]
    for name, needed in _needed(expect):
        if lacking := [reported.ITEMS[kind] for kind in needed if kind not in tells]:
            lines.append(f"  {name} would be inconclusive: {teller} does not report {', '.join(lacking)}.")
    return lines


def _needed(expect: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    asked = {name: bounds for name, bounds in expect.items() if isinstance(bounds, Mapping)}
    if "loss_continuity" in asked:
        exact = asked["loss_continuity"].get("mode", "exact") == "exact"
        yield "loss_continuity", ("loss",) if exact else ("loss", "positions")
    for phase in asked.get("recovery_time", {}).get("phases") or {}:
        yield f"recovery_time.phases.{phase}", sorted(reported.PHASE_NEEDS.get(phase, set()))
    if asked.get("metrics", {}).get("checkpoint_success_min") is not None:
        yield "metrics.checkpoint_success_min", ("checkpoints",)


def _struck(planned: PlannedFault, work: Workload) -> list[int]:
    each = work.ranks_per_node
    nodes = (range(target.node_index * each, (target.node_index + 1) * each) for target in planned.targets)
    ranks = [target.rank for target in planned.targets if target.rank is not None] or itertools.chain(*nodes)
    return list(itertools.islice(ranks, STRUCK_SHOWN)) if work.mesh else []


def _cost_in_words(spec: Scenario, plan: Plan) -> list[str]:
    """Returns lines that state the highest possible cost of a run, by its time limits. A job that runs smoothly costs
    far less."""
    hours = plan.workload.nodes * plan.workload.ranks_per_node * plan.abort.wall_clock_ns / 3600e9
    cap = plan.limits.gpu_hours
    each = hours if cap is None else min(hours, cap)
    price = plan.scenario.price_per_gpu_hour
    restarts = 2 if drill.is_wanted(plan, committed_step=1) else 0  # on what was saved, after each run
    jobs = spec.repeat * (1 + restarts) + 1
    cost = "" if price is None else f", ${each * jobs * price:,.2f} at ${price:,.2f} a GPU-hour"
    capped = "" if cap is None else f" Each job is stopped at {cap:g} GPU-hours."
    which = "the run with faults, after it" if spec.repeat == 1 else f"{spec.repeat} runs with faults, after each"
    which = f"{which} a restore drill and a second restart" if restarts else which.partition(",")[0]
    return [
        f"  At most {each * jobs:.3g} GPU-hours{cost}: {jobs} jobs of at most {each:.3g} each.{capped}",
        f"  These are the fault-free run, {which}.",
    ]


def _when_in_words(when: When) -> str:
    after = f"{when.after_ns / 1e9:g} s after " if when.after_ns is not None else ""
    event = {"effect": "acts", None: "acts"}.get(when.event, f"is {when.event}")
    base = f"{when.following} {event}" if when.following else "the start"
    parts = []
    if when.step is not None:
        parts.append(f"when every rank has completed step {when.step}")
    if when.following or after:
        parts.append(f"{after or 'once '}{base}")
    if when.phase:
        parts.append(f"as soon as a rank enters {when.phase}")
    return ", ".join(parts)
