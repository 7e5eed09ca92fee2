"""A short run without faults, to learn about an unchanged trainer: the kinds it tells, its speed, its saves."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time
from dataclasses import dataclass

import numpy as np

from harness.backends.contract import Backend
from harness.campaign.campaign_observers import CampaignObserver, Stage, Together, staged
from harness.errors import ChaosError
from harness.judge.facts import reported, samples
from harness.log.event_log import Tail
from harness.plan.run_plan import Plan
from harness.run.job import run_job
from harness.run.observers import Status
from harness.run.stop import StopRequest
from harness.timeline import timeline

POLL_S = 0.5
SAVE_WAIT_S = 120.0  # for the first checkpoint, once the steps were seen
WAIT = f"for at most {SAVE_WAIT_S:.0f} s"


@dataclass(frozen=True)
class Facts:
    """The findings of a first look. Times are in seconds."""

    steps_seen: int
    steps_total: int | None  # of the whole job; `None`: it had not ended yet
    start_s: float  # from the launch to the first step
    step_s: float  # the median
    saves: tuple[int, ...]  # the steps of which a checkpoint was committed
    files: tuple[str, ...]  # the newest checkpoint's, as the trainer named them
    told: frozenset[str]  # see `harness.judge.facts.reported.ITEMS`
    pass_steps: int = 0  # in one pass over the data; 0: not known
    elastic: bool = False  # it goes on with fewer replicas, in the same processes, as torchft does

    @property
    def save_every(self) -> int | None:
        """Returns the steps from one checkpoint to the next; if there is only one, its step."""
        if not self.saves:
            return None
        return self.saves[1] - self.saves[0] if len(self.saves) > 1 else self.saves[0]


class _Enough(Together):
    """Passes the status on, and asks for the end once the steps were seen, and a checkpoint or a long wait for it."""

    def __init__(
        self, observer: CampaignObserver, events: pathlib.Path, steps: int, user: StopRequest, job: StopRequest
    ):
        super().__init__(observer)
        self._steps, self._user, self._job = steps, user, job
        self._tail = Tail(events)
        self._looked = self._since = 0.0
        self._saved = False

    def status(self, status: Status) -> None:
        super().status(status)
        if self._user.asked:
            self._job.ask(self._user.reason)
        now = time.monotonic()
        if now - self._looked < POLL_S:
            return
        self._looked = now
        self._saved |= any(event["event"] == "checkpoint.committed" for _, event in self._tail.poll())
        if status.step < self._steps:
            return
        if not self._since and not self._saved:
            self.note(f"  {status.step} steps were seen; waiting for the first checkpoint, {WAIT}")
        self._since = self._since or now
        if self._saved or now - self._since > SAVE_WAIT_S:
            self._job.ask("enough was seen")


def look(
    plan: Plan, run_dir: pathlib.Path, backend: Backend, steps: int, observer: CampaignObserver, stop: StopRequest
) -> Facts:
    """Runs the plan's workload for about `steps` steps. Raises `ChaosError` when they cannot be observed."""
    job, stage = StopRequest(), Stage("first look", plan.workload.nodes)
    enough = _Enough(observer, run_dir / "events", steps, stop, job)
    outcome = staged(observer, stage, lambda: run_job(plan, [], run_dir, backend, enough, job))
    if stop.asked:
        raise KeyboardInterrupt
    run = timeline.load(run_dir)
    seen = f"after step {run.reached_step}" if len(run.steps) else "without one step that could be observed"
    if outcome.outcome in ("failed", "aborted") or not len(run.steps):
        where = f"Its output is in {run_dir / 'logs'}"
        raise ChaosError(f"{seen} the job {outcome.outcome}: {outcome.reason}. {where}")
    return facts_of(run)


def facts_of(run: timeline.Timeline) -> Facts:
    """Reads the facts from the log of a run without faults. Pure."""
    committed = [event for event in run.checkpoints if event["event"] == "checkpoint.committed"]
    saves = sorted({int(event["step"]) for event in committed if event.get("step") is not None})
    newest = committed[-1] if committed else {}
    files = newest.get("paths") or newest.get("path") or ()
    ends = run.progress.end
    gaps = [float(b - a) / 1e9 for a, b in itertools.pairwise(ends)]
    started = min((process.launched for process in run.processes), default=run.begin)
    first = int(ends[0]) if len(ends) else started
    return Facts(
        steps_seen=run.reached_step,
        steps_total=run.reached_step if run.outcome == "completed" else None,
        start_s=max(0.0, (first - started) / 1e9),
        step_s=statistics.median(gaps) if gaps else 0.0,
        saves=tuple(saves),
        files=(files,) if isinstance(files, str) else tuple(str(each) for each in files),
        told=reported.told(run),
        pass_steps=_pass_steps(run),
    )


def _pass_steps(run: timeline.Timeline) -> int:
    """Returns the steps of the first pass over the data, estimated from its samples if the look was shorter."""
    if ends := samples.pass_ends(run, samples.told_kind(run, None)):
        return ends[0]
    steps = run.steps
    first = np.flatnonzero(steps.step == steps.step.min(initial=1))
    told = first[steps.samples[first] >= 0]
    of_ranks = int(run.samples.counts(steps.samples[told]).sum())
    batch = of_ranks or max(steps.count[first].tolist(), default=0)
    return -(-run.data_samples // batch) if run.data_samples and batch > 0 else 0
