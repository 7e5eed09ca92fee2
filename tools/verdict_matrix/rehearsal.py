"""Runs a broken trainer for real, and judges it against the fault-free run of the healthy one, or its own."""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from unittest import mock

import yaml

from harness.backends.contract import load_backend
from harness.campaign.campaign_observers import SILENT_CAMPAIGN
from harness.campaign.fault_free import ensure_fault_free, fault_free_plans
from harness.campaign.resumed import Resumed, resize
from harness.evidence.logs import FAULT_FREE, load_evidence
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log import files
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.run.job import execute
from harness.run.stop import StopRequest
from harness.spec.scenario import parse_scenario
from harness.timeline import timeline
from harness.trainers.contract import build_trainer

TRAINER = pathlib.Path(__file__).resolve().with_name("trainer.py")
IN_IMAGE = "/mutants/trainer.py"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--compute-s", "0", "--lr", "0.003"]
# Large enough for the losses of two world sizes to part: in a small model they stay equal to seven digits.
USUAL = ["--layers", "5", "--width", "128", "--heads", "4", "--context", "64", "--compute-s", "0", "--lr", "0.003"]
EXPECT = {
    "recovery_time": {"max": "10m"},
    "wasted_gpu_hours": {"max_percent_by_faults": 99},
    "loss_continuity": {"mode": "exact"},
}
COMPLETE = "complete"
SAVED = {"metrics": {"checkpoint_success_min": 100}}
ALIKE = {"loss_continuity": {"mode": "final", "max_final_gap": "10%"}}
NOTHING_LOST = {"metrics": {"steps_rolled_back_max": 0}}
NO_ALARM = {"metrics": {"max_false_alarms": 0, "max_restarts": 0}}
NOTICED = {"metrics": {"detection_max": "20s"}}
TOLD = {"right_within": "20s", "max_innocents": 0, "decision": "evict-node"}
PROGRESS = {"metrics": {"max_restarts_without_progress": 1}}


@dataclass(frozen=True)
class Real:
    bug: str | None  # a function of `trainer.py`; `None`: the healthy trainer
    rehearsal: str  # a key of `REHEARSALS`
    verdict: Verdict
    reason: str  # a regular expression that one of the reasons must match
    everywhere: bool = False  # the fault-free run is made with the bug as well
    backend: str = "local"

    @property
    def name(self) -> str:
        return self.bug or "as it is"

    @property
    def how(self) -> str:
        where = "" if self.backend == "local" else f", on {self.backend.capitalize()}"
        return f"run: {self.rehearsal}{where}{', in the fault-free run as well' if self.everywhere else ''}"

    def accepts(self, card: Scorecard) -> bool:
        return card.verdict is self.verdict and any(re.search(self.reason, text) for text in card.reasons)


class NotRun(Exception):
    """The run is not stored, and was not asked for."""


def fault(identity: str, name: str, when: dict[str, Any], target: dict[str, Any], **own: Any) -> dict[str, Any]:
    return {"id": identity, "fault": name, "when": when, "target": target, **own}


KILL = fault("kill", "rank_kill", {"step": 25}, {"rank": 1})
EVICT = fault("evict", "preemption", {"step": 25}, {"node": 1}, notice="3s", replacement={"after": "500ms"})
ROT = fault("rot", "checkpoint_corruption", {"step": 25}, {"node": 0}, kind="bit_flip", what="tensor")
KILL_AFTER_ROT = KILL | {"when": {"following": "rot", "event": "effect"}}
LATER: dict[str, Any] = {"when": {"step": 45}}
RARE: dict[str, Any] = {"steps": 100, "checkpoint": {"every_steps": 20}}
DEAD = fault("dead", "storage_hang", {"step": 50}, {"node": "all"}, duration="30s")
FLIP = fault("flip", "silent_data_corruption", {"step": 25}, {"rank": 1}, what="weight", bit=20)
AGAIN = FLIP | {"what": "optimizer_state", "how": "intermittent", "once_in": 20, "steps": 21, "bit": 30}
LOSE = fault("lose", "data_corruption", {"step": 25}, {"rank": 1}, kind="missing", duration="2s")
SKEW = fault("skew", "data_skew", {"step": 25}, {"rank": 1}, kind="duplicate")
FULL = fault("full", "out_of_memory", {"step": 25}, {"rank": 1}, fits=2, duration="0s")
SPIKE = fault("spike", "divergence", {"step": 40}, {"rank": "all"}, kind="learning_rate", factor=100, steps=3)
MILD = fault("mild", "divergence", {"step": 40}, {"rank": "all"}, kind="gradient", factor=50, steps=1)
LEAK = fault("leak", "memory_leak", {"step": 25}, {"rank": 1}, rate="24MiB", room="192MiB")
STUCK = fault("stuck", "hang", {"step": 25}, {"rank": 1}, how="stuck_in_collective", duration="20s")
PAUSE = fault("pause", "benign_pause", {"step": 45}, {"rank": "all"}, duration="10s")
RESET = fault("reset", "connection_reset", {"step": 25}, {"rank": 1})
LOST = fault("lost", "node_loss", {"step": 25}, {"node": 1}, replacement="none")
LEMON = fault("lemon", "lemon_node", {"step": 90}, {"node": 1})
UPDATE = fault("update", "hot_update", {"step": 25}, {"node": "all"}, args=["--lr", "0.001"], shown_by="lr")
SICK = fault("sick", "gpu_health", {"step": 25}, {"rank": 3}, kind="xid", xid=119, duration="1s")
BROKEN = fault("broken", "cuda_error", {"step": 25}, {"rank": 1})
CONFUSE = fault("confuse", "start_failure", {"step": 25}, {"rank": 1}, kind="wrong_rank", times=2, within="2m")


def rehearsal(
    *faults: dict[str, Any],
    steps: int = 40,
    expect: Mapping[str, Any] = MappingProxyType({}),
    patience: str = "10m",
    wall_clock: str = "15m",
    **workload: Any,
) -> dict[str, Any]:
    args = SMALL + workload.pop("args", [])
    shape = {"nodes": 2, "steps": steps, "checkpoint": {"every_steps": 10}, "args": args} | workload
    return {
        "version": 1,
        "name": "mutant",
        "title": "A rehearsal for broken trainers",
        "workload": shape,
        "faults": list(faults),
        "expect": {**EXPECT, **expect},
        "abort": {"if_not_started_for": patience, "if_no_step_for": patience, "wall_clock": wall_clock},
    }


# After the recovery more steps follow than before it, and some saves, slow enough for the harness to see each of them.
EARLY = KILL | {"when": {"step": 30}}
SAVES = {"every_steps": 20, "keep": 10}
LONG: dict[str, Any] = {"steps": 120, "checkpoint": SAVES, "args": USUAL, "restore_drill": True}
NOTHING = {"wasted_gpu_hours": {"max_percent_by_faults": 0}, "loss_continuity": {"mode": "exact"}}
# A slow disk skips saves where steps are quick, and the trainer rightly says so.
NOTHING |= {"metrics": {"steps_rolled_back_max": 0}, "checkpoint_rhythm": "off"}

REHEARSALS: dict[str, dict[str, Any]] = {
    # A busy host slows one rank or another. The two share their fault-free run.
    "nothing": rehearsal(args=["--straggler-factor", "100"]) | {"expect": NOTHING},
    "kill": rehearsal(KILL, expect=SAVED, args=["--straggler-factor", "100"]),
    "kill, little patience": rehearsal(KILL, patience="30s"),
    "kill, dropout": rehearsal(KILL, args=["--dropout", "0.1"]),
    "kill while saving": rehearsal(KILL | {"when": {"step": 15, "phase": "checkpoint.write"}, "target": {"rank": 0}}),
    "kill after saving": rehearsal(KILL | {"when": {"step": 23}, "target": {"rank": 0}}),
    "rot and kill": rehearsal(ROT, KILL_AFTER_ROT),
    "kill, drill": rehearsal(EARLY, **LONG),
    "kill, no drill": rehearsal(EARLY, **LONG | {"restore_drill": False}),
    "kill twice, drill": rehearsal(EARLY, EARLY | {"id": "again", "when": {"step": 50}}, **LONG),
    "kill again and again": rehearsal(
        KILL, *(KILL | {"id": f"at-{at}", "when": {"step": at}} for at in (45, 65)), steps=80, expect=PROGRESS
    ),
    "lemon": rehearsal(
        LEMON,
        steps=200,
        min_nodes=1,
        args=[*USUAL, "--exclude-failing", "3"],
        checkpoint={"every_steps": 40},
        expect={"loss_continuity": {"mode": "envelope"}, "metrics": {"max_restarts_without_progress": 2}},
    ),
    "rot and kill, drill": rehearsal(ROT | {"when": {"step": 90}}, KILL_AFTER_ROT, **LONG | {"steps": 180}),
    "NaN and kill": rehearsal(ROT | LATER | {"kind": "nan"}, KILL_AFTER_ROT, **RARE, wall_clock="3m"),
    "huge numbers and kill": rehearsal(ROT | LATER | {"kind": "exploded"}, KILL_AFTER_ROT, **RARE, expect=ALIKE),
    "dead mount": rehearsal(DEAD, steps=800, checkpoint={"every_steps": 20}, args=USUAL, expect=NOTICED)
    | {"abort": {"if_not_started_for": "10m", "if_no_step_for": "20s", "wall_clock": "15m"}},
    "drift": rehearsal(FLIP, nodes=3),
    "lost shard": rehearsal(LOSE, steps=400, data={"shards": 8}),
    "skew": rehearsal(SKEW),
    "skew, uneven shares": rehearsal(SKEW | {"kind": "fewer"}, nodes=3),
    "out of memory": rehearsal(
        FULL, steps=60, min_nodes=1, expect={"loss_continuity": {"mode": "envelope"}} | NOTHING_LOST
    ),
    "spike": rehearsal(SPIKE, steps=100, expect=ALIKE),
    "mild spike": rehearsal(MILD, steps=100, expect=ALIKE | NOTHING_LOST),
    "wrong rank": rehearsal(CONFUSE, KILL | {"when": {"following": "confuse", "event": "injected"}}, patience="30s"),
    "leak": rehearsal(
        LEAK, steps=1500, checkpoint={"every_steps": 100}, expect=NOTHING_LOST | {"memory_growth": {"foreseen": True}}
    ),
    "stuck": rehearsal(STUCK, steps=60, expect={"metrics": {"detection_max": "9s"}}),
    "pause": rehearsal(PAUSE, steps=90, checkpoint={"every_steps": 30}, expect=NO_ALARM),
    "reset": rehearsal(RESET, patience="30s"),
    "sick GPU": rehearsal(
        SICK,
        steps=400,
        args=["--straggler-factor", "100"],  # a busy host slows one rank or another, which is then named first
        ranks_per_node=2,
        min_nodes=1,
        expect={"loss_continuity": {"mode": "envelope"}, "diagnosis": TOLD} | NOTHING_LOST,
    ),
    "CUDA error": rehearsal(BROKEN),
    "hot update": rehearsal(UPDATE),
    "drift again": rehearsal(AGAIN, nodes=3, steps=80),
    "absent": rehearsal(LOST, args=["--join-timeout-s", "5"], patience="30s")
    | {"expect": {"fail_fast": {"max": "20s", "says": "1 of 2 nodes"}}},
    "evict": rehearsal(EVICT, steps=600, expect=NOTHING_LOST),
    "evict twice": rehearsal(
        EVICT, EVICT | {"id": "again", "when": {"following": "evict", "event": "recovered"}}, expect=NOTHING_LOST
    ),
    "shrink and grow": rehearsal(
        LOST | {"when": {"step": 70}, "replacement": {"after": "3s"}},
        steps=200,
        min_nodes=1,
        args=USUAL,
        checkpoint={"every_steps": 20},
        expect={"loss_continuity": {"mode": "envelope"}},
    ),
    "shrink": rehearsal(
        EVICT | {"replacement": "none"}, steps=600, min_nodes=1, expect={"loss_continuity": {"mode": "envelope"}}
    ),
}


def run(mutant: Real, folder: pathlib.Path, stored_only: bool = False) -> Scorecard:
    """Runs a broken trainer, or the healthy one. Fault-free runs are cached in `folder`, and so are runs: one that is
    there already is only judged again. Raises `NotRun` when it is not there and `stored_only`."""
    name = f"{mutant.bug or 'healthy'}-{mutant.rehearsal}{' everywhere' if mutant.everywhere else ''}"
    name += "" if mutant.backend == "local" else f" {mutant.backend}"
    name = name.replace("_", "-").replace(",", "").replace(" ", "-")
    run_dir = next((mark.parent for mark in folder.glob(f"{name}.*/{COMPLETE}")), None)
    if run_dir is None and stored_only:
        raise NotRun(f"{name} is not in {folder}")
    if run_dir is None:
        run_dir = folder / f"{name}.{random.SystemRandom().getrandbits(32):08x}"
        with _image(mutant.backend):
            _rehearse(mutant, run_dir)
    return judge(load_evidence(run_dir), run_dir.name)


@contextlib.contextmanager
def _image(backend: str) -> Iterator[None]:
    """The image of nodes with the broken trainers in it, where the backend takes one."""
    if backend != "docker":
        yield
        return
    from harness.backends.docker.backend import IMAGE_ENV
    from harness.backends.docker.engine import Engine
    from harness.backends.docker.request import IMAGE

    name, engine = "chaos-test-mutants", Engine()
    recipe = f"FROM {IMAGE}\nCOPY {TRAINER.name} {IN_IMAGE}\n"
    build = ["docker", "--host", engine.address, "build", "--quiet", "--tag", name, "--file", "-", str(TRAINER.parent)]
    engine.close()
    subprocess.run(build, input=recipe, text=True, check=True, stdout=subprocess.DEVNULL)
    with mock.patch.dict(os.environ, {IMAGE_ENV: name}):
        yield


def _rehearse(mutant: Real, run_dir: pathlib.Path) -> None:
    backend = load_backend(mutant.backend)
    scenario = parse_scenario(yaml.safe_dump(REHEARSALS[mutant.rehearsal]), mutant.rehearsal)
    healthy = make_plan(scenario, 1, mutant.backend, run_dir.name)
    script = IN_IMAGE if mutant.backend == "docker" else str(TRAINER)
    plan = broken(healthy, mutant.bug, script) if mutant.bug else healthy
    fault_free = fault_free_plans(plan if mutant.everywhere else healthy)
    made = {
        name: ensure_fault_free(other, run_dir.parent, backend, repeat=repeat)
        for name, (other, repeat) in fault_free.items()
    }
    assert all(outcome is None or outcome.outcome == "completed" for _, outcome in made.values()), "a fault-free run"
    execute(plan, run_dir, backend)
    for name, (other, _) in made.items():
        files.attach(other / "events", run_dir / name / "events")
        _with_the_code_of_the_run(run_dir, run_dir / name)
    run = timeline.load(run_dir)
    if at := resize(plan, run, timeline.load(run_dir / FAULT_FREE)):
        resumed = Resumed(plan, at, run, run_dir.parent, backend, SILENT_CAMPAIGN, StopRequest())
        for name, other in resumed.runs(made[FAULT_FREE][0]).items():
            files.attach(other / "events", run_dir / name / "events")
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    (run_dir / COMPLETE).touch()


def _with_the_code_of_the_run(run_dir: pathlib.Path, fault_free: pathlib.Path) -> None:
    """A bug that shows after a restart alone is not in the fault-free run: it is made by the healthy trainer, and passes
    for one of the run's own code."""
    logs = [folder / "events" / "harness.jsonl" for folder in (run_dir, fault_free)]
    mine, other = ([json.loads(line) for line in log.read_text().splitlines()] for log in logs)
    facts = next(line for line in mine if line.get("event") == "environment")
    for line in other:
        if line.get("event") == "environment":
            line["source_digest"] = facts["source_digest"]
    logs[1].write_text("".join(json.dumps(line) + "\n" for line in other))


def broken(plan: Plan, bug: str, script: str) -> Plan:
    """The same plan, run by the trainer with this bug in it."""
    healthy = plan.launch()
    at = healthy.command.index("-m")
    command = [*healthy.command[: at - 1], "{python}", script, bug, *healthy.command[at + 2 :]]
    trainer = build_trainer({"command": command, "control": healthy.control})
    return plan.model_copy(update={"workload": plan.workload.model_copy(update={"trainer": trainer})})
