"""Runs one scenario: fault-free runs, then the run with faults. One folder holds all event logs of a scenario."""

import json
import pathlib
import random
import shutil
import time
from collections.abc import Iterable
from typing import Literal

from harness.backends.contract import Backend
from harness.campaign import seal
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, CampaignObserver, Stage, staged
from harness.campaign.checked_files import ASKED_PLAN
from harness.campaign.fault_free import (
    FaultFree,
    another_repeat,
    borrowed,
    copy_fault_free,
    ensure_fault_free,
    fault_free_plans,
    release,
    sweep,
)
from harness.campaign.resumed import Resumed, resize
from harness.campaign.wings import sections_of
from harness.errors import ChaosError, EventLogError, FaultError
from harness.evidence.logs import CALIBRATION, FAULT_FREE, load_evidence
from harness.evidence.made_as_asked import BEFORE, RESUMED, SAME
from harness.evidence.usual import Pace, Slow, Slowed, Usual
from harness.judge.bounds import PaceBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import guarantees
from harness.judge.score import Scorecard, judge
from harness.log import untrusted_files
from harness.plan.run_plan import Plan
from harness.report import write_files, write_reports
from harness.run.drill import CannotDrill
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.units import counted

MIN_FREE_BYTES = 200 * 2**20
REPEATS_MAX = 5  # most fault-free runs for one band
COPIES_MAX = 3  # most tries to copy a folder that others may be replacing


def run_experiment(
    plan: Plan,
    reports: pathlib.Path,
    backend: Backend,
    observer: CampaignObserver = SILENT_CAMPAIGN,
    stop: StopRequest | None = None,
) -> tuple[pathlib.Path, bool]:
    """Runs all jobs of a scenario, with faults and without.

    Returns the folder of the run, and True if the user stopped it. If a fault-free run does not complete, returns its
    folder, and does not make the run with faults.
    """
    guarantees()  # a plug-in that cannot be used is refused now, not after the run
    return _Experiment(plan, reports, backend, observer, stop or StopRequest()).run()


class _Experiment:
    def __init__(
        self, plan: Plan, reports: pathlib.Path, backend: Backend, observer: CampaignObserver, stop: StopRequest
    ):
        self.plan, self.reports, self.backend, self.observer, self.stop = plan, reports, backend, observer, stop
        self.run_dir = reports / plan.run_id

    def run(self) -> tuple[pathlib.Path, bool]:
        self.reports.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.reports).free
        if free < MIN_FREE_BYTES:
            raise ChaosError(f"{self.reports}: {free // 2**20} MiB free; a run needs {MIN_FREE_BYTES // 2**20} MiB")
        for problem in sweep(self.reports)[1]:
            self.observer.note(problem)
        # The run has its own copies from the start: another run may replace the stored fault-free runs.
        with borrowed(self.reports, self.plan.run_id, self._not_removed) as held:
            return self._run_beside(held)

    def _run_beside(self, held: pathlib.Path) -> tuple[pathlib.Path, bool]:
        for name, fault_free in fault_free_plans(self.plan).items():
            folder, outcome = self._fault_free_copy(fault_free, held / name)
            if outcome is not None and outcome.outcome != "completed":
                folder.rename(self.run_dir)
                release(folder)
                write_files({ASKED_PLAN: json.dumps(self.plan.to_json(), indent=2) + "\n"}, self.run_dir)
                return self.run_dir, outcome.outcome == "interrupted"
        before = _digests(held)
        plan = _with_its_steps(self.plan, held)
        kind: Literal["run with faults", "run"] = "run with faults" if plan.faults else "run"
        stage = Stage(kind, plan.workload.nodes, folder=self.run_dir, fault_free=held)
        given = (plan, self.run_dir, self.backend, self.observer, self.stop)
        outcome = staged(self.observer, stage, lambda: execute(*given))
        changed = _digests(held) != before
        for evidence in [] if changed else held.iterdir():
            evidence.rename(self.run_dir / evidence.name)
        if outcome.outcome != "completed":
            return self.run_dir, outcome.outcome == "interrupted"
        self._remove(self.run_dir, "checkpoints")
        if changed:
            self.observer.note("The copies of the fault-free runs were changed while the job ran: they are not used.")
        if not self.stop.asked and (changed or _at_another_pace(self.run_dir)) and self._renew():
            return self.run_dir, True
        self._resume()
        return self.run_dir, self.stop.asked

    def _fault_free_copy(self, fault_free: FaultFree, target: pathlib.Path) -> tuple[pathlib.Path, Outcome | None]:
        for _ in range(COPIES_MAX):
            folder, outcome = self._ensure(fault_free)
            completed = outcome is None or outcome.outcome == "completed"
            if not completed or copy_fault_free(folder, target):
                return folder, outcome
        raise ChaosError(f"{folder}: it changes again and again; another program may be writing to it")

    def _remove(self, folder: pathlib.Path, name: str) -> None:
        try:
            untrusted_files.remove_tree(folder, name)
        except FaultError as error:
            self._not_removed(error)

    def _not_removed(self, error: FaultError) -> None:
        self.observer.note(f"{error}. It can no longer be used.")

    def _ensure(self, fault_free: FaultFree, anew: bool = False) -> tuple[pathlib.Path, Outcome | None]:
        plan, repeat = fault_free
        stage = Stage("fault-free run", plan.workload.nodes, anew)
        self.observer.stage(stage)
        given = (plan, self.reports, self.backend, self.observer, self.stop)
        folder, outcome = ensure_fault_free(*given, anew=anew, repeat=repeat, before=self.plan)
        self.observer.stage_ended(stage, "cached" if outcome is None else outcome.outcome)
        return folder, outcome

    def _renew(self) -> bool:
        try:
            with borrowed(self.reports, self.plan.run_id, self._not_removed) as fresh:
                outcome = self._make_anew(fresh)
                for copied in fresh.iterdir() if outcome is None else ():
                    place, aside = self.run_dir / copied.name, self.run_dir / f".old-{copied.name}"
                    if place.exists():
                        place.rename(aside)
                    copied.rename(place)
                    self._remove(self.run_dir, aside.name)
                return outcome is not None and outcome.outcome == "interrupted"
        except (ChaosError, OSError) as error:  # the run itself is complete, whatever becomes of this
            self.observer.note(f"The fault-free runs could not be repeated: {error}")
            return False

    def _make_anew(self, fresh: pathlib.Path) -> Outcome | None:
        for name, fault_free in fault_free_plans(self.plan).items():
            folder, outcome = self._ensure(fault_free, anew=True)
            if outcome is not None and outcome.outcome != "completed":
                self._remove(folder.parent, folder.name)
                release(folder)
                return outcome
            if not copy_fault_free(folder, fresh / name):
                raise ChaosError(f"{folder} is gone; another run may be replacing it")
        return None

    def _resume(self) -> None:
        run, fault_free = timeline.load(self.run_dir), self.run_dir / FAULT_FREE
        at = resize(self.plan, run, timeline.load(fault_free))
        resumed = at and Resumed(self.plan, at, run, self.reports, self.backend, self.observer, self.stop)
        try:
            if resumed and not self.stop.asked:
                for name, folder in resumed.runs(fault_free).items():
                    copy_fault_free(folder, self.run_dir / name)
            while not self.stop.asked and self._make_one_more(resumed, fault_free):
                pass
        except (ChaosError, OSError, CannotDrill) as error:  # the run itself is complete, whatever becomes of this
            self.observer.note(f"Not all fault-free runs that this run is compared with could be made: {error}")

    def _make_one_more(self, resumed: Resumed | None, fault_free: pathlib.Path) -> bool:
        kind = RESUMED if resumed else CALIBRATION
        known = {path.name for path in self.run_dir.glob(f"{kind}*")} - {BEFORE, SAME}
        if len(known) >= REPEATS_MAX:
            return False
        findings = judge(load_evidence(self.run_dir), "").findings
        # Needed while too few fault-free runs show the width of the band that the run is outside of.
        if all(finding.doubt != "enough-repeats" for finding in findings):
            return False
        self.observer.note(f"Its losses are outside of the band from {counted(len(known), 'fault-free run')}: one more")
        if resumed:
            made = resumed.another(fault_free, known)
            return made is not None and copy_fault_free(made[1], self.run_dir / made[0])
        target = self.run_dir / f"{CALIBRATION}{len(known) + 1}"
        _, outcome = self._fault_free_copy(another_repeat(self.plan, len(known)), target)
        return outcome is None or outcome.outcome == "completed"


def _digests(held: pathlib.Path) -> dict[str, str]:
    found = {}
    for path in held.iterdir():
        try:
            found[path.name] = seal.digest_of(path / "events")
        except EventLogError:
            found[path.name] = "damaged"
    return found


def _with_its_steps(plan: Plan, held: pathlib.Path) -> Plan:
    if plan.workload.steps is not None:
        return plan
    alone = timeline.load(held / FAULT_FREE)
    if not alone.reached_step and any(process.restored_step for process in alone.processes):
        what = "the fault-free run restored an old checkpoint and did no step"
        raise ChaosError(f"{what}: the job must begin anew each time")
    return plan.with_steps(alone.reached_step) if alone.reached_step else plan


def _at_another_pace(run_dir: pathlib.Path) -> bool:
    """Returns True if the fault-free runs were faster or slower than the job was before its first fault."""
    evidence = load_evidence(run_dir)
    at_end = Analysis.of(evidence).pace
    beside = isinstance(at_end, Pace) and at_end.slow(PaceBounds().max_slowdown) is Slow.BESIDE_BEFORE
    return beside or Slowed(evidence.run, Usual(evidence.fault_free_runs)).another_pace


def run_repeatedly(
    plans: Iterable[Plan],
    reports: pathlib.Path,
    backend: Backend,
    observer: CampaignObserver = SILENT_CAMPAIGN,
    stop: StopRequest | None = None,
) -> tuple[list[Scorecard], bool]:
    """Runs and judges several plans in order. Returns the scorecards, and True if the user stopped the runs."""
    stop = stop or StopRequest()
    cards = []
    for plan in plans:
        run_dir, interrupted = run_experiment(plan, reports, backend, observer, stop)
        card = judge(load_evidence(run_dir), run_dir.name)
        observer.judged(card, write_reports(card, run_dir, sections_of))
        cards.append(card)
        if interrupted or stop.asked:
            return cards, True
        if stop.cap and stop.cap.reached:
            break
    return cards, False


def new_run_id(name: str) -> str:
    drawn = random.SystemRandom().getrandbits(24)  # a gate names many runs in one second
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{drawn:06x}"
