"""Runs an unchanged trainer for a short time without faults, to learn its speed, its checkpoints and what it logs."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.adopt.mesh_seen import mesh_of
from harness.backends.contract import Backend
from harness.campaign.campaign_observers import CampaignObserver, Stage, Together, staged
from harness.errors import ChaosError
from harness.evidence import reported, samples
from harness.evidence.usual import others_share
from harness.log.event_log import Tail
from harness.node.emitter import Axis
from harness.plan.run_plan import Plan
from harness.run.job import run_job
from harness.run.last_words import first_error
from harness.run.observers import Status
from harness.run.stop import StopRequest
from harness.timeline import timeline

POLL_S = 0.5
SAVE_WAIT_S = 120.0  # for the first checkpoint, once the steps were seen
PASS_WAIT_S = 60.0  # for the end of the first pass over the data, since the first step


@dataclass(frozen=True)
class Facts:
    steps_seen: int
    steps_total: int | None  # of the whole job; `None`: it had not ended yet
    start_s: float  # from the launch to the first step
    step_s: float  # the median
    saves: tuple[int, ...]  # the steps of which a checkpoint was committed
    files: tuple[str, ...]  # the newest checkpoint's, as the trainer named them
    told: frozenset[str]  # see `harness.evidence.reported.ITEMS`
    pass_steps: int = 0  # in one pass over the data; 0: not known
    ranks: int = 1  # that came up as one world
    elastic: bool = False  # it goes on with fewer replicas, in the same processes, as torchft does
    mesh: Mapping[Axis, int] = field(default_factory=dict)  # as all ranks told it; see `no_mesh` if empty
    no_mesh: str = ""  # why there is none
    began_anew: int = 0  # the save that was there when a process started again from the first step
    same_loss: float | None = None  # the loss of every step, if all have the same
    others: float = 0.0  # share (0 to 1) of the host's CPUs that other programs took during the start

    @property
    def save_every(self) -> int | None:
        """Returns the number of steps between the first two checkpoints. If there is only one checkpoint, returns the
        checkpoint's step."""
        if not self.saves:
            return None
        return self.saves[1] - self.saves[0] if len(self.saves) > 1 else self.saves[0]


class _Passes:
    def __init__(self) -> None:
        self.told = self.over = False
        self._samples, self._epochs = set[int](), set[int]()

    def hear(self, step: Mapping[str, Any]) -> None:
        if (epoch := step.get("epoch")) is not None:
            self._epochs.add(epoch)
        of_step = [index for first, *more in step.get("samples") or () for index in _expanded(first, *more)]
        self.told |= bool(of_step) or epoch is not None
        self.over |= len(self._epochs) > 1 or 2 * len(self._samples.intersection(of_step)) > len(of_step)
        self._samples.update(of_step)


def _expanded(first: int, count: int = 1, stride: int = 1) -> range:
    return range(first, first + count * stride, stride)


class _Enough(Together):
    """Stops the job if a worker fails before the first step, because a launcher could restart the worker endlessly."""

    def __init__(
        self, observer: CampaignObserver, events: pathlib.Path, steps: int, user: StopRequest, job: StopRequest
    ):
        super().__init__(observer)
        self._steps, self._user, self._job = steps, user, job
        self._tail = Tail(events)
        self._looked = self._since = self._began = 0.0
        self._saved = self.failed = False
        self._passes = _Passes()

    def status(self, status: Status) -> None:
        super().status(status)
        if self._user.asked:
            self._job.ask(self._user.reason)
        now = time.monotonic()
        if now - self._looked < POLL_S:
            return
        self._looked = now
        told = [event for _, event in self._tail.poll()]
        self._saved |= any(event["event"] == "checkpoint.committed" for event in told)
        if not status.step and any(event["event"] == "worker.exit" and event.get("code") for event in told):
            self.failed = True
            self._job.ask("a worker failed before the first step")
        for event in told:
            if event["event"] == "step" and not self._passes.over:
                self._passes.hear(event)
        self._began = self._began or (now if status.step else 0.0)
        if status.step < self._steps:
            return
        in_pass = self._passes.told and not self._passes.over
        waits = [(SAVE_WAIT_S, "first checkpoint")] if not self._saved else []
        waits += [(PASS_WAIT_S + self._began - now, "end of the first pass over the data")] if in_pass else []
        if not self._since and waits:
            most, what = max(waits)
            self.note(f"  {status.step} steps were seen; waiting for the {what}, for at most {max(0, most):.0f} s")
        self._since = self._since or now
        if (self._saved or now - self._since > SAVE_WAIT_S) and (not in_pass or now - self._began > PASS_WAIT_S):
            self._job.ask("enough was seen")


def look(
    plan: Plan, run_dir: pathlib.Path, backend: Backend, steps: int, observer: CampaignObserver, stop: StopRequest
) -> Facts:
    """Runs the plan's workload for about `steps` steps. Raises `ChaosError` if the job fails or logs no step."""
    job, stage = StopRequest(), Stage("first look", plan.workload.nodes)
    enough = _Enough(observer, run_dir / "events", steps, stop, job)
    outcome = staged(observer, stage, lambda: run_job(plan, [], run_dir, backend, enough, job))
    if stop.asked:
        raise KeyboardInterrupt
    where = f"Its output is in {run_dir / 'logs'}"
    if enough.failed:
        why = first_error([*(run_dir / "logs").iterdir()])
        raise ChaosError(f"a worker failed before the first step: {why}. {where}")
    run = timeline.load(run_dir)
    seen = f"after step {run.reached_step}" if len(run.steps) else "without one step that could be observed"
    if outcome.outcome in ("failed", "aborted") or not len(run.steps):
        raise ChaosError(f"{seen} the job {outcome.outcome}: {outcome.reason}. {where}")
    return facts_of(run)


def facts_of(run: timeline.Timeline) -> Facts:
    committed = [event for event in run.checkpoints if event["event"] == "checkpoint.committed"]
    saves = sorted({int(event["step"]) for event in committed if event.get("step") is not None})
    newest = committed[-1] if committed else {}
    files = newest.get("paths") or newest.get("path") or ()
    ends = run.progress.end
    gaps = [float(b - a) / 1e9 for a, b in itertools.pairwise(ends)]
    started = min((process.launched for process in run.processes), default=run.begin)
    first = int(ends[0]) if len(ends) else started
    ranks = max((epoch.size for epoch in run.epochs), default=1)
    losses = run.steps.loss[np.isfinite(run.steps.loss)]
    mesh, no_mesh = mesh_of({process.rank: process.coordinates for process in run.processes}, ranks)
    return Facts(
        steps_seen=run.reached_step,
        steps_total=run.reached_step if run.outcome == "completed" else None,
        start_s=max(0.0, (first - started) / 1e9),
        step_s=statistics.median(gaps) if gaps else 0.0,
        saves=tuple(saves),
        files=(files,) if isinstance(files, str) else tuple(str(each) for each in files),
        told=reported.told(run),
        pass_steps=_pass_steps(run),
        ranks=ranks,
        mesh=mesh,
        no_mesh=no_mesh,
        began_anew=_began_anew(run, committed),
        same_loss=float(losses[0]) if len(losses) > 1 and np.ptp(losses) == 0 else None,
        others=others_share(run, started, first),
    )


def _began_anew(run: timeline.Timeline, committed: Sequence[Mapping[str, Any]]) -> int:
    first = min((p.first_step for p in run.processes if p.first_step is not None), default=0)
    anew = (p for p in run.processes if p.restored is None or p.restored_step == 0)  # else its step may be unknown
    again = [process.started for process in anew if process.first_step == first]
    return max((int(e.get("step") or 0) for e in committed if any(e["at"] < started for started in again)), default=0)


def _pass_steps(run: timeline.Timeline) -> int:
    if ends := samples.pass_ends(run, samples.told_kind(run, None)):
        return ends[0]
    steps = run.steps
    first = np.flatnonzero(steps.step == steps.step.min(initial=1))
    told = first[steps.samples[first] >= 0]
    of_ranks = int(run.samples.counts(steps.samples[told]).sum())
    batch = of_ranks or max(steps.count[first].tolist(), default=0)
    return -(-run.data_samples // batch) if run.data_samples and batch > 0 else 0
