"""Reads and runs a suite of training jobs, on which diagnosers are graded.

    version: 1
    name: who-was-it
    title: Faults on random ranks and nodes, and jobs without a fault
    stacks:
      ddp:
        workload: {trainer: {torchrun: train.py}, nodes: 4, steps: 200}
        answers: [told, {read: torchelastic, files: launcher}]   # beside those of the baseline
    jobs:
      - name: kills
        stack: ddp
        repeat: 20
        faults: [{id: kill, fault: rank_kill, when: {step: 50}, target: {rank: any}}]
      - {name: healthy, stack: ddp, repeat: 20}

The seed decides which ranks and nodes the faults hit. Each repetition of a job is a run with a seed of its own. All
runs are kept, and `chaos diagnose` with the same seed makes only the missing runs. The suite makes no fault-free runs
for comparison, and grades only the diagnosers' answers.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import Field

from harness.backends.contract import Backend
from harness.campaign.checked_files import score_bounds
from harness.diagnosis.answer import Answer
from harness.diagnosis.built_in import DIAGNOSERS
from harness.diagnosis.injected import RunTruth
from harness.diagnosis.readers.contract import build_reader, read_answers
from harness.errors import ChaosError, EventLogError, UsageError, choice
from harness.log import reading, untrusted_files
from harness.log.journal import is_closed, is_running
from harness.parameters import Parameters
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.run.job import execute
from harness.run.observers import Silent
from harness.run.stop import StopRequest
from harness.spec.document import Document, MarkedMap, read_text
from harness.spec.scenario import REPEAT_MAX, Line, Name, Scenario, scenario_of

KEY = "jobs"  # which only such files have at their top
FOLDER = "diagnosis"  # among the scenarios
BASELINE = "baseline"
OF_A_JOB = ("faults", "abort", "limits")  # keys as in a scenario
Answerer = Callable[[RunTruth, pathlib.Path], list[Answer]]  # takes a run's folder, too


class Told(Parameters):
    """A diagnoser's answer files in a run's folder: the reader for the files (`read`), and their path (`files`)."""

    read: str | dict[str, Any]
    files: Line

    @property
    def name(self) -> str:
        return self.read if isinstance(self.read, str) else next(iter(self.read))

    def answers(self, truth: RunTruth, folder: pathlib.Path) -> list[Answer]:
        """Returns the answers in a run's files, or an empty list without files. Raises `AnswersError` for invalid
        files."""
        reader, place = build_reader(yaml.safe_dump(self.read)), folder / self.files
        return read_answers(place, reader) if reader.finds(place) else []


class Stack(Parameters):
    """A training stack of a suite: a trainer with its workload, and the diagnosers whose answers are graded. `workload`
    has the same keys as in a scenario file."""

    title: Line = ""
    workload: dict[str, Any]
    answers: list[Literal["alarms", "told"] | Told] = Field([], max_length=20)

    def answerers(self) -> dict[str, Answerer]:
        found = {each: _built_in(each) for each in (BASELINE, *self.answers) if isinstance(each, str)}
        return found | {each.name: each.answers for each in self.answers if isinstance(each, Told)}


def _built_in(name: str) -> Answerer:
    return lambda truth, folder: DIAGNOSERS[name](truth, 1)


class Job(Parameters):
    """One job of a suite. `faults`, `abort` and `limits` are written as in a scenario file. A job without faults is a
    fault-free control."""

    name: Name
    stack: Name
    repeat: int = Field(1, ge=1, le=REPEAT_MAX)
    steps: int | None = Field(None, ge=1)
    faults: list[Any] = Field([])
    abort: dict[str, Any] = Field({})
    limits: dict[str, Any] = Field({})


class Suite(Parameters):
    version: Literal[1]
    name: Name
    title: Line
    stacks: dict[Name, Stack]
    jobs: list[Job] = Field(min_length=1, max_length=1000)


@dataclass(frozen=True)
class Run:
    """One planned run of a suite's job. `name` is the name of the run's folder."""

    name: str
    job: Job
    stack: Stack
    plan: Plan


def is_suite(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def load_runs(path: pathlib.Path, seed: int, backend: str) -> tuple[Suite, list[Run]]:
    """Reads a suite and plans its runs. Raises `ScenarioError` for an invalid suite."""
    document = Document(read_text(path), str(path))
    suite = document.valid(Suite, document.data)
    root, runs = document.data, []
    for place, job in enumerate(suite.jobs):
        if job.stack not in suite.stacks:
            document.problem((KEY, place, "stack"), f"unknown stack {job.stack!r}; {choice(job.stack, suite.stacks)}")
            document.raise_problems()
        spec = _scenario(document, root, place, path)
        for number in range(job.repeat):
            plan = make_plan(spec, seed * REPEAT_MAX + number, backend, f"{job.name}-{seed}-{number + 1}")
            runs.append(Run(plan.run_id, job, suite.stacks[job.stack], plan.as_control()))
    if len({run.name for run in runs}) < len(runs):
        raise UsageError(f"{path}: two jobs have the same name")
    return suite, runs


def _scenario(document: Document, root: Any, place: int, path: pathlib.Path) -> Scenario:
    """Returns a job of the suite as a scenario, so that error messages give each value's place in the suite's file."""
    job = root[KEY][place]
    workload = root["stacks"][job["stack"]]["workload"]
    if "steps" in job:
        workload = MarkedMap({**workload, "steps": job["steps"]}, {**workload.marks, "steps": job.marks["steps"]})
    given = {key: job[key] for key in OF_A_JOB if key in job}
    head = {"version": 1, "name": job["name"], "title": f"{root['title']}: {job['name']}", "workload": workload}
    document.data = MarkedMap({**head, **given}, {**dict.fromkeys(head, document.mark((KEY, place))), **job.marks})
    try:
        return scenario_of(document, path.parent.absolute(), score_bounds())
    finally:
        document.data = root


def run_suite(
    runs: Sequence[Run], folder: pathlib.Path, backend: Backend, stop: StopRequest, tell: Callable[[str], None]
) -> None:
    """Executes the missing runs of a suite until the user stops the command. If a run fails with an error, the next run
    follows."""
    for number, run in enumerate(runs, 1):
        place = folder / run.name
        if is_made(place):
            continue
        tell(f"{number} of {len(runs)}: {run.name}")
        if place.exists():
            if is_running(place) or not is_closed(place):
                raise UsageError(f"{place}: this run goes on, or is not undone yet: chaos heal {place}")
            untrusted_files.remove_tree(folder, run.name)
        check_capabilities(run.plan, backend.probe())
        folder.mkdir(parents=True, exist_ok=True)
        try:
            execute(run.plan, place, backend, Silent(), stop)
        except (ChaosError, OSError) as error:
            tell(f"{run.name}: {error}")
        if stop.asked:
            return
        for left in ("checkpoints", "delivered.zip"):
            with contextlib.suppress(ChaosError, OSError):
                untrusted_files.remove_tree(place, left)


def is_made(place: pathlib.Path) -> bool:
    """Returns True if a stored run finished without interruption, even if its job failed."""
    with contextlib.suppress(EventLogError, OSError):
        harness = reading.read(place / "events").harness
        last = [event for event in harness.events if event["event"] == "run.finished"] if harness else []
        return bool(last) and last[-1].get("outcome") != "interrupted"
    return False


def made(runs: Sequence[Run], folder: pathlib.Path) -> list[tuple[Run, pathlib.Path]]:
    return [(run, folder / run.name) for run in runs if is_made(folder / run.name)]
