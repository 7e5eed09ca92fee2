"""One scenario, whole: fault-free runs, then the run with its faults; the evidence ends up in one folder."""

from __future__ import annotations

import pathlib
import random
import shutil
import tempfile
import time
from collections.abc import Iterable

from harness.backends.contract import Backend
from harness.campaign.fault_free import CACHE, ensure_fault_free, fault_free_plans, forget_fault_free
from harness.campaign.observers import SILENT_CAMPAIGN, CampaignObserver, Stage
from harness.errors import ChaosError
from harness.judge import slowdown
from harness.judge.evidence import TWIN, attach, load_evidence
from harness.judge.score import Scorecard, judge
from harness.plan.model import Plan
from harness.report import write_reports
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.timeline import timeline

MIN_FREE_BYTES = 200 * 2**20


def run_experiment(
    plan: Plan,
    reports: pathlib.Path,
    backend: Backend,
    observer: CampaignObserver = SILENT_CAMPAIGN,
    stop: StopRequest | None = None,
) -> tuple[pathlib.Path, bool]:
    """Runs what is needed and returns the run's folder, and whether the user stopped it.

    When the workload does not even finish without a fault, that fault-free run is what is handed back to be judged.
    """
    return _Experiment(plan, reports, backend, observer, stop or StopRequest()).run()


class _Experiment:
    def __init__(
        self, plan: Plan, reports: pathlib.Path, backend: Backend, observer: CampaignObserver, stop: StopRequest
    ):
        self.plan, self.reports, self.backend, self.observer, self.stop = plan, reports, backend, observer, stop
        self.run_dir = reports / plan.run_id

    def run(self) -> tuple[pathlib.Path, bool]:
        _check_room(self.reports)
        cache = self.reports / CACHE
        cache.mkdir(exist_ok=True)
        kept = False
        # Links of its own from the start: another run beside this one may make the same fault-free runs anew.
        with tempfile.TemporaryDirectory(dir=cache, prefix=f"{self.plan.run_id}.") as held:
            for name, fault_free in fault_free_plans(self.plan).items():
                folder, outcome = self._ensure(fault_free)
                if outcome is not None and outcome.outcome != "completed":
                    folder.rename(self.run_dir)
                    return self.run_dir, outcome.outcome == "interrupted"
                attach(pathlib.Path(held), name, folder)
                kept |= outcome is None
            outcome = self._run(_with_its_steps(self.plan, pathlib.Path(held)))
            for evidence in pathlib.Path(held).iterdir():
                shutil.move(evidence, self.run_dir / evidence.name)
        if outcome.outcome == "completed":
            shutil.rmtree(self.run_dir / "checkpoints", ignore_errors=True)
            if kept and not self.stop.asked and _at_another_pace(self.run_dir):
                return self.run_dir, self._renew()
        return self.run_dir, outcome.outcome == "interrupted"

    def _run(self, plan: Plan) -> Outcome:
        stage = Stage("run with faults" if plan.faults else "run", plan.workload.nodes)
        self.observer.stage(stage)
        outcome = execute(plan, self.run_dir, self.backend, self.observer, self.stop)
        self.observer.stage_ended(stage, outcome.outcome)
        return outcome

    def _ensure(self, fault_free: Plan, again: bool = False) -> tuple[pathlib.Path, Outcome | None]:
        stage = Stage("fault-free run", fault_free.workload.nodes, again)
        self.observer.stage(stage)
        folder, outcome = ensure_fault_free(fault_free, self.reports, self.backend, self.observer, self.stop)
        self.observer.stage_ended(stage, "cached" if outcome is None else outcome.outcome)
        return folder, outcome

    def _renew(self) -> bool:
        """Makes the fault-free runs once more, in the place of those of a busier or a quieter day. Where one does not
        complete, the run keeps the old one. Returns whether the user stopped it."""
        forget_fault_free(self.plan, self.reports)
        for name, fault_free in fault_free_plans(self.plan).items():
            folder, outcome = self._ensure(fault_free, again=True)
            if outcome is not None and outcome.outcome != "completed":
                shutil.rmtree(folder)
                return outcome.outcome == "interrupted"
            shutil.rmtree(self.run_dir / name)
            attach(self.run_dir, name, folder)
        return False


def _with_its_steps(plan: Plan, held: pathlib.Path) -> Plan:
    """Where the scenario does not say how many steps there are, as many as the fault-free run did, if it told any."""
    if plan.workload.steps is not None:
        return plan
    return plan.with_steps(reached) if (reached := timeline.load(held / TWIN).reached_step) else plan


def _at_another_pace(run_dir: pathlib.Path) -> bool:
    evidence = load_evidence(run_dir)
    return slowdown.of_another_pace(evidence.run, slowdown.usual_step_times(evidence.fault_free))


def run_repeatedly(
    plans: Iterable[Plan],
    reports: pathlib.Path,
    backend: Backend,
    observer: CampaignObserver = SILENT_CAMPAIGN,
    stop: StopRequest | None = None,
) -> tuple[list[Scorecard], bool]:
    """Runs and judges plan after plan. Returns the scorecards, and whether the user stopped it."""
    stop = stop or StopRequest()
    cards = []
    for plan in plans:
        run_dir, interrupted = run_experiment(plan, reports, backend, observer, stop)
        card = judge(load_evidence(run_dir), run_dir.name)
        observer.judged(card, write_reports(card, run_dir))
        cards.append(card)
        if interrupted or stop.asked:
            return cards, True
    return cards, False


def new_run_id(name: str) -> str:
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{random.SystemRandom().getrandbits(16):04x}"


def _check_room(reports: pathlib.Path) -> None:
    reports.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(reports).free
    if free < MIN_FREE_BYTES:
        raise ChaosError(f"{reports}: {free // 2**20} MiB free; a run needs {MIN_FREE_BYTES // 2**20} MiB")
