"""Checks that the runs that were made for comparison with the judged run are as the harness requested.

A comparison run with another seed or other code than the judged run proves nothing about the judged run. For a judged
run that changed its number of nodes, the harness makes fault-free runs that stop at a checkpoint or resume from one.
The losses of a comparison run that resumed from another checkpoint than requested cannot be compared.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from harness.log.planned_size import PlannedSize
from harness.timeline.save_events import COMMITTED
from harness.timeline.timeline import Timeline

JOB = {"args": "arguments", "data": "training data", "checkpoint": "checkpoints"}
TELLS = {"tells", "read", "observe", "digest", "scenario_dir"}  # options for watching a trainer, and its folder
CODE = {"source_digest": "by other code", "image_digest": "with another image", "torch": "with another torch"}
RESUMED = "resumed-"  # prefix of the folders of runs that stop at a save or resume
BEFORE, SAME = RESUMED + "before", RESUMED + "same"
AT = re.compile(rf"{RESUMED}at-(\d{{1,18}})\Z")  # folder of a run that resumes from another save


@dataclass(frozen=True)
class Asked:
    """The harness's request for a comparison run, which does the job of the judged run without faults."""

    plan: Mapping[str, Any]  # from the log of the judged run
    environment: Mapping[str, Any] = field(default_factory=dict)  # from the same log
    nodes: int | None = None  # number of nodes, if not as planned
    ranks_count: bool = False  # the judged run had as many ranks as planned, so this run must, too
    resumes_at: int | None = None  # step of the save that the run must resume from; 0: no save; `None`: any
    stops_at: int | None = None  # step of the save at which the run must stop; `None`: it does all steps

    @classmethod
    def by(cls, run: Timeline, **more: Any) -> Self:
        as_planned = bool(run.epochs) and run.epochs[0].size == run.planned_size.world_size
        return cls(run.plan, run.environment, ranks_count=as_planned, **more)

    def broken_by(self, made: Timeline) -> str:
        """Returns how the run `made` differs from the request, such as "it has another seed", or "" if it does not."""
        return next((why for part in (self._job, self._saves) for why in part(made)), "")

    def _job(self, made: Timeline) -> Iterator[str]:
        mine, other = self.plan, made.plan
        if mine.get("seed") != other.get("seed"):
            yield "it has another seed"
        if _differ(mine.get("backend"), other.get("backend")):
            yield "it has another backend"
        jobs = mine.get("workload") or {}, other.get("workload") or {}
        if _differ(*map(command_of, jobs)):
            yield "it has another command"
        for name, words in JOB.items():
            if all(jobs) and jobs[0].get(name) != jobs[1].get(name):
                yield f"it has other {words}"
        size, made_size = PlannedSize.of(self.plan), made.planned_size
        nodes = size.max_nodes if self.nodes is None else self.nodes
        if None not in (nodes, made_size.max_nodes):
            if (nodes, size.ranks_per_node) != (made_size.max_nodes, made_size.ranks_per_node):
                yield "it has another number of ranks"
            elif self.ranks_count and made.epochs and made.largest_world != made_size.world_size:
                yield f"its world had {made.largest_world} ranks, not {made_size.world_size}"
        for name, words in CODE.items():
            if _differ(self.environment.get(name), made.environment.get(name)):
                yield f"it was made {words}"

    def _saves(self, made: Timeline) -> Iterator[str]:
        if self.resumes_at is not None:
            yield from _resumed_elsewhere(made, self.resumes_at)
        if self.stops_at is not None and (newest := max(committed(made), default=0)) != self.stops_at:
            yield f"it was stopped at {_save(newest)}, not at {_save(self.stops_at)}"


def committed(run: Timeline) -> set[int]:
    """Returns the steps of all checkpoints that were logged as committed or, if there are none, of the checkpoints that
    the harness saw."""
    told = {event["step"] for event in run.checkpoints if event["event"] == COMMITTED}
    return told or {event["step"] for event in run.published if type(event.get("step")) is int}


def _resumed_elsewhere(made: Timeline, step: int) -> Iterator[str]:
    told = {process.restored_step for process in made.processes if process.restored_step is not None}
    for other in sorted(told - {step}):
        yield f"it went on from {_save(other)}, not from {_save(step)}"
    first = int(made.steps.step.min()) if len(made.steps) else None
    if step and first is not None and not told and not step < first <= step + made.stride:
        yield f"its first step was {first}, which does not follow {_save(step)}"


def command_of(job: Mapping[str, Any]) -> Any:
    """Returns a trainer's command and options from the plan's workload `job`, or `None` for the reference trainer."""
    trainer = job.get("trainer")
    return {name: trainer[name] for name in trainer.keys() - TELLS} if isinstance(trainer, Mapping) else None


def _save(step: int) -> str:
    return f"the save of step {step}" if step else "no save"


def _differ(mine: Any, other: Any) -> bool:
    return None not in (mine, other) and mine != other


class Resize(NamedTuple):
    """A restart, from the checkpoint of step `step`, that changed the job's number of nodes to `nodes`."""

    step: int
    nodes: int


def resize(run: Timeline, fault_free: Timeline | None) -> Resize | None:
    """Returns the first restart on another number of nodes. `step` is that of the last checkpoint before the restart,
    by the fault-free run or, without one, by the plan."""
    size = run.planned_size
    for epoch in run.epochs[1:]:
        nodes, rest = divmod(epoch.size, size.ranks_per_node)
        if epoch.kept >= epoch.first > 1 and epoch.size != size.world_size and not rest:
            step = epoch.first - 1
            saves = [save for save in committed(fault_free) if 0 < save <= step] if fault_free else []
            return Resize(max(saves, default=step - step % (run.saves_every or 1) or step), nodes)
    return None


def asked_of(name: str, run: Timeline, at: Resize) -> Asked:
    if name == BEFORE:
        return Asked.by(run, resumes_at=0, stops_at=at.step)
    if name == SAME:
        return Asked.by(run, resumes_at=at.step)
    other = AT.match(name)
    return Asked.by(run, nodes=at.nodes, resumes_at=int(other[1]) if other else at.step)


def broken_by(run: Timeline, fault_free: Timeline | None, made: Mapping[str, Timeline]) -> str:
    """Returns a text on the first run in `made` that is not as requested, or "" if all are as requested."""
    at = resize(run, fault_free) if made else None
    if at is None:
        return f"{next(iter(made))} changed its size, and the run did not" if made else ""
    broken = ((name, asked_of(name, run, at).broken_by(other)) for name, other in made.items())
    return next((f"{name}: {why}" for name, why in broken if why), "")
