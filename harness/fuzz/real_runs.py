"""Runs schedules of faults as real jobs, and returns the outcome of each run. The runs are stored with all other runs,
so that `chaos show` finds them."""

from __future__ import annotations

import bisect
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from harness.backends.contract import Backend
from harness.campaign.experiment import new_run_id, run_experiment
from harness.campaign.wings import sections_of
from harness.errors import CannotRunError, ChaosError, UsageError
from harness.evidence.logs import load_evidence
from harness.fuzz.outcome import Outcome, Strike
from harness.fuzz.schedules import Base, Schedule
from harness.fuzz.search import Ended
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log import untrusted_files
from harness.report import write_reports
from harness.run.stop import StopRequest
from harness.timeline.timeline import FaultRecord, Timeline

SAVING, BEFORE = "saving", "before the first step"
BROKEN_MAX = 3  # runs in a row that ended with an error of the harness or the backend


@dataclass
class RealRuns:
    """Runs schedules of faults, one after the other, and judges each run. Deletes the folders of runs that pass."""

    base: Base
    reports: pathlib.Path
    backend: Backend
    stop: StopRequest
    tell: Callable[[str], object]
    broken: int = field(default=0, init=False)
    count: int = field(default=0, init=False)

    def __call__(self, schedule: Schedule) -> Outcome:
        """Runs the job under one schedule of faults. Raises `Ended` if the user stopped the run, and `ChaosError` if no
        run is possible."""
        begin = time.monotonic()
        plan = self.base.plan(schedule, new_run_id(self.base.name))
        try:
            run_dir, interrupted = run_experiment(plan, self.reports, self.backend, stop=self.stop)
            if interrupted:
                raise Ended
            card = judge(load_evidence(run_dir), run_dir.name)
            write_reports(card, run_dir, sections_of)
        except (UsageError, CannotRunError):
            raise
        except ChaosError as error:
            self.broken += 1
            if self.broken >= BROKEN_MAX:
                raise
            outcome = Outcome(verdict=Verdict.INVALID, reason=str(error), run=plan.run_id)
        else:
            self.broken = 0
            outcome = outcome_of(card)
        self._remove(outcome)
        self.count += 1
        seconds = round(time.monotonic() - begin, 1)
        what = outcome.reason if outcome.verdict is not Verdict.PASS else ""
        self.tell(f"run {self.count}, {seconds:.0f} s: {outcome.verdict} {what}")
        return msgspec.structs.replace(outcome, seconds=seconds)

    def _remove(self, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.PASS:
            untrusted_files.remove_tree(self.reports, outcome.run)


def outcome_of(card: Scorecard) -> Outcome:
    """Returns the outcome of a judged run. Raises `CannotRunError` if no fault was injected, because the job failed in
    its fault-free run."""
    run = card.evidence.run
    reason = card.reasons[0] if card.reasons else ""
    if not run.plan.get("faults"):
        raise CannotRunError(f"the job does not complete without a fault, so nothing can be searched: {reason}")
    codes = dict.fromkeys(each.code for each in card.findings if each.verdict is Verdict.FAIL)
    strikes = [Strike(fault.id, fault.kind, phase_at(run, at)) for fault in run.faults if (at := _acted(fault))]
    unacted = [fault.kind for fault in run.faults if fault.error or any(not each.get("ok") for each in fault.effects)]
    verdict = card.verdict
    if verdict is Verdict.FAIL and (late := _too_late(run)):
        verdict, reason = Verdict.INCONCLUSIVE, f"{late}; the run fails: {reason}"
    return Outcome(
        verdict=verdict,
        codes=tuple(codes),
        reason=reason,
        strikes=tuple(strikes),
        unacted=tuple(dict.fromkeys(unacted)),
        run=card.run_id,
    )


def _too_late(run: Timeline) -> str:
    steps = (run.plan.get("workload") or {}).get("steps")
    if not isinstance(steps, int) or run.reached_step < steps or not len(run.progress):
        return ""
    last = int(run.progress.end[-1])
    acting = [
        fault.id
        for fault in run.faults
        if not fault.kills and fault.injected is not None and fault.injected <= last
        if fault.healed is None or fault.healed > last
    ]
    if not acting:
        return ""
    return f"fault {acting[0]} still acted when the job had done its last step"


def _acted(fault: FaultRecord) -> int | None:
    if fault.error or fault.injected is None or not all(each.get("ok") for each in fault.effects):
        return None
    return min(fault.strikes, default=fault.injected)


def phase_at(run: Timeline, moment: int) -> str:
    """Returns the job's phase just before `moment`, or `saving` if the job ran steps while it saved a checkpoint."""
    first = int(run.progress.end[0]) if len(run.progress) else run.end
    place = bisect.bisect_left(run.segments, moment, key=lambda segment: segment.end)
    phase = run.segments[place].phase if place < len(run.segments) else "finish"
    if moment <= first:
        return f"{phase} {BEFORE}"
    phase = "running" if phase == "interrupted_step" else phase
    return SAVING if phase == "running" and _saves(run, moment) else phase


def _saves(run: Timeline, moment: int) -> bool:
    open_: set[object] = set()
    for event in run.checkpoints:
        if event["at"] > moment:
            break
        (open_.add if event["event"] == "checkpoint.started" else open_.discard)(event.get("step"))
    return bool(open_)
