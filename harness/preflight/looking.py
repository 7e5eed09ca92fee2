"""Runs `chaos preflight SCENARIO` from start to end: makes the runs that the checks need, then judges their logs.

`REPORTS/<id>/` holds the run of the program that measures the nodes (`node_program`). `REPORTS/<id>/canary/` holds the
log of the trainer's run without a fault. `REPORTS/<id>-drill/` holds the run in which a rank is killed.
`REPORTS/<id>-canary/` is made only if the trainer's run without a fault failed."""

from __future__ import annotations

import importlib.resources
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.backends.contract import Backend
from harness.campaign.campaign_observers import CampaignObserver, Stage, staged
from harness.campaign.experiment import run_experiment
from harness.campaign.fault_free import copy_fault_free, ensure_fault_free, release
from harness.errors import ChaosError
from harness.evidence.logs import load_evidence
from harness.faults.contract import Target
from harness.judge.bounds import OFF, ContinuityBounds
from harness.judge.score import Evidence, judge
from harness.log import untrusted_files
from harness.plan.capabilities import lacking
from harness.plan.run_plan import Abort, Plan, PlannedFault, When
from harness.preflight.checks.contract import load_check
from harness.preflight.fitness import ASKED, Asked, store
from harness.preflight.stored_evidence import CANARY
from harness.report import write_reports
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.trainers.command import CommandTrainer
from harness.trainers.contract import Checkpoint, Workload
from harness.trainers.shared import placeholders
from harness.trainers.shared.custom import CustomTrainer
from harness.trainers.shared.scripted import ScriptTrainer

LIMIT_NS = 480 * 10**9  # of the program on the nodes
CANARY_STEPS_MAX = 500
PATHS_MAX = 100
LOSS = "loss_continuity"
OF_THE_TRAINER = ("rank_samples", "replicas")  # scores that a scenario switches off for how its trainer works
OF_A_NODE = ("/tmp/", "/var/tmp/", "/dev/", "/proc/", "/sys/", "/run/")  # what lies there, each node has for itself
PROGRAM = "data/preflight.py"  # in the run's folder; nodes may only read it there
_PATH = re.compile(r"(?:^|[\s=:,'\"])(/[\w.@+/-]+)")
_PYTHON = re.compile(r"\{python\}|[^\s'\";|&=]*\bpython[0-9.]*(?=[\s]|$)")


@dataclass(frozen=True)
class Setting:
    reports: pathlib.Path
    backend: Backend
    observer: CampaignObserver
    stop: StopRequest
    checks: Sequence[str]
    against: str = ""
    faults: bool = False


def look(plan: Plan, setting: Setting) -> pathlib.Path:
    """Runs the program that measures the nodes, and the trainer if a check needs its log. Returns the folder of the
    preflight, whose logs the checks judge."""
    folder, checks = setting.reports / plan.run_id, [load_check(name) for name in setting.checks]
    asked = Asked(plan=plan.to_json(), checks=[*setting.checks], against=setting.against, faults=setting.faults)
    probes = sorted({check.probe for check in checks if check.probe})
    (folder / PROGRAM).parent.mkdir(parents=True)
    store(ASKED, asked, folder)
    _look_at_nodes(plan, folder, probes, setting)
    if not setting.stop.asked and any(check.needs != "nodes" for check in checks):
        wanted = any(check.needs == "drill" for check in checks)
        _try_trainer(_shortened(plan), folder, asked, wanted, setting)
    asked.interrupted = setting.stop.asked
    store(ASKED, asked, folder)
    return folder


def nodes_plan(plan: Plan, probes: Sequence[str], faults: bool) -> Plan:
    """Returns the plan of a run in which a program that measures the nodes replaces the scenario's trainer."""
    work = plan.workload
    trainer = work.trainer
    env = {name: value for _, name, value in work.environment()}
    own = {"index": "{index}", "head": "{head}", "nodes": work.nodes, "ranks": work.ranks_per_node}
    own |= {"saves": f"{{run_dir}}/{work.checkpoint.folder}", "probes": ",".join(probes)}
    own |= {} if work.checkpoint.store == "directory" else {"saves": "{run_dir}/checkpoints"}
    words = [python_of(work), f"{{run_dir}}/{PROGRAM}", *(f"--{name}={value}" for name, value in own.items())]
    words += [f"--path={path}" for path in (str(own["saves"]), *map(placeholders.escaped, paths_of(plan)))]
    words += [f"--variable={name}" for name in env]
    beside = trainer.scenario_dir if isinstance(trainer, CustomTrainer) else None
    program = CommandTrainer(command=words, env=env, observe="off", scenario_dir=beside)
    size = {"nodes": work.nodes, "min_nodes": work.nodes, "ranks_per_node": work.ranks_per_node}
    job = Workload(trainer=program, **size, checkpoint=Checkpoint(path=work.checkpoint.path), restore_drill=False)
    limits = Abort(if_no_step_for_ns=LIMIT_NS, if_not_started_for_ns=LIMIT_NS, wall_clock_ns=LIMIT_NS)
    acting = plan.faults if faults else ()
    return plan.model_copy(update={"workload": job, "faults": acting, "expect": {}, "abort": limits})


def python_of(work: Workload) -> str:
    """Returns the Python interpreter in the trainer's command, or `{python}` (the harness's own) if the command names
    none."""
    if isinstance(work.trainer, ScriptTrainer):
        return work.trainer.interpreter
    words = work.trainer.command if isinstance(work.trainer, CommandTrainer) else []
    found = _PYTHON.search(" ".join(words))
    return found[0] if found else "{python}"


def paths_of(plan: Plan) -> list[str]:
    """Returns at most 100 absolute paths in a plan's commands and environment, without paths such as `/tmp/`, which
    differ between nodes."""
    launch = plan.launch()
    words = [*launch.command, *(launch.control or ()), *launch.env.values(), *launch.sources]
    found = dict.fromkeys(path.rstrip("/.") for word in words for path in _PATH.findall(word))
    return [path for path in found if path and not f"{path}/".startswith(OF_A_NODE)][:PATHS_MAX]


def _look_at_nodes(plan: Plan, folder: pathlib.Path, probes: Sequence[str], setting: Setting) -> None:
    program = importlib.resources.files("harness.preflight.node_program") / "probe.py"
    (folder / PROGRAM).write_bytes(program.read_bytes())
    stage = Stage("first look", plan.workload.nodes, folder=folder)
    job = nodes_plan(plan, probes, setting.faults)
    staged(setting.observer, stage, lambda: execute(job, folder, setting.backend, setting.observer, setting.stop))
    for name in ("data", plan.workload.checkpoint.folder):
        untrusted_files.remove_tree(folder, name)


def _shortened(plan: Plan) -> Plan:
    """Returns the plan of a short run under another name, because a short run does not count as a run of the
    scenario."""
    steps = plan.workload.steps and min(plan.workload.steps, CANARY_STEPS_MAX)
    work = plan.workload.on_nodes(plan.workload.nodes).model_copy(update={"steps": steps, "restore_drill": False})
    title = f"{plan.scenario.title}: its trainer, before a launch"
    header = {"name": f"preflight-{plan.scenario.name}", "title": title, "file_digest": None}
    scenario = plan.scenario.model_copy(update=header)
    given = {"workload": work, "scenario": scenario, "faults": (), "expect": _expected(plan.expect)}
    return plan.model_copy(update=given)


def _expected(expect: Mapping[str, Any]) -> dict[str, Any]:
    asked = {"pace": OFF}  # the few steps after a recovery tell the host's pace, and not the trainer's
    asked |= {name: OFF for name in OF_THE_TRAINER if expect.get(name) == OFF}
    loss = expect.get(LOSS)
    if loss is not None and not ContinuityBounds.model_validate(loss).moves_samples:
        asked[LOSS] = loss
    return asked


def _try_trainer(plan: Plan, folder: pathlib.Path, asked: Asked, drill: bool, setting: Setting) -> None:
    alone, stage = plan.without_faults(f"{plan.run_id}-{CANARY}"), Stage("fault-free run", plan.workload.nodes)
    setting.observer.stage(stage)
    given = alone, setting.reports, setting.backend, setting.observer, setting.stop
    kept, outcome = ensure_fault_free(*given, anew=True)
    assert outcome is not None, "it is made anew"
    setting.observer.stage_ended(stage, outcome.outcome)
    if outcome.outcome != "completed":
        _keep_failure(kept, folder, asked, outcome)
        return
    copy_fault_free(kept, folder / CANARY)
    if not drill or setting.stop.asked:
        asked.drill_ended = "it was stopped before" if drill else ""
        return
    try:
        asked.drill = _drill(plan, folder, setting)
    except ChaosError as error:
        asked.drill_ended = str(error)


def _keep_failure(attempt: pathlib.Path, folder: pathlib.Path, asked: Asked, outcome: Outcome) -> None:
    place = folder.with_name(f"{folder.name}-{CANARY}")
    attempt.rename(place)
    release(attempt)
    card = judge(load_evidence(place), place.name)
    write_reports(card, place)
    asked.canary_ended = f"{outcome.reason} ({place.name})"
    asked.drill_ended = "the trainer did not come to its end without a fault"
    if outcome.outcome == "failed" or not len(card.evidence.run.steps):
        copy_fault_free(place, folder / CANARY)


def _drill(plan: Plan, folder: pathlib.Path, setting: Setting) -> str:
    canary = judge(Evidence(timeline.load(folder / CANARY)), CANARY)
    steps = sorted({save.step for save in canary.evidence.saves.good if save.step})
    last = canary.evidence.run.reached_step
    at = kill_step(steps, last)
    if at is None:
        told = f"{len(steps)} saves were seen in {last} steps" if steps else "no save was seen"
        raise ChaosError(f"{told}, so there is nothing to come back from: save more often, or do more steps")
    rank = plan.workload.world_size - 1
    target = (Target(plan.workload.node_of(rank), rank),)
    kill = PlannedFault(id="kill", fault="rank_kill", parameters={}, when=When(step=at), targets=target)
    plan = plan.model_copy(update={"run_id": f"{plan.run_id}-drill", "faults": (kill,)})
    if reasons := lacking(plan, setting.backend.probe()):
        raise ChaosError(reasons[0][1])
    run_dir, _ = run_experiment(plan, setting.reports, setting.backend, setting.observer, setting.stop)
    card = judge(load_evidence(run_dir), run_dir.name)
    setting.observer.judged(card, write_reports(card, run_dir))
    return run_dir.name


def kill_step(saves: Sequence[int], last: int) -> int | None:
    """Returns a step between two saves at which to kill a rank, so that work is lost. Returns `None` if no step
    fits."""
    if not saves:
        return None
    after = saves[1] if len(saves) > 1 else 2 * saves[0]
    at = saves[0] + max(1, (after - saves[0]) // 2)
    return at if at < last - 1 else None
