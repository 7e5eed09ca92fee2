"""Fault-free runs that stop at a save and go on: when they are made, what of them is kept, and that real jobs do it."""

import json
import os
import pathlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from judging import SAVES, load
from simulator import Job, Outage, change, simulate

from harness.backends.local.backend import BACKEND
from harness.campaign import resumed, seal
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, CampaignObserver
from harness.campaign.fault_free import forget_fault_free
from harness.campaign.resumed import Resumed, resize
from harness.errors import ChaosError
from harness.evidence.made_as_asked import BEFORE, SAME, Resize, broken_by, committed
from harness.log.journal import Journal
from harness.node.run_folder_view import KEPT as CACHE
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.spec.scenario import parse_scenario
from harness.timeline import timeline

JOB = Job(nodes=2, steps=60, every=10)
AT = Resize(30, 1)
ANY: Any = None


@pytest.fixture(autouse=True)
def own_state(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seal.STATE_ENV, str(tmp_path / "state"))
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "plain")


def plan_of(backend: str = "local", mode: str = "envelope", **workload: Any) -> Plan:
    scenario = {
        "version": 1,
        "name": "mine",
        "title": "A job that shrinks",
        "workload": {"nodes": 2, "min_nodes": 1, "steps": 60, "checkpoint": {"every_steps": 10}} | workload,
        "faults": [{"id": "loss", "fault": "node_loss", "when": {"step": 35}, "target": {"node": 1}}],
        "expect": {"loss_continuity": {"mode": mode}},
    }
    return make_plan(parse_scenario(yaml.safe_dump(scenario), "mine.yaml"), 1, backend, "mine-1")


SHRINKS = [Outage(35, "shrink", victim=1, regrow_after=15)]


def test_a_run_whose_world_changed_its_size_is_repeated_from_the_newest_save_of_a_fault_free_run() -> None:
    shrunk = load(simulate(JOB, SHRINKS, 5))
    assert resize(plan_of(), shrunk, None) == AT
    killed = load(simulate(JOB, [Outage(35, "rank", victim=1)], 5))
    assert resize(plan_of(), killed, None) is None, "it came back with as many ranks"
    own_rhythm = load(simulate(Job(nodes=2, steps=60, every=12), (), 99))
    assert resize(plan_of(), shrunk, own_rhythm) == Resize(24, 1)
    assert resize(plan_of(mode="final"), shrunk, None) is None, "no band is asked for"
    assert resize(plan_of("kubernetes"), shrunk, None) is None, "its checkpoints are out of reach"
    in_a_store = plan_of(checkpoint={"every_steps": 10, "store": "s3"})
    assert resize(in_a_store, shrunk, None) is None, "its store ends with the job"


class Jobs:
    """Jobs that cost nothing and do what they are asked. `noise`: each of them tells other losses; `ends`: how the one
    of this name ends; `late`: so often the one of this name stops one save late, or goes on from one too early."""

    def __init__(self, noise: float = 0.0, ends: dict[str, str] | None = None, late: dict[str, int] | None = None):
        self.noise, self.ends, self.late, self.made = noise, ends or {}, late or {}, list[str]()
        self.found = dict[str, list[str]]()

    def execute(
        self, plan: Plan, folder: pathlib.Path, backend: object, observer: object, stop: object, until_saved: int | None
    ) -> Outcome:
        name = plan.run_id.removeprefix("mine-1-")
        self.made.append(f"{name} on {plan.workload.nodes}")
        self.found[name] = sorted(path.name for path in (folder / "checkpoints").glob("*"))
        late = self.late.get(name, 0) > 0
        self.late[name] = self.late.get(name, 0) - 1
        saved = max((int(found.partition("-")[2]) for found in self.found[name]), default=0)
        last = 10**9 if until_saved is None else until_saved + 10 * late
        logs = (history := simulate(replace(JOB, nodes=plan.workload.nodes), (), 99)).logs()
        logs.plan["workload"].update(nodes=plan.workload.nodes, min_nodes=plan.workload.nodes)
        done = range(1 + saved, last + 1)
        logs.lose("step", *SAVES, step=[step for step in range(100) if step not in done])
        change(logs.all("restored"), step=saved - 10 * late if saved else 0)
        change(logs.steps(), loss=lambda line: line["loss"] + self.noise * len(self.made))
        journal = Journal(folder)
        history.write(folder, logs)
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / f"step-{until_saved}").touch()
        journal.mark_closed()
        return Outcome(self.ends.get(name, "saved" if until_saved else "completed"), "as told")


Made = Callable[[Jobs], dict[str, pathlib.Path]]


class Notes(CampaignObserver):
    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def job_of(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Resumed]:
    def job_of(jobs: Jobs, observer: CampaignObserver = SILENT_CAMPAIGN) -> Resumed:
        monkeypatch.setattr(resumed, "execute", jobs.execute)
        run = load(simulate(JOB, SHRINKS, 5))
        return Resumed(plan_of(), AT, run, tmp_path, ANY, observer, StopRequest())

    return job_of


@pytest.fixture
def alone(tmp_path: pathlib.Path) -> pathlib.Path:
    return simulate(JOB, (), 99).write(tmp_path / "alone")


@pytest.fixture
def made(job_of: Callable[..., Resumed], alone: pathlib.Path) -> Made:
    return lambda jobs: job_of(jobs).runs(alone)


def test_they_are_made_once_from_copies_of_one_save(made: Made, tmp_path: pathlib.Path) -> None:
    jobs = Jobs()
    runs = made(jobs)
    assert list(runs) == [BEFORE, SAME, "resumed-1"]
    assert jobs.made == [f"{BEFORE} on 2", f"{SAME} on 2", "resumed-1 on 1"]
    assert jobs.found == {BEFORE: [], SAME: ["step-30"], "resumed-1": ["step-30"]}
    assert all(seal.holds(folder) and not (folder / "checkpoints").exists() for folder in runs.values())
    assert made(jobs) == runs and len(jobs.made) == 3
    assert sorted(path.name for path in (tmp_path / CACHE).iterdir()) == sorted(path.name for path in runs.values())
    log = next((runs[SAME] / "events").glob("**/*.jsonl"))
    log.write_text(log.read_text() + json.dumps({"event": "started"}) + "\n")
    assert made(jobs) == runs and len(jobs.made) == 6, "what was changed meanwhile is made again"
    assert all(seal.holds(folder) for folder in runs.values())
    forget_fault_free(plan_of(), tmp_path)
    assert not any(folder.exists() for folder in runs.values())
    noisy = Jobs(noise=1e-3)  # it does not compute the same twice, and goes on three times
    runs = made(noisy)
    assert list(runs) == [BEFORE, SAME, "resumed-1", "resumed-2", "resumed-3"] and len(noisy.made) == 5
    assert made(noisy) == runs and len(noisy.made) == 5


@pytest.mark.parametrize("name", [BEFORE, SAME, "resumed-1"])
@pytest.mark.parametrize("times", [1, 2])
def test_one_that_did_something_else_is_made_again_once_and_then_named(
    name: str, times: int, job_of: Callable[..., Resumed], alone: pathlib.Path
) -> None:
    jobs, observer = Jobs(late={name: times}), Notes()
    runs = job_of(jobs, observer).runs(alone)
    assert len(jobs.made) == 4 and len(observer.notes) == 1 and "It is made again." in observer.notes[0]
    run, fault_free = load(simulate(JOB, SHRINKS, 5)), timeline.load(alone)
    why = broken_by(run, fault_free, {each: timeline.load(folder) for each, folder in runs.items()})
    assert why.startswith(f"{name}: it ") if times > 1 else not why, why
    again = job_of(jobs).runs(alone)
    assert again == runs and len(jobs.made) == (4 if times == 1 else 7), "what is kept is checked when it is taken"


def test_one_more_goes_on_from_another_save_where_the_same_one_would_repeat_itself(
    job_of: Callable[..., Resumed], alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    job = job_of(jobs := Jobs())
    job.runs(alone)
    known = {"resumed-1"}
    for name, step in (("resumed-at-20", 20), ("resumed-at-40", 40)):
        made = job.another(alone, known)
        assert made is not None and made[0] == name and jobs.found[name] == [f"step-{step}"]
        known.add(name)
    assert len(jobs.made) == 7 and job.another(alone, {"resumed-1"}) is not None and len(jobs.made) == 7
    forget_fault_free(plan_of(), tmp_path)
    noisy = job_of(Jobs(noise=1e-3))
    noisy.runs(alone)
    another = noisy.another(alone, {"resumed-1", "resumed-2", "resumed-3"})
    assert another is not None and another[0] == "resumed-4"


@pytest.mark.parametrize("name", [BEFORE, SAME, "resumed-1"])
def test_one_that_fails_is_told_and_leaves_nothing(made: Made, name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ChaosError, match=r"fault-free run .* the save of step 30, \d nodes?: failed: as told"):
        made(Jobs(ends={name: "failed"}))
    assert not list((tmp_path / CACHE).glob("*.*")) and not list((tmp_path / CACHE).glob(f"*{name}"))


TRAINER = """
import json, pathlib, sys, time
from harness.node.emitter import Emitter
folder = pathlib.Path(sys.argv[1]) / "checkpoints"
emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
emit("started")
emit("rendezvous", world_size=1)
saved = sorted(folder.glob("*.json"))
step = json.loads(saved[-1].read_text())["step"] if saved else 0
emit("restored", step=step, source="x" if step else "scratch", fallback=[])
for step in range(step + 1, 41):
    begin = time.monotonic_ns()
    time.sleep(0.002)
    emit("step", step=step, begin_ns=begin, loss=1 / step)
    if step % 10 == 0:
        (folder / f"{step:03d}.json").write_text(json.dumps({"step": step}))
        emit("checkpoint.committed", step=step, kind="periodic", path="", bytes=1, duration_ns=1)
emit("exiting", code=0, reason="completed", step=40)
"""


@pytest.mark.slow
def test_real_jobs_stop_at_the_save_and_go_on_from_it(tmp_path: pathlib.Path) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    root = str(pathlib.Path(__file__).resolve().parents[2])
    own = {"command": ["{python}", "-S", str(trainer), "{run_dir}"], "env": {"PYTHONPATH": root}}
    alone = plan_of().model_dump() | {"run_id": f"resumed-{os.getpid()}-{time.monotonic_ns():x}", "faults": []}
    plan = Plan.model_validate(alone | {"workload": {"trainer": own, "nodes": 1, "steps": 40}})
    fault_free = tmp_path / "alone"
    execute(plan.without_faults(f"{plan.run_id}-alone"), fault_free, BACKEND)
    job = Resumed(plan, Resize(20, 1), timeline.load(fault_free), tmp_path, BACKEND, SILENT_CAMPAIGN, StopRequest())
    runs = {name: timeline.load(folder) for name, folder in job.runs(fault_free).items()}
    assert list(runs) == [BEFORE, SAME, "resumed-1"]
    assert runs[BEFORE].outcome == "interrupted" and runs[BEFORE].reached_step == max(committed(runs[BEFORE])) == 20
    for name in (SAME, "resumed-1"):
        assert runs[name].outcome == "completed" and runs[name].steps.step.tolist() == [*range(21, 41)]
